"""Disks that fill, files that were cut, places that are not ours: one line, and what was there is as it was."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from st_contrastive.cli._signals import ending_signals_raise
from transformers import AutoModel, AutoTokenizer

from st_contrastive import text_dataset, twins_dataset, twins_examples
from st_contrastive.cli import _saving, main
from st_contrastive.components import AuxiliaryMLM, load_auxiliary, save_auxiliary
from st_contrastive.evaluation import EvaluationDataError, Report, Score, read_sts
from st_contrastive.inputs import (
    CorpusError,
    TranslationError,
    _tables,
    read_corpus,
    read_parallel,
    stream_corpus,
    translate_corpus,
)
from st_contrastive.training import ContrastiveTrainer
from tests.filters import TRAINING

resource = pytest.importorskip("resource", reason="a system that limits the size of files")

pytestmark = [*TRAINING]


@contextmanager
def room(most_bytes: int) -> Iterator[None]:
    """No file grows beyond that; Python ignores the signal, and writing fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def everything(folder: Path) -> dict[str, bytes | str | None]:
    """Each entry under a folder, hidden ones too, to the byte."""
    return {
        str(path.relative_to(folder)): (
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
        for path in sorted(folder.rglob("*"))
    }


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error on the error stream, where nothing looks like a traceback."""
    error = capsys.readouterr().err
    assert "Traceback" not in error
    lines = [line for line in error.splitlines() if line.startswith("st-contrastive: ")]
    assert len(lines) == 1, error
    return lines[0]


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path


def arguments(command, checkpoint, corpus, output, *more):
    method = ["--method", "simcse"] if command == "train" else []
    named = ["--model", str(checkpoint("bert")), "--data", str(corpus), "--output", str(output)]
    return [command, *method, *named, "--max-steps", "1", "--batch-size", "4", *more]


# Disks that fill.


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_under_save_auxiliary(checkpoint, tmp_path, there):
    folder = checkpoint("bert")
    encoder, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    auxiliary, place = AuxiliaryMLM.from_encoder(encoder), tmp_path / "a" / "b"
    if there:
        save_auxiliary(auxiliary, place, tokenizer, "the old one")
        (place / "mine.txt").write_text("mine")
    before = everything(tmp_path)
    with torch.no_grad():
        for parameter in auxiliary.parameters():
            parameter += 1
    for size in (0, 1000, 100_000):
        expected = pytest.raises(OSError, match=rf"^auxiliary {place} can't be written: .*File too large")
        with room(size), expected as info:
            save_auxiliary(auxiliary, place, tokenizer, "the new one")
        assert "\n" not in str(info.value)
        assert everything(tmp_path) == before
    save_auxiliary(auxiliary, place, tokenizer, "the new one")
    assert load_auxiliary(place, encoder, tokenizer).extra_layers == 1
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"auxiliary .*file can't be written: File exists"):
        save_auxiliary(auxiliary, tmp_path / "file", tokenizer)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_full_disk_under_a_translation_which_goes_on_afterwards(tmp_path, name):
    def noise(text):
        return random.Random(text).randbytes(500).hex()  # nothing that gzip makes small

    def translate(batch):
        return [noise(text) for text in batch]

    translate.settings = {"model": "noise"}
    sentences = [f"sentence {number}" for number in range(40)]
    path, partial = tmp_path / name, tmp_path / f"{name}.partial"
    for size in (0, 10):  # not even the head of the partial file
        with room(size), pytest.raises(TranslationError, match=f"^output {path} can't be written: File too large"):
            translate_corpus(sentences, path, translate, progress=False)
        assert not list(tmp_path.iterdir())
    for size in (3000, 20_000):
        with room(size), pytest.raises(TranslationError, match=f"so far are in {partial.name}: call again to continue"):
            translate_corpus(sentences, path, translate, save_every=4, progress=False)
        assert [file.name for file in tmp_path.iterdir()] == [partial.name]
        assert partial.stat().st_size <= size
    translate_corpus(sentences, path, translate, save_every=4, progress=False)
    assert read_parallel(path).translations == [noise(text) for text in sentences]
    assert sorted(file.name for file in tmp_path.iterdir()) == [name, f"{name}.settings.json"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_full_disk_at_the_end_of_a_translation(tmp_path, name, monkeypatch):
    """The finished copy does not fit beside the partial file."""
    from st_contrastive.inputs import translation

    sentences, path = [f"sentence {number}" for number in range(2000)], tmp_path / name
    copy = translation.shutil.copyfileobj

    def into_little_room(source, target):
        with room(1000):
            copy(source, target)
            target.close()

    monkeypatch.setattr(translation.shutil, "copyfileobj", into_little_room)
    with pytest.raises(TranslationError, match=r"can't be written: File too large\. The translations so far are in"):
        translate_corpus(sentences, path, lambda batch: batch, progress=False)
    assert [file.name for file in tmp_path.iterdir()] == [f"{name}.partial"]
    monkeypatch.undo()
    translate_corpus(sentences, path, lambda batch: pytest.fail("it is all there"), progress=False)
    assert read_parallel(path).sentences == sentences


def test_a_full_disk_under_the_table_of_a_dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(_tables, "_folder", lambda: str(tmp_path))
    for size in (0, 100, 5000):
        expected = pytest.raises(OSError, match=f"^The data can't be written to {tmp_path}: File too large")
        with room(size), expected as info:
            text_dataset(f"sentence number {number}" for number in range(20_000))
        assert "set HF_DATASETS_CACHE" in str(info.value)
        assert not list(tmp_path.iterdir())

    def broken():
        yield "fine"
        raise OSError(5, "the corpus is on a disk that broke")

    with pytest.raises(OSError, match="the corpus is on a disk that broke"):  # not ours to explain
        text_dataset(broken())
    assert not list(tmp_path.iterdir())


def test_a_full_disk_under_a_report(tmp_path):
    scores = tuple(Score(f"task {number}", "test", "spearman", 0.5, 10) for number in range(100))
    path = tmp_path / "report.json"
    for size in (0, 1000):
        with room(size), pytest.raises(OSError, match="File too large"):
            Report("m", scores).write(tmp_path / "new" / "folder" / "report.json")
        assert not list(tmp_path.iterdir())
    Report("old", scores).write(path)
    before = everything(tmp_path)
    with room(1000), pytest.raises(OSError, match="File too large"):
        Report("new", scores).write(path)
    with pytest.raises(UnicodeEncodeError):
        Report("half \ud83d", scores).write(path)
    assert everything(tmp_path) == before
    link = tmp_path / "link.json"
    link.symlink_to("report.json")
    Report("new", scores).write(link)
    assert link.is_symlink()
    assert json.loads(path.read_text())["model"] == "new"


@pytest.mark.parametrize("command", ["train", pytest.param("pretrain-infocse", marks=pytest.mark.long)])
def test_a_full_disk_under_training(checkpoint, corpus, tmp_path, capsys, command):
    output = tmp_path / "models" / "out"
    given = arguments(command, checkpoint, corpus, output)
    before = everything(tmp_path)
    sizes = [2000, 20_000, 100_000]  # the model's files are of these orders, the largest 180 kB
    for size in sizes:
        with room(size):
            assert main(given) == 2
        assert f"--output {output} can't be written: " in (line := said(capsys))
        assert "File too large" in line
        assert line.count("Make room") == 1
        assert everything(tmp_path) == before
    assert main(given) == 0
    capsys.readouterr()
    before = everything(tmp_path)
    assert "models/out/model.safetensors" in before
    for size in sizes:
        with room(size):
            assert main([*given, "--overwrite"]) == 2
        assert "File too large" in said(capsys)
        assert everything(tmp_path) == before
    with room(0):  # not even the data
        assert main([*given, "--overwrite"]) == 2
    assert "The data can't be written to" in said(capsys)
    assert everything(tmp_path) == before


@pytest.mark.long
def test_a_full_disk_under_a_process_of_its_own(checkpoint, corpus, tmp_path):
    before = everything(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "st_contrastive", *arguments("train", checkpoint, corpus, tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"st-contrastive: --output {tmp_path}/out can't be written: ")
    assert everything(tmp_path) == before


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_under_evaluate_and_translate(checkpoint, corpus, sts, seq2seq, tmp_path, capsys, there):
    report, pairs = tmp_path / "scores.json", tmp_path / "pairs.jsonl"
    evaluate = ["evaluate", str(checkpoint("bert")), "--pooling", "cls", "--eval-data", str(sts), "--json", str(report)]
    if there:
        assert main(evaluate) == 0
    capsys.readouterr()
    before = everything(tmp_path)
    with room(50):
        assert main(evaluate) == 2
    assert said(capsys) == f"st-contrastive: --json {report} can't be written: File too large."
    assert everything(tmp_path) == before
    translate = ["translate", "--model", seq2seq, "--data", str(corpus), "--output", str(pairs), "--prefix", ""]
    with room(20):
        assert main([*translate, "--max-length", "8"]) == 2
    assert said(capsys) == f"st-contrastive: output {pairs} can't be written: File too large."
    assert everything(tmp_path) == before


# Places that are not ours.


def foreign_places(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Outputs that are refused, and what is said."""
    (tmp_path / "file").write_text("mine")
    yield "file", "file is a file; name a folder"
    yield "file/deeper/out", "file is a file; name a folder"
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_text("mine")
    yield "photos", "holds something that is not a saved model"
    (tmp_path / "dangling").symlink_to("not/mounted")
    yield "dangling", "dangling is a link to not/mounted, which does not exist"
    yield "dangling/out", "dangling is a link to not/mounted, which does not exist"
    (tmp_path / "loop").symlink_to("loop")
    yield "loop", "loop is a link to loop"
    yield "x" * 300, "File name too long"
    yield ".", "holds something that is not a saved model"
    yield "/dev/null", "/dev/null is a file"
    yield "/proc/self/out", "can't be made" if Path("/proc/self").exists() else "can't be"
    for name, entry in (("data", "rows.csv"), ("clone", ".git/HEAD"), ("run", "checkpoint-7/optimizer.pt"),
                        ("album", "2024_photos/one.jpg")):  # fmt: skip
        (tmp_path / name / entry).parent.mkdir(parents=True)
        (tmp_path / name / entry).write_text("mine")
        (tmp_path / name / "modules.json").write_text("[]")
        yield name, f"other files ({entry.partition('/')[0]}), which would be lost"


@pytest.mark.parametrize("command", ["train", "pretrain-infocse"])
def test_output_folders_that_are_not_ours(checkpoint, corpus, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    places = list(foreign_places(tmp_path))
    before = everything(tmp_path)
    for output, message in places:
        assert main(arguments(command, checkpoint, corpus, output, "--overwrite")) == 2
        line = said(capsys)
        assert line.startswith("st-contrastive: --output ")
        assert message in line
        assert everything(tmp_path) == before
    assert len(places) == 14
    with pytest.raises(SystemExit, match="2"):
        main(arguments(command, checkpoint, corpus, ""))
    assert "the name is empty" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "pretrain-infocse"])
