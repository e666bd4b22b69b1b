"""Pairs of sentences and translations from several files, without the sentences of the STS sets.

    python -m benchmarks.training_pairs mlqe_pe_wikipedia/train.jsonl.gz multi30k/train.jsonl.gz --languages en de \\
        --sts data/sts --output wikipedia_captions

Some STS sets hold captions that Multi30k has too. A sentence that equals one of any split but for case and space at the
ends is left out, and so is one that came before. ``NAME.jsonl.gz`` has the pairs; ``NAME.en.txt`` and ``NAME.de.txt``
have one language each, in the same order.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from st_contrastive.evaluation import read_sts
from st_contrastive.inputs import read_parallel


def form(sentence: str) -> str:
    """What two sentences share that count as the same."""
    return sentence.strip().lower()


def pairs(files: Iterable[str], languages: tuple[str, str], tests: Iterable[Path]) -> list[tuple[str, str]]:
    """The pairs of all files in their order, each sentence once, and none of the tests'."""
    seen = {form(sentence) for file in tests for read in [read_sts(file)] for sentence in (*read.first, *read.second)}
    found = []
    for file in files:
        corpus = read_parallel(file, languages=languages)
        for sentence, translation in zip(corpus.sentences, corpus.translations, strict=True):
            if form(sentence) not in seen:
                seen.add(form(sentence))
                found.append((sentence, translation))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="pairs, as .jsonl (.gz)")
    parser.add_argument("--languages", nargs=2, required=True, metavar="FIELD", help="of the sentences, translations")
    parser.add_argument("--sts", required=True, help="folder with one folder per set")
    parser.add_argument("--output", required=True, metavar="NAME", help="NAME.jsonl.gz and two text files are made")
    args = parser.parse_args(argv)
    tests = sorted(path for end in ("jsonl", "jsonl.gz") for path in Path(args.sts).glob(f"*/*.{end}"))
    if not tests:
        raise SystemExit(f"--sts {args.sts} holds no SET/SPLIT.jsonl (.gz).")
    made = pairs(args.files, tuple(args.languages), tests)
    lines = "".join(
        json.dumps(dict(zip(args.languages, pair, strict=True)), ensure_ascii=False) + "\n" for pair in made
    )
    Path(f"{args.output}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    for place, language in enumerate(args.languages):
        Path(f"{args.output}.{language}.txt").write_text("".join(f"{pair[place]}\n" for pair in made), encoding="utf-8")
    print(f"{len(made):,} pairs")


if __name__ == "__main__":
    main()
