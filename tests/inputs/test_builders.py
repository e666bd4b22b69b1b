from __future__ import annotations

import random

import numpy as np
import pandas
import pytest
from datasets import Dataset, load_from_disk

import st_contrastive as stc
from st_contrastive.inputs import describe, load_documents, load_pairs, load_sentences, load_translations
from tests import foreign

FIRST, SECOND = ["a cat", "a dog"], ["eine Katze", "ein Hund"]
BUILDERS = {
    "text": (stc.text_dataset, "other"),
    "conisi": (stc.conisi_dataset, "constructed"),
    "twins": (stc.twins_dataset, "translation"),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_rows_and_columns(name):
    dataset, second = BUILDERS[name]
    table = Dataset.from_dict({"sentence": FIRST})
    for source in (FIRST, tuple(FIRST), table, table["sentence"], pandas.Series(FIRST)):
        assert dataset(source).to_dict() == {"sentence": FIRST}
        pairs = dataset(source, iter(SECOND))
        assert pairs.to_dict() == {"sentence": FIRST, second: SECOND}
        assert [example.texts for example in stc.input_examples(pairs)] == [
            ["a cat", "eine Katze"], ["a dog", "ein Hund"]
        ]  # fmt: skip
    with pytest.raises(ValueError, match="same number of rows"):
        dataset(FIRST, SECOND[:1])


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ("one string", TypeError, "sentences"),
        (7, TypeError, "sentences.*int"),
        (["fine", None], TypeError, r"sentences\[1\].*NoneType"),
        (["fine", "half \ud83d"], ValueError, r"sentences\[1\]"),
        ({"sentence": ["a"]}, TypeError, "sentences.*dict"),
        (Dataset.from_dict({"text": ["a"]}), ValueError, r"\['sentence'\] not in .*\['text'\]"),
        (pandas.DataFrame({"sentence": ["a"]}), TypeError, "sentences.*DataFrame"),
        ([], ValueError, "sentences"),
    ],
)
def test_bad_rows_are_named(name, bad, error, message):
    with pytest.raises(error, match=message):
        BUILDERS[name][0](bad)


@pytest.mark.parametrize("name", BUILDERS)
def test_empty_texts_are_counted(name):
    build = BUILDERS[name][0]
    with pytest.warns(UserWarning, match="2 of 3 rows .* row 1"):
        assert len(build(["fine", " ", ""], ["a", "b", "c"])) == 3
    with pytest.warns(UserWarning, match="1 of 3 rows .* row 2"):
        build(["x", "y", "z"], ["a", "b", ""])


@pytest.mark.parametrize("name", ["text", "conisi"])
def test_a_function_makes_the_second_column_by_seed_and_row(name):
    dataset, second = BUILDERS[name]

    def shuffled(text, rng):
        return "".join(rng.sample(text, len(text)))

    texts = ["abcdefgh", "abcdefgh", "ijklmnop"]
    made = dataset(texts, shuffled, seed=3)[second][:]
    assert made == [shuffled(text, random.Random(f"3 {index}")) for index, text in enumerate(texts)]
    assert made[0] != made[1]
    assert dataset(texts, shuffled, seed=4)[second][:] != made
    with pytest.raises(TypeError, match=rf"{second}\[0\].*NoneType"):
        dataset(texts, lambda text, rng: None)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_dataset_is_read_by_slices_and_keeps_its_second_column(name, tmp_path):
    dataset, second = BUILDERS[name]
    firsts = [f"sentence {n}" for n in range(2500)]  # of several slices
    Dataset.from_dict({"n": range(2500), "sentence": firsts, second: firsts[::-1]}).save_to_disk(tmp_path)
    table = load_from_disk(tmp_path)
    data = dataset(table)
    assert data.to_dict() == {"sentence": firsts, second: firsts[::-1]}
    assert data.cache_files == table.cache_files  # nothing was copied
    rows = [list(row) for row in zip(firsts, firsts[::-1], strict=True)]
    assert [example.texts for example in stc.input_examples(data)] == rows
    assert dataset(table.shuffle(seed=1), firsts)[second][:] == firsts
    if name == "twins":
        return
    made = dataset(table.select_columns("sentence"), lambda text, rng: f"{text} {rng.random()}", seed=7)
    assert made[second][:] == [f"{text} {random.Random(f'7 {row}').random()}" for row, text in enumerate(firsts)]
    assert made.cache_files  # on disk, as the sentences are
    with pytest.raises(TypeError, match=r"sentences\[1\].*NoneType"):
        dataset(Dataset.from_dict({"sentence": ["a", None]}), lambda text, rng: text.upper())
    with pytest.raises(TypeError, match=rf"{second}\[1500\].*int"):
        dataset(table.select_columns("sentence"), lambda text, rng: 3 if text == "sentence 1500" else text)