def test_a_read_only_parent(checkpoint, corpus, tmp_path, monkeypatch, capsys, command):
    make = tempfile.mkdtemp

    def refuse(*args, prefix=None, **options):  # root may write anywhere
        if prefix == ".out.":
            raise PermissionError(errno.EACCES, "Permission denied")
        return make(*args, prefix=prefix, **options)

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert main(arguments(command, checkpoint, corpus, tmp_path / "locked" / "out")) == 2
    assert "can't be made: Permission denied" in said(capsys)
    assert not (tmp_path / "locked").exists()


def test_an_input_inside_the_output_is_not_lost(checkpoint, corpus, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out"
    assert main(arguments("train", checkpoint, corpus, output)) == 0
    inside = output / "corpus.txt"
    inside.write_bytes(corpus.read_bytes())
    capsys.readouterr()
    before = everything(tmp_path)
    for command in ("train", "pretrain-infocse"):
        assert main(arguments(command, checkpoint, inside, output, "--overwrite")) == 2
        assert f"--output {output} holds --data {inside}, which would be lost" in said(capsys)
    monkeypatch.chdir(output)
    assert main(arguments("train", checkpoint, "corpus.txt", ".", "--overwrite")) == 2
    assert "holds --data corpus.txt, which would be lost" in said(capsys)
    assert everything(tmp_path) == before
    (output / "corpus.txt").unlink()
    # A model that goes on from itself is in memory by then.
    given = arguments("train", checkpoint, corpus, output, "--overwrite", "--model", str(output))
    assert main(given) == 0


def test_a_link_to_a_folder_stays_one(checkpoint, corpus, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    for more in ([], ["--overwrite"]):
        assert main(arguments("train", checkpoint, corpus, tmp_path / "out", *more)) == 0
        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "disk" / "modules.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "disk", "out"]


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_translations_do_not_go_over_what_is_not_theirs(corpus, seq2seq, tmp_path, capsys, name):
    given = ["translate", "--model", seq2seq, "--data", str(corpus), "--prefix", "", "--max-length", "8", "--output"]
    output = tmp_path / name
    partial = tmp_path / f"{name}.partial"
    for place, content, message in (
        (output, b"my diary, without a line end", "exists and can't be read as a file of pairs"),
        (output, gzip.compress(b'{"sentence": "mine"}\n' * 99)[:-9], "exists and"),
        (partial, b"my diary, without a line end", "was begun with other settings: my diary"),
        (partial, b"my diary\n", "was begun with other settings: my diary"),
    ):
        place.write_bytes(content)
        before = everything(tmp_path)
        assert main([*given, str(output)]) == 2
        assert message in said(capsys)
        assert everything(tmp_path) == before
        place.unlink()
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "dangling.jsonl").symlink_to("not/mounted.jsonl")
    before = everything(tmp_path)
    for place, message in (
        ("folder.jsonl", "folder.jsonl is a folder; name a file"),
        ("dangling.jsonl", "is a link to not/mounted.jsonl, which does not exist"),
        ("corpus.txt/pairs.jsonl", "corpus.txt is a file"),
        ("/proc/self/pairs.jsonl", "can't be written"),
    ):
        assert main([*given, str(tmp_path / place)]) == 2
        assert message in said(capsys)
        assert everything(tmp_path) == before


def test_reports_do_not_go_over_what_is_no_report(checkpoint, sts, tmp_path, capsys):
    (tmp_path / "diary.txt").write_text("mine")
    (tmp_path / "other.json").write_text('{"mine": 1}')
    (tmp_path / "dangling.json").symlink_to("not/mounted.json")
    (tmp_path / "empty.json").touch()
    before = everything(tmp_path)
    given = ["evaluate", str(checkpoint("bert")), "--pooling", "cls", "--eval-data", str(sts), "--json"]
    for place, message in (
        ("diary.txt", "exists and holds no scores; name another file"),
        ("other.json", "exists and holds no scores; name another file"),
        ("sts", "is a folder; name a file"),
        ("diary.txt/scores.json", "diary.txt is a file"),
        ("dangling.json", "is a link to not/mounted.json, which does not exist"),
        ("/dev/null", "holds no scores"),
    ):
        assert main([*given, str(tmp_path / place)]) == 2
        assert message in said(capsys)
        assert everything(tmp_path) == before
    for _ in range(2):
        assert main([*given, str(tmp_path / "empty.json")]) == 0
    assert json.loads((tmp_path / "empty.json").read_text())["scores"]


# Files that were cut.


def cut(path: Path, content: bytes, share: float) -> Path:
    whole = gzip.compress(content)
    path.write_bytes(whole[: int(len(whole) * share)])
    return path


def noisy(rows: int, line) -> bytes:
    """Lines that gzip can't make small, so that a cut in the middle of the file is one in the middle of the text."""
    rng = random.Random(0)
    return b"".join(line(f"{rng.getrandbits(200):x}").encode() + b"\n" for _ in range(rows))


READERS = {
    "corpus.txt.gz": (lambda text: text, [read_corpus, lambda path: list(stream_corpus(path))]),
    "pairs.tsv.gz": (lambda text: f"{text}\t{text}", [read_parallel]),
    "pairs.jsonl.gz": (
        lambda text: json.dumps({"en": text, "de": text}),
        [read_parallel, lambda path: twins_examples(["a"], path), lambda path: twins_dataset(iter(["a"]), path)],
    ),
    "test.jsonl.gz": (lambda text: json.dumps({"sentence1": text, "sentence2": text, "score": 1}), [read_sts]),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_names_a_file_that_was_cut(tmp_path, name):
    line, readers = READERS[name]
    content = noisy(2000, line)
    for reader, share in itertools.product(readers, (0.0001, 0.01, 0.5, 0.9, 0.9999)):
        path = cut(tmp_path / name, content, share)
        with pytest.raises((CorpusError, EvaluationDataError), match=rf"^{path} is damaged or cut short \(") as info:
            reader(path)
        assert "\n" not in str(info.value)
    path.write_bytes(gzip.compress(content)[:500] + bytes(500) + gzip.compress(content)[1000:])
    for reader in readers:
        with pytest.raises((CorpusError, EvaluationDataError), match=rf"^{path} is damaged or cut short \("):
            reader(path)


def test_two_files_of_which_one_was_cut(tmp_path):
    content = noisy(2000, str)
    whole = tmp_path / "whole.gz"
    whole.write_bytes(gzip.compress(content))
    short = cut(tmp_path / "short.gz", content, 0.5)
    for pair in ((whole, short), (short, whole)):
        with pytest.raises(CorpusError, match=rf"^{short} is damaged or cut short"):
            read_parallel(*pair)


def test_a_corpus_that_was_cut_leaves_nothing_half_made(tmp_path, monkeypatch):
    monkeypatch.setattr(_tables, "_folder", lambda: str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    path = cut(tmp_path / "corpus.gz", noisy(20_000, str), 0.9)
    with pytest.raises(CorpusError, match="cut short"):
        text_dataset(stream_corpus(path))
    assert not list((tmp_path / "cache").iterdir())


def test_the_command_line_says_which_file_was_cut(checkpoint, seq2seq, sts, corpus, tmp_path, capsys):
    data = cut(tmp_path / "corpus.gz", noisy(2000, str), 0.5)
    pairs = cut(tmp_path / "pairs.jsonl.gz", noisy(2000, READERS["pairs.jsonl.gz"][0]), 0.5)
    whole = tmp_path / "whole.txt"
    whole.write_bytes(noisy(2000, str))
    (tmp_path / "set" / "broken").mkdir(parents=True)
    graded = cut(tmp_path / "set" / "broken" / "test.jsonl.gz", noisy(2000, READERS["test.jsonl.gz"][0]), 0.5)
    out = str(tmp_path / "out")
    before = everything(tmp_path)
    for path, given in (
        (data, arguments("train", checkpoint, data, out)),
        (data, arguments("pretrain-infocse", checkpoint, data, out)),
        (pairs, arguments("train", checkpoint, corpus, out, "--method", "twins", "--translations", str(pairs))),
        (data, arguments("train", checkpoint, whole, out, "--method", "twins", "--translations", str(data))),
        (data, ["translate", "--model", seq2seq, "--data", str(data), "--prefix", "", "--output", f"{out}.jsonl"]),
        (graded, ["evaluate", str(checkpoint("bert")), "--eval-data", str(tmp_path / "set"), "--json", f"{out}.json"]),
    ):
        assert main(given) == 2
        assert f"{path} is damaged or cut short (" in said(capsys)
        assert everything(tmp_path) == before


def test_what_comes_into_the_output_during_training_stays(checkpoint, corpus, tmp_path, capsys, monkeypatch):
    out, other = tmp_path / "out", tmp_path / "out.unsaved"
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus), "--output"]
    words += [str(out), "--batch-size", "4", "--max-steps", "1"]
    train = ContrastiveTrainer.train

    def meanwhile(self, *given, **named):
        out.mkdir(exist_ok=True)
        (out / "notes.txt").write_text("mine")
        return train(self, *given, **named)

    monkeypatch.setattr(ContrastiveTrainer, "train", meanwhile)
    for kept in (other, tmp_path / "out.unsaved1"):
        shutil.rmtree(out, ignore_errors=True)
        assert main(words) == 2
        assert f"holds something that is not a saved model; name another folder. The trained model is in {kept}." in (
            capsys.readouterr().err
        )
        assert [entry.name for entry in out.iterdir()] == ["notes.txt"]
        assert SentenceTransformer(str(kept)).encode("a dog").shape == (32,)
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".out")]


