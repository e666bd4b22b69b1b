"""Fetch what the papers' tables need from the hub, in the layout that ``st-contrastive evaluate`` reads.

    python -m benchmarks.get_data data

Writes data/sts (the seven STS sets), data/transfer (SentEval's seven tasks) and data/wiki1m_for_simcse.txt, from the
files that SimCSE published, and compares each split with known numbers of rows and checksums.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY, WIKI = "princeton-nlp/datasets-for-simcse", "wiki1m_for_simcse.txt"
SUBSETS = {
    "sts12": "MSRpar MSRvid SMTeuroparl surprise.OnWN surprise.SMTnews",
    "sts13": "FNWN headlines OnWN",
    "sts14": "deft-forum deft-news headlines images OnWN tweet-news",
    "sts15": "answers-forums answers-students belief headlines images",
    "sts16": "answer-answer headlines plagiarism postediting question-question",
}
TWO_FILES = {  # positive and negative rows
    "mr": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "cr": ("CR/custrev.pos", "CR/custrev.neg"),
    "subj": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "mpqa": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
#: Rows of each split, and the checksum where it is known.
KNOWN: dict[str, tuple[int, str]] = {
    "sts/sts12/test": (3108, "33c5b84c"),
    "sts/sts13/test": (1500, "e6ab0bf0"),
    "sts/sts14/test": (3750, ""),
    "sts/sts15/test": (3000, ""),
    "sts/sts16/test": (1186, "d90b7614"),
    "sts/stsb/train": (5749, "2ebf7153"),
    "sts/stsb/dev": (1500, "2f154f79"),
    "sts/stsb/test": (1379, "cac5a717"),
    "sts/sickr/train": (4500, ""),
    "sts/sickr/dev": (500, ""),
    "sts/sickr/test": (4927, ""),
    "transfer/mr/all": (10662, "1313ac0c"),
    "transfer/cr/all": (3775, "35956dd4"),
    "transfer/subj/all": (10000, ""),
    "transfer/mpqa/all": (10606, ""),
    "transfer/sst2/train": (67349, "066c95d5"),
    "transfer/sst2/dev": (872, "4905eca9"),
    "transfer/sst2/test": (1821, "53760eec"),
    "transfer/trec/train": (5452, "dcb3100b"),
    "transfer/trec/test": (500, "a12c9423"),
    "transfer/mrpc/train": (4076, "9956ab55"),
    "transfer/mrpc/test": (1725, "03478960"),
}


def checksum(rows: Iterable[dict[str, Any]]) -> str:
    """A hash of eight digits of the rows' letters, digits and labels, without order, case, spacing and punctuation."""

    def letters(text: str) -> str:
        return "".join(filter(str.isalnum, text.lower()))

    keys = sorted(
        "|".join(letters(row[field]) for field in ("text", "sentence1", "sentence2") if field in row)
        + f"|{float(row.get('score', row.get('label'))):.3f}"
        for row in rows
    )
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:8]


def converted(root: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Name and rows of each split, from SentEval's files."""
    for name, subsets in SUBSETS.items():
        folder = root / "STS" / f"STS{name[3:]}-en-test"
        rows = []
        for subset in subsets.split():
            scores = _lines(folder / f"STS.gs.{subset}.txt")
            for line, score in zip(_lines(folder / f"STS.input.{subset}.txt"), scores, strict=True):
                if score.strip():  # pairs without a score were not judged
                    rows.append(_pair(*line.split("\t")[:2], float(score), subset))
        yield f"sts/{name}/test", rows
    for split in ("train", "dev", "test"):
        table = (line.split("\t") for line in _lines(root / "STS/STSBenchmark" / f"sts-{split}.csv"))
        yield f"sts/stsb/{split}", [_pair(cells[5], cells[6], float(cells[4]), cells[1]) for cells in table]
    for split, file in {"train": "SICK_train", "dev": "SICK_trial", "test": "SICK_test_annotated"}.items():
        table = (line.split("\t") for line in _lines(root / "SICK" / f"{file}.txt")[1:])
        yield f"sts/sickr/{split}", [_pair(cells[1], cells[2], float(cells[3])) for cells in table]
    for name, files in TWO_FILES.items():
        rows = [
            {"text": line, "label": 1 - place}
            for place, file in enumerate(files)
            for line in _lines(root / file, "latin-1")
        ]
        yield f"transfer/{name}/all", rows
    for split in ("train", "dev", "test"):
        table = (line.rsplit("\t", 1) for line in _lines(root / "SST/binary" / f"sentiment-{split}"))
        yield f"transfer/sst2/{split}", [{"text": text, "label": int(label)} for text, label in table]
    for split, file in {"train": "train_5500", "test": "TREC_10"}.items():
        table = (line.split(" ", 1) for line in _lines(root / "TREC" / f"{file}.label", "latin-1"))
        rows = [{"text": text, "label": TREC_CLASSES.index(kind.split(":")[0])} for kind, text in table]
        yield f"transfer/trec/{split}", rows
    for split in ("train", "test"):
        table = (line.split("\t") for line in _lines(root / "MRPC" / f"msr_paraphrase_{split}.txt")[1:])
        rows = [{"sentence1": cells[3], "sentence2": cells[4], "label": int(cells[0])} for cells in table]
        yield f"transfer/mrpc/{split}", rows


def _pair(first: str, second: str, score: float, subset: str = "") -> dict[str, Any]:
    return {"sentence1": first, "sentence2": second, "score": score, **({"subset": subset} if subset else {})}


def _lines(path: Path, encoding: str = "utf-8-sig") -> list[str]:
    return path.read_text(encoding=encoding).removesuffix("\n").split("\n")


def write(root: Path, output: Path) -> None:
    """Convert SentEval's files under ``root``, and print what differs from the known rows."""
    for name, rows in converted(root):
        file = output / f"{name}.jsonl.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(file, "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        count, known = KNOWN[name]
        same = {"": "no checksum known", checksum(rows): "as known"}.get(known, "another checksum")
        print(f"{name}: {len(rows):,} rows{'' if len(rows) == count else f', not {count:,}'}; {same}")


def main() -> None:
    from huggingface_hub import hf_hub_download

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    archive, wiki = (hf_hub_download(REPOSITORY, file, repo_type="dataset") for file in ("senteval.tar", WIKI))
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
        write(next(Path(work).rglob("SICK")).parent, output)
    shutil.copyfile(wiki, output / WIKI)


if __name__ == "__main__":
    main()
