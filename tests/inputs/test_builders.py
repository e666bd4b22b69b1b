from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pandas
import pytest
from datasets import Dataset, DatasetDict

import st_contrastive as stc
from st_contrastive.inputs import _tables, documentation_sentences

ONE, TWO = ["a cat", "a dog"], ["eine Katze", "ein Hund"]
BUILDERS = {
    "text": (stc.text_examples, stc.text_dataset, "other"),
    "conisi": (stc.conisi_examples, stc.conisi_dataset, "constructed"),
    "twins": (stc.twins_examples, stc.twins_dataset, "translation"),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_rows_and_columns(name):
    examples, dataset, second = BUILDERS[name]
    assert [example.texts for example in examples(ONE)] == [["a cat"], ["a dog"]]
    assert dataset(iter(ONE)).to_dict() == {"sentence": ONE}
    assert [example.texts for example in examples(ONE, TWO)] == [list(row) for row in zip(ONE, TWO, strict=True)]
    assert dataset(ONE, TWO).to_dict() == {"sentence": ONE, second: TWO}
    with pytest.raises(ValueError, match="equally long"):
        examples(ONE, TWO[:1])


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ("one string", TypeError, "sentences must be a sequence"),
        (7, TypeError, "got int"),
        (["fine", None], TypeError, r"sentences\[1\] must be a string, got NoneType"),
        (["fine", 3.5], TypeError, r"sentences\[1\]"),
        (["fine", "half \ud83d"], ValueError, r"sentences\[1\] holds half of a surrogate pair"),
        ({"sentence": ["a"]}, TypeError, "sentences is a dict; give a sequence of strings"),
        ({"a", "b"}, TypeError, "sentences is a set"),
        (Dataset.from_dict({"sentence": ["a"]}), TypeError, r"sentences is a Dataset; .* one column of it"),
        (DatasetDict(train=Dataset.from_dict({"sentence": ["a"]})), TypeError, "sentences is a DatasetDict"),
        (pandas.DataFrame({"sentence": ["a"]}), TypeError, "sentences is a DataFrame"),
        ([], ValueError, "empty"),
    ],
)
def test_bad_rows_are_named(name, bad, error, message):
    for build in BUILDERS[name][:2]:
        with pytest.raises(error, match=message):
            build(bad)


@pytest.mark.parametrize("name", BUILDERS)
def test_empty_texts_are_counted(name):
    for build in BUILDERS[name][:2]:
        for second in (None, ["a", "b", "c"]):
            with pytest.warns(UserWarning, match="2 of 3 rows have an empty text, the first of them row 1"):
                assert len(build(["fine", " ", ""], second)) == 3
        with pytest.warns(UserWarning, match="1 of 3 rows have an empty text, the first of them row 2"):
            build(["x", "y", "z"], ["a", "b", ""])
    if name != "twins":
        with pytest.warns(UserWarning, match="3 of 3 rows have an empty text, the first of them row 0"):
            BUILDERS[name][1](["x", "y", "z"], lambda text, rng: "")
        with pytest.raises(ValueError, match="seed must be a whole number"):
            BUILDERS[name][1](["x"], seed=None)


def test_the_number_of_documentation_sentences_is_checked():
    for limit in (0, -1, "3"):
        with pytest.raises(ValueError, match="limit must be a whole number of at least 1"):
            documentation_sentences(limit)


def test_columns_of_tables_are_taken():
    table = Dataset.from_dict({"sentence": ONE})
    for column in (table["sentence"], pandas.Series(ONE), pandas.Index(ONE), tuple(ONE), iter(ONE)):
        assert stc.text_dataset(column)["sentence"][:] == ONE


def build_and_end(cache, killed):
    _tables.HF_DATASETS_CACHE = cache
    _tables._folder.cache_clear()
    data = stc.text_dataset(ONE)
    folder, owner = Path(_tables._folder()), os.getpid()
    if os.fork() == 0:
        _tables._remove(str(folder), owner)  # as when a worker process of the Trainer ends
        os._exit(0)
    os.wait()
    assert folder.parent == cache
    assert data.cache_files == [{"filename": str(next(folder.iterdir()))}]
    if killed:
        os.kill(owner, signal.SIGKILL)
    _tables._remove(str(folder), owner)  # a forked process runs no exit handlers


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it is forked while it has threads
def test_the_folder_of_datasets_is_removed_with_its_process(tmp_path):
    """A killed process leaves its folder, which does not disturb the next one."""
    context = multiprocessing.get_context("fork")
    for killed, left in ((True, 1), (True, 2), (False, 2)):
        process = context.Process(target=build_and_end, args=(tmp_path, killed))
        process.start()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if killed else 0)
        assert len(list(tmp_path.iterdir())) == left


@pytest.mark.long
def test_documentation_is_prose_and_reproducible():
    sentences = documentation_sentences()
    assert len(sentences) > 5000
    assert len(set(sentences)) == len(sentences)
    assert all(5 <= len(sentence.split()) <= 40 and sentence[-1] in ".!?" for sentence in sentences)
    assert documentation_sentences(5) == sentences[:5]
    assert documentation_sentences(5, seed=1) != sentences[:5]