@pytest.fixture
def signals_of_a_terminal():
    """Signals that a background process ignores, under ``nohup`` or with ``&``, do what they do in a terminal."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_of_a_terminal")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_ending_signal_leaves_nothing_behind(checkpoint, corpus, tmp_path, monkeypatch, capsys, sent, code):
    """As from a job scheduler, and again while the hidden folder beside the output is removed: that is finished."""
    out = tmp_path / "out"
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus), "--output"]
    before = signal.getsignal(sent)
    remove, hidden, removed = shutil.rmtree, [], []

    def ended(*_, **__):
        hidden.extend(entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".out."))
        os.kill(os.getpid(), sent)

    def interrupted(folder, *args, **options):
        os.kill(os.getpid(), sent)
        removed.append(folder)
        remove(folder, *args, **options)

    monkeypatch.setattr(ContrastiveTrainer, "train", ended)
    monkeypatch.setattr(shutil, "rmtree", interrupted)
    assert main([*words, str(out), "--batch-size", "4", "--max-steps", "1"]) == code
    assert len(hidden) == len(removed) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "st-contrastive: stopped"
    assert [entry.name for entry in tmp_path.iterdir()] == ["corpus.txt"]
    assert signal.getsignal(sent) is before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork beside threads
def test_ending_signals_by_process_and_thread():
    """An ignored signal stays ignored, a forked worker dies of it as by default, and other threads change nothing."""
    default = signal.getsignal(signal.SIGTERM)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_signals_raise():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not default
            worker = os.fork()
            if not worker:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            assert os.WTERMSIG(os.waitpid(worker, 0)[1]) == signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is default
    seen = []

    def within():
        with ending_signals_raise():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=within)
    thread.start()
    thread.join()
    assert seen == [default]


@pytest.mark.usefixtures("signals_of_a_terminal")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("renamed", [True, False])
def test_interrupted_while_the_model_is_put_in_place(checkpoint, corpus, tmp_path, monkeypatch, renamed, sent, code):
    """Ctrl-C or SIGTERM between two moves: the new model takes the old one's place, and then the command stops."""
    out = tmp_path / "out"
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus), "--output"]
    words += [str(out), "--batch-size", "4", "--max-steps"]
    assert main([*words, "1"]) == 0
    before = signal.getsignal(sent)
    move, calls = shutil.move, []

    def interrupted(source, target):
        calls.append(source)
        os.kill(os.getpid(), sent)
        return move(source, target)

    def rename(source, target):
        if not renamed:
            return False
        interrupted(source, target)
        return True

    monkeypatch.setattr(_saving, "_renamed", rename)
    monkeypatch.setattr(_saving.shutil, "move", interrupted)
    assert main([*words, "2", "--overwrite"]) == code
    assert calls
    assert json.loads((out / "training_run.json").read_text())["steps"] == 2
    assert signal.getsignal(sent) is before
    SentenceTransformer(str(out))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["corpus.txt", "out"]


def test_a_full_disk_when_the_best_weights_are_written(checkpoint, corpus, tmp_path, capsys):
    dev = tmp_path / "dev.jsonl"
    rows = [{"sentence1": "a dog runs", "sentence2": text, "score": n} for n, text in enumerate(("rain", "a dog", "x"))]
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus), "--output"]
    words += [
        str(tmp_path / "out"),
        "--batch-size",
        "4",
        "--max-steps",
        "1",
        "--dev",
        str(dev),
        "--evaluate-steps",
        "1",
    ]
    for more in ([], ["--keep", "best"]):
        with room(20_000):
            assert main([*words, *more]) == 2
        said = capsys.readouterr().err.splitlines()
        assert re.search(r"^st-contrastive: .*(best|start)\.safetensors can't be written: ", said[-1])
        assert not (tmp_path / "out").exists()