@pytest.mark.parametrize("form", ["a transform of all columns", "a transform that makes the columns"])
def test_a_transform_is_applied_once(form):
    rows = {"sentence": ["a", "b"], "other": ["c", "d"], "n": [1, 2]}
    if form == "a transform that makes the columns":
        rows = {"text": rows["sentence"], "more": rows["other"], "n": rows["n"]}
    first, second = list(rows)[:2]

    def transform(batch):
        calls.append(1)
        marked = [[f"{n}: {text}" for n, text in zip(batch["n"], batch[name], strict=True)] for name in (first, second)]
        return {"sentence": marked[0], "other": marked[1]}

    calls = []
    data = Dataset.from_dict(rows).with_transform(transform)
    shown = [("1: a", "1: c"), ("2: b", "2: d")]
    assert [tuple(row.values()) for row in load_pairs(data, columns="sentence,other")] == shown
    assert load_sentences(data, column="other")["sentence"][:] == ["1: c", "2: d"]
    assert load_documents(data, columns="sentence,other").texts == ["1: a\n\n1: c", "2: b\n\n2: d"]
    lazy = stc.text_dataset(data)
    assert [tuple(row.values()) for row in lazy] == shown
    assert [example.texts for example in stc.input_examples(lazy)] == [[*row] for row in shown]
    for other in (lambda text, rng: f"{text}!", ["1: a!", "2: b!"]):
        made = stc.text_dataset(data, other)
        assert made.to_dict() == {"sentence": ["1: a", "2: b"], "other": ["1: a!", "2: b!"]}
    before = len(calls)
    assert lazy[0] == {"sentence": "1: a", "other": "1: c"}
    assert len(calls) == before + 1  # augmentation stays fresh
    with pytest.raises(ValueError, match=r"'sentence' is not among the columns that .* transform returns: text"):
        stc.text_dataset(Dataset.from_dict({"n": [1]}).with_transform(lambda batch: {"text": ["a"]}))


def test_what_a_reader_counted_travels_with_the_data(build):
    data = stc.conisi_dataset(load_sentences(["a", "", "b"]), lambda text, rng: text + "!")
    assert data.to_dict() == {"sentence": ["a", "b"], "constructed": ["a!", "b!"]}
    assert describe(data, build()).faults == {"empty": 1, "repeated": 0}


def test_constructed_sentences_that_are_the_sentences_are_warned_of():
    texts = [f"text {n}" for n in range(10)]
    stc.conisi_dataset(texts, [*texts[:6], *"abcd"])
    with pytest.warns(UserWarning, match="7 of 10 constructed sentences equal"):
        stc.conisi_dataset(texts, [*texts[:7], *"abc"])


def test_translations_become_labels(build, tmp_path):
    fraternal = stc.FraternalEmbedding.from_pretrained(str(foreign.checkpoint(tmp_path)), build())
    german = foreign.GERMAN * 150  # more than one batch
    english = [f"sentence {n}" for n in range(len(german))]
    pairs = load_translations(Dataset.from_dict({"en": english, "de": german}))
    expected = fraternal.encode_labels(german)
    for arguments in ((english, german), (pairs,)):
        data = stc.twins_dataset(*arguments, fraternal=fraternal)
        assert data.column_names == ["sentence", "label"]
        assert data["sentence"][:] == english
        assert np.array_equal(data["label"][:], expected)
        examples = stc.input_examples(data)
        assert [example.texts for example in examples] == [[text] for text in english]
        assert np.array_equal([example.label for example in examples], expected)
        assert stc.twins_dataset(*arguments)["translation"][:] == german
    with pytest.raises(ValueError, match="translations"):
        stc.twins_dataset(["a"], fraternal=fraternal)
