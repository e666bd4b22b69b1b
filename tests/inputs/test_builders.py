from __future__ import annotations

import os
import signal
import subprocess
import sys

import pandas
import pytest
from datasets import Dataset, DatasetDict

import st_contrastive as stc
from st_contrastive.inputs import documentation_sentences

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


def test_columns_of_tables_are_taken():
    table = Dataset.from_dict({"sentence": ONE})
    for column in (table["sentence"], pandas.Series(ONE), pandas.Index(ONE), tuple(ONE), iter(ONE)):
        assert stc.text_dataset(column)["sentence"][:] == ONE


BUILD_AND_END = """
import os, signal, sys
from pathlib import Path
from st_contrastive import text_dataset

data = text_dataset(["a", "b"])
folder = Path(data.cache_files[0]["filename"]).parent
if os.fork() == 0:
    sys.exit()  # runs the exit handlers of its parent
os.wait()
assert folder.is_dir() and data["sentence"][:] == ["a", "b"]
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks and kills processes")
def test_the_folder_of_a_dataset_goes_with_its_process_alone(tmp_path):
    """A killed process leaves its folder, which is in nobody's way."""
    folders = tmp_path / "cache"
    for end, code, left in (("killed", -signal.SIGKILL, 1), ("killed", -signal.SIGKILL, 2), ("normal", 0, 2)):
        command = [sys.executable, "-W", "ignore", "-c", BUILD_AND_END, end]
        environment = {**os.environ, "HF_DATASETS_CACHE": str(folders)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert len(list(folders.iterdir())) == left


def test_documentation_is_prose_and_reproducible():
    sentences = documentation_sentences()
    assert len(sentences) > 5000
    assert len(set(sentences)) == len(sentences)
    assert all(5 <= len(sentence.split()) <= 40 and sentence[-1] in ".!?" for sentence in sentences)
    assert documentation_sentences(5) == sentences[:5]
    assert documentation_sentences(5, seed=1) != sentences[:5]
