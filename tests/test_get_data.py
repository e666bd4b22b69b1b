"""Conversion of SentEval's files, tested on small files in its formats and without a network."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from benchmarks.get_data import KNOWN, SUBSETS, TREC_CLASSES, TWO_FILES, checksum, write
from st_contrastive.evaluation import read_sts, read_transfer

PAIRS = [("It's cold, isn't it?", "It is cold.", 4.25), ('He said "no".', "She\u2019s said yes", 1.0)]


def _file(path, lines, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


@pytest.fixture
def senteval(tmp_path):
    root = tmp_path / "senteval"
    for name, subsets in SUBSETS.items():
        folder = root / "STS" / f"STS{name[3:]}-en-test"
        for subset in subsets.split():
            _file(folder / f"STS.input.{subset}.txt", ["a\tb", *(f"{first}\t{second}" for first, second, _ in PAIRS)])
            _file(folder / f"STS.gs.{subset}.txt", ["", *(score for *_, score in PAIRS)])  # no judgement of the first
    for split in ("train", "dev", "test"):
        table = [f"main\tMSRvid\t2012\t{row}\t{score}\t{one}\t{two}" for row, (one, two, score) in enumerate(PAIRS)]
        _file(root / "STS/STSBenchmark" / f"sts-{split}.csv", table)
        _file(root / "SST/binary" / f"sentiment-{split}", ["a fine film\t1", "a bad one\t0"])
    for file in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        table = [f"{row}\t{one}\t{two}\t{score}\tNEUTRAL" for row, (one, two, score) in enumerate(PAIRS)]
        _file(root / "SICK" / f"{file}.txt", ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tjudgment", *table])
    for positive, negative in TWO_FILES.values():
        _file(root / positive, ["a clich\u00e9", "good"], "latin-1")
        _file(root / negative, ["bad"], "latin-1")
    for file in ("train_5500", "TREC_10"):
        _file(root / "TREC" / f"{file}.label", ["NUM:dist How far is it ?", "ABBR:exp What is U.S. ?"], "latin-1")
    for split in ("train", "test"):
        table = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\tone said\tone says", "0\t7\t9\tone\ttwo"]
        _file(root / "MRPC" / f"msr_paraphrase_{split}.txt", table, "utf-8-sig")
    return root


def test_evaluate_reads_converted_files(senteval, tmp_path, capsys):
    write(senteval, tmp_path / "data")
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == list(KNOWN)
    for name in SUBSETS:
        pairs = read_sts(tmp_path / "data" / "sts" / name / "test.jsonl.gz")
        assert list(zip(pairs.first, pairs.second, pairs.scores, strict=True)) == PAIRS * len(SUBSETS[name].split())
    for split in ("train", "dev", "test"):
        for name in ("stsb", "sickr"):
            pairs = read_sts(tmp_path / "data" / "sts" / name / f"{split}.jsonl.gz")
            assert list(zip(pairs.first, pairs.second, pairs.scores, strict=True)) == PAIRS
    tasks = read_transfer(tmp_path / "data" / "transfer")
    assert list(tasks) == ["mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"]
    for name in TWO_FILES:
        assert tasks[name]["all"].texts == (("a clich\u00e9", "good", "bad"),)
        assert tasks[name]["all"].labels == ("1", "1", "0")
    assert tasks["sst2"]["dev"].texts == (("a fine film", "a bad one"),)
    assert tasks["trec"]["test"].texts == (("How far is it ?", "What is U.S. ?"),)
    assert tasks["trec"]["test"].labels == ("5", "0")
    assert TREC_CLASSES[5] == "NUM"
    assert tasks["mrpc"]["train"].texts == (("one said", "one"), ("one says", "two"))
    assert tasks["mrpc"]["train"].labels == ("1", "0")


def test_checksums_only_depend_on_letters_and_labels():
    rows = [{"text": "It 's cold", "label": 1}, {"text": "Warm .", "label": 0}]
    other = [{"text": "warm", "label": "0"}, {"text": "it's COLD!", "label": 1.0}]
    assert checksum(rows) == checksum(other)
    assert checksum(rows) != checksum([rows[0], {"text": "Warm .", "label": 1}])
    pair = {"sentence1": "a", "sentence2": "b", "score": 1.5}
    assert checksum([pair]) != checksum([{**pair, "sentence1": "b", "sentence2": "a"}])


def test_real_files_have_the_known_checksums(data_folder):
    checked = 0
    for name, (count, known) in KNOWN.items():
        path = data_folder / f"{name}.jsonl.gz"
        if path.is_file() and known:
            rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
            random.Random(0).shuffle(rows)
            assert (len(rows), checksum(rows)) == (count, known), name
            checked += 1
    assert checked
