"""How the augmentations change the number and order of words, for any text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from st_contrastive.augmentations import (
    AntonymReplacement,
    RandomDeletion,
    RandomInsertion,
    SynonymReplacement,
    WordRepetition,
)
from st_contrastive.augmentations._words import words

KNOWN = ["large", "city", "good", "day,", "(quickly)", "happy", "started", "not", "Oslo", "42", "猫", "很大"]
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(KNOWN), max_size=12).map(" ".join),
    st.lists(st.sampled_from(KNOWN), max_size=12).map("".join),
)
RATES = st.sampled_from([0.0, 0.1, 0.32, 0.5, 1.0])
SEEDS = st.integers(0, 2**32)

ALL = [
    AntonymReplacement,
    RandomDeletion,
    RandomInsertion,
    SynonymReplacement,
    WordRepetition,
    lambda rate: RandomInsertion(rate, words=["so", "猫"]),
]


class Synonyms:
    """A lexicon of these synonyms."""

    def __init__(self, synonyms):
        self.synonyms = lambda word: synonyms.get(word, [])

    def load(self):
        return self


def is_subsequence(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


@given(TEXTS, RATES, SEEDS, st.sampled_from(range(len(ALL))))
def test_the_seed_decides_and_nothing_becomes_empty(text, rate, seed, which):
    augment = ALL[which](rate)
    made = augment(text, random.Random(seed))
    assert made == ALL[which](rate)(text, random.Random(seed))
    assert bool(words(made)) == bool(words(text))


@given(TEXTS, RATES, SEEDS)
def test_deletion_keeps_some_words_in_order(text, rate, seed):
    made = words(RandomDeletion(rate)(text, random.Random(seed)))
    assert is_subsequence(made, words(text))
    if words(text):
        assert 1 <= len(made) <= len(words(text))
        assert len(made) == 1 or rate < 1
    if rate == 0:
        assert made == words(text)


@given(TEXTS, RATES, SEEDS)
def test_insertion_adds_words_and_keeps_the_others(text, rate, seed):
    before = words(text)
    given_words = words(RandomInsertion(rate, words=["so", "猫"])(text, random.Random(seed)))
    assert is_subsequence(before, given_words)
    assert len(given_words) == (len(before) + max(1, int(rate * len(before))) if before else 0)
    synonyms = words(RandomInsertion(rate)(text, random.Random(seed)))
    assert is_subsequence(before, synonyms)
    assert len(synonyms) in (len(before), len(before) + max(1, int(rate * len(before))))


@given(TEXTS, RATES, SEEDS)
def test_synonyms_keep_the_number_of_words(text, rate, seed):
    before, after = words(text), words(SynonymReplacement(rate)(text, random.Random(seed)))
    assert len(before) == len(after)
    changed = sum(one != two for one, two in zip(before, after, strict=True))
    assert changed <= max(1, int(rate * len(before)))


@given(TEXTS, RATES, SEEDS)
def test_repetition_doubles_some_words(text, rate, seed):
    before, after = words(text), words(WordRepetition(rate)(text, random.Random(seed)))
    assert is_subsequence(before, after)
    assert len(before) <= len(after) <= len(before) + min(len(before), max(2, int(rate * len(before))))
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
    delete = RandomDeletion(rate)
    left = [len(words(delete(text, random.Random(seed)))) for seed in range(2000)]
    # The last word stays where all would go: with probability rate ** count.
    expected = (1 - rate) * count + rate**count
    assert sum(left) / len(left) == pytest.approx(expected, abs=4 * (count * rate * (1 - rate) / len(left)) ** 0.5)


def test_each_word_is_as_likely_to_be_inserted_as_another():
    """Of EDA's insertion: the word first, then one of its synonyms."""
    large = {"big", "grand"}
    lexicon = Synonyms({"large": sorted(large), "sea": ["ocean"]})
    insert, substitute = RandomInsertion(lexicon=lexicon), SynonymReplacement(1.0, lexicon=lexicon)
    added = [set(words(insert("the large sea", random.Random(seed)))) - {"the", "sea"} for seed in range(2000)]
    oceans = sum("ocean" in own for own in added)
    assert 900 < oceans < 1100
    assert all(sum(word in own for own in added) > 400 for word in large)
    made = {substitute("the large sea", random.Random(seed)) for seed in range(20)}
    assert made == {"the big ocean", "the grand ocean"}


def test_trailing_white_space_takes_no_time():
    spaces = " " * 1_000_000  # in quadratic time, a day
    assert RandomDeletion(1.0)(f"a b{spaces}", random.Random(0)) in ("a", "b")
    assert RandomDeletion()(spaces, random.Random(0)) == spaces


@pytest.mark.parametrize(
    "text",
    ["cafe\u0301 large\u0301 day\u0301.", "large\u00adly", "http://day.com/large good@day.org #day large_day day.py"],
)
def test_parts_of_words_and_addresses_are_kept(text):
    assert AntonymReplacement()(text, random.Random(0)) == text
    if "/" not in text:
        assert SynonymReplacement(1.0)(text, random.Random(0)) == text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("Hot York is a large city.", "Hot York is a small city."),
        ("It was Hot York.", "It was Hot York."),
        ('"Hot Springs" are hot.', '"Hot Springs" are cold.'),
        ("Hot, York said.", "Cold, York said."),
        ("Hot I like.", "Cold I like."),
        ("HOT YORK", "COLD YORK"),
        ("Hot springs.", "Cold springs."),
        ("The end.Hot", "The end.Hot"),
    ],
)
def test_names_are_kept(text, made):
    assert AntonymReplacement()(text, random.Random(0)) == made


def test_spaces_and_scripts_are_kept():
    assert WordRepetition()("a  b\tc", random.Random(2)).replace(" ", "").replace("\t", "").strip("abc") == ""
    assert RandomDeletion(0.0)(" a  b\t", random.Random(0)) == " a  b\t"
    chinese = "猫在睡觉"
    repeated = {WordRepetition()(chinese, random.Random(seed)) for seed in range(20)}
    assert any(len(text) > 4 for text in repeated)
    assert not any(" " in text for text in repeated)


def test_synonyms_and_insertions_on_an_example():
    made = SynonymReplacement(1.0)("(quickly) to a large city", random.Random(0))
    assert made == "(fast) to a big town"
    inserted = RandomInsertion()("the large sea", random.Random(0)).split()
    assert sorted(inserted) == ["big", "large", "sea", "the"]


@pytest.mark.parametrize("make", ALL[:5])
def test_bad_arguments_are_named(make):
    with pytest.raises(ValueError, match=r"rate must be a number from 0 to 1, got 1\.5"):
        make(1.5)
    with pytest.raises(ValueError, match="rate"):
        make("often")
    with pytest.raises(TypeError, match="text must be a string, got NoneType"):
        make(0.5)(None, random.Random(0))


@pytest.mark.parametrize("words", ["so", [], ["two words"], [1], {"so"}, 5])
def test_bad_words_to_insert_are_refused(words):
    with pytest.raises(TypeError, match="words must be a sequence of single words"):
        RandomInsertion(words=words)
