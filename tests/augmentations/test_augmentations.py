"""How the augmentations change the number and order of words, for any text."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from st_contrastive.augmentations import (
    AntonymReplacement,
    RandomDeletion,
    RandomInsertion,
    SynonymReplacement,
    WordRepetition,
    augmentation,
    edits,
    lexicon,
)
from st_contrastive.augmentations.edits import split

KNOWN = ["large", "city", "good", "day,", "(quickly)", "happy", "started", "not", "Oslo", "42", "猫", "很大"]
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(KNOWN), max_size=12).map(" ".join),
    st.lists(st.sampled_from(KNOWN), max_size=12).map("".join),
)
NAMES = {
    "antonyms": AntonymReplacement,
    "repetition": WordRepetition,
    "deletion": RandomDeletion,
    "insertion": RandomInsertion,
    "synonyms": SynonymReplacement,
}
RATES = st.sampled_from([0.0, 0.1, 0.32, 0.5, 1.0])
SEEDS = st.integers(0, 2**32)


def words(text):
    return [word for _, word in split(text)]


def is_subsequence(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


@given(TEXTS, RATES, SEEDS, st.sampled_from([*NAMES.values()]))
def test_the_seed_decides_and_nothing_becomes_empty(text, rate, seed, kind):
    augmented = kind(rate)(text, random.Random(seed))
    assert augmented == kind(rate)(text, random.Random(seed))
    assert bool(words(augmented)) == bool(words(text))


@given(TEXTS, RATES, SEEDS)
def test_deletion_leaves_some_words_in_order(text, rate, seed):
    before, after = words(text), words(RandomDeletion(rate)(text, random.Random(seed)))
    assert is_subsequence(after, before)
    assert bool(after) == bool(before)
    assert len(after) <= 1 or rate < 1
    assert after == before or rate > 0


@given(TEXTS, RATES, SEEDS)
def test_insertion_adds_words(text, rate, seed):
    before = words(text)
    count = max(1, int(rate * len(before)))
    synonyms = words(RandomInsertion(rate)(text, random.Random(seed)))
    assert is_subsequence(before, synonyms)
    assert len(synonyms) in (len(before), len(before) + count)


@given(TEXTS, RATES, SEEDS)
def test_synonyms_take_the_places_of_words(text, rate, seed):
    before, after = words(text), words(SynonymReplacement(rate)(text, random.Random(seed)))
    assert len(before) == len(after)
    assert sum(old != new for old, new in zip(before, after, strict=True)) <= max(1, int(rate * len(before)))


@given(TEXTS, RATES, SEEDS)
def test_repetition_doubles_some_words(text, rate, seed):
    before, after = words(text), words(WordRepetition(rate)(text, random.Random(seed)))
    assert len(after) <= len(before) + min(len(before), max(2, int(rate * len(before))))
    place = 0
    for word in after:  # each word is the next one, or repeats the last one
        if place < len(before) and word == before[place]:
            place += 1
        else:
            assert word == before[place - 1]
    assert place == len(before)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("count", [5, 10])
def test_the_rate_of_deletion_is_that_of_each_word(rate, count):
    text = " ".join("abcdefghij"[:count])
    left = [len(words(RandomDeletion(rate)(text, random.Random(seed)))) for seed in range(2000)]
    # The last word stays where all would go: with probability rate ** count.
    expected = (1 - rate) * count + rate**count
    assert sum(left) / len(left) == pytest.approx(expected, abs=4 * (count * rate * (1 - rate) / len(left)) ** 0.5)


def test_each_word_is_as_likely_to_be_inserted_as_another(monkeypatch):
    """Of EDA's insertion: the word first, then one of its synonyms."""
    names = {"large": ("big", "grand"), "sea": ("ocean",)}
    monkeypatch.setattr(edits, "synonyms", lambda word: names.get(word, ()))
    added = [
        set(words(RandomInsertion()("the large sea", random.Random(n)))) - {"the", "large", "sea"} for n in range(2000)
    ]
    counts = {name: sum(name in each for each in added) for name in ("ocean", "big", "grand")}
    assert sum(counts.values()) == 2000
    assert 900 < counts["ocean"] < 1100
    assert min(counts.values()) > 400
    replaced = {SynonymReplacement(1.0)("the large sea", random.Random(seed)) for seed in range(20)}
    assert replaced == {"the big ocean", "the grand ocean"}


def test_examples():
    assert RandomDeletion(0.5)("It rains in Oslo again.", random.Random(0)) == "It rains again."
    assert sorted(RandomInsertion()("the large sea", random.Random(0)).split()) == ["big", "large", "sea", "the"]
    assert SynonymReplacement(1.0)("(quickly) to a large city", random.Random(0)) == "(fast) to a big town"
    assert RandomDeletion(0.0)(" a  b\t", random.Random(0)) == " a  b\t"
    assert RandomDeletion(1.0)("a b" + " " * 1_000_000, random.Random(0)) in ("a", "b")  # in linear time


def test_a_chinese_character_is_a_word():
    text = "小猫在暖和的椅子上睡觉。"
    for augment in (RandomDeletion(0.3), WordRepetition()):
        augmented = {augment(text, random.Random(seed)) for seed in range(10)}
        assert len(augmented) > 3
        assert not any(" " in each for each in augmented)


@pytest.mark.parametrize("name", NAMES)
def test_augmentations_by_name(name):
    text = "A large city is a good place, he said (quickly) on an early day."
    for written, made in ((name, NAMES[name]()), (f"{name}=0.7", NAMES[name](0.7))):
        augment = augmentation(written)
        assert [augment(text, random.Random(n)) for n in range(9)] == [made(text, random.Random(n)) for n in range(9)]
    for rate in (1.5, "often"):
        with pytest.raises(ValueError, match=f"rate.*{rate}"):
            NAMES[name](rate)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("synonym", "antonyms, repetition, deletion, insertion, synonyms.*'synonym'"),
        ("", "antonyms, repetition"),
        ("repetition=", "augment='repetition='"),
        ("repetition=often", "augment='repetition=often'.*often"),
    ],
)
def test_bad_names_of_augmentations_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        augmentation(text)


@pytest.mark.parametrize("name", ["antonyms", "insertion", "synonyms"])
def test_the_remedy_of_a_missing_wordnet(name, monkeypatch):
    monkeypatch.setattr(lexicon, "_reader", mock.Mock(side_effect=LookupError("a page of text")))
    with pytest.raises(ValueError, match=f"^augment='{name}': .*python -m nltk.downloader wordnet"):
        augmentation(name)


@pytest.mark.parametrize("rate", [0.0, 0.32])
def test_a_short_text_gets_up_to_two_repeated_words(rate):
    """ESimCSE's max(2, ...): a share of few words would round to 0 or 1."""
    counts = {len(words(WordRepetition(rate)("one two three", random.Random(seed)))) for seed in range(60)}
    assert counts == {3, 4, 5}
