"""Antonyms, synonyms, insertion and deletion: hand-computed values, and properties of any text."""

from __future__ import annotations

import pickle
import random

import nltk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from st_contrastive.augmentations import (
    AntonymReplacement,
    RandomDeletion,
    RandomInsertion,
    SynonymReplacement,
    antonym,
    copy_wordnet,
    synonyms,
)
from tests.miniature_wordnet import SYNSETS, write_wordnet
from tests.processes import run_python

ANTONYMS = [
    ("The large city is hot, an easy one.", "The small city is cold, a difficult one."),
    ("They rise, open, love, buy, come.", "They fall, close, hate, sell, go."),
    ("Larger cities fell; he lost it, and works.", None),  # more often forms of other words
    ("The light is good.", "The darkness is bad."),  # the noun, which "light" is more often
    ("GOOD DAY", "BAD NIGHT"),
    ("He is in Oslo.", None),  # no adverb, no inch
    ("It is not never hot, but isn't early.", "It is not never cold, but isn't late."),
    ("We met Good, at Large.", None),  # names
    ('"Hot Springs" are hot.', '"Hot Springs" are cold.'),
    ("Hot I like.", "Cold I like."),
    ("Hot, York said.", "Cold, York said."),
    ("A good idea, an early train", "A bad idea, a late train"),
    ("a usual day, an unusual day", "an unusual night, a usual night"),
    ("an honest man, A dishonest man", "a dishonest woman, An honest woman"),
    ("a well-loved man", "a well-loved woman"),
    ("a unilateral and a multilateral city", "a multilateral and a unilateral city"),
    ("AN EASY DAY", "A DIFFICULT NIGHT"),
    ("naïve Straße 42  day!\n很 good。 ", "naïve Straße 42  night!\n很 bad。"),
    ("http://day.com/large good@day.org #day large_day day.py 很good", None),
    ("cafe\u0301 large\u0301 day\u0301. large\u00adly", None),
    ("", None),
    ("  Xylophones  abound. ", None),
    ("city" + " " * 1_000_000, None),  # in linear time
]


@pytest.mark.parametrize(("text", "expected"), ANTONYMS)
def test_antonyms_keep_case_articles_and_negation(text, expected):
    assert AntonymReplacement()(text, random.Random(0)) == (text if expected is None else expected)


def test_a_rate_replaces_a_share_but_at_least_one():
    text = "good day, hot night, large man, easy, happy, early city"
    whole = AntonymReplacement()(text, random.Random(0)).split()
    chosen: set[int] = set()
    for seed in range(300):
        some = AntonymReplacement(0.3)(text, random.Random(seed)).split()
        assert all(word in pair for word, *pair in zip(some, text.split(), whole, strict=True))
        places = {place for place, (new, old) in enumerate(zip(some, text.split(), strict=True)) if new != old}
        assert len(places) == 3  # of 9 words: round(2.7)
        chosen |= places
    assert len(chosen) == 9
    assert AntonymReplacement(0.0)("a good day", random.Random(0)) in ("a bad day", "a good night")


def test_rare_senses_and_rare_parts_of_speech_are_ignored():
    assert antonym("day") == "night"  # not "eve", of a sense with 3 uses of 93
    assert antonym("work") == "idle"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The large city is hot.", "The big town is hot."),
        ("(quickly) to a large house", "(fast) to a big house"),
        ("a happy man, Difficult", "a glad man, Difficult"),  # a name
        ("WE STOP, START AND BUY.", "WE HALT, BEGIN AND PURCHASE."),
        ("Larger cities; we met Large.", None),
        ("  Xylophones  abound. ", None),
        ("", None),
    ],
)
def test_synonyms_by_hand(text, expected):
    assert SynonymReplacement(1.0)(text, random.Random(0)) == (text if expected is None else expected)


def test_synonyms_are_of_usual_senses():
    assert synonyms("large") == ("big",)
    assert synonyms("day") == synonyms("not") == synonyms("cities") == ()


def test_insertion_by_hand():
    """Each of five places in turn gets the only synonym, and the text's white space stays."""
    found = {RandomInsertion()("The  large  Oslo rains", random.Random(seed)) for seed in range(100)}
    assert found == {
        "big The  large  Oslo rains", "The big  large  Oslo rains", "The  large big  Oslo rains",
        "The  large  Oslo big rains", "The  large  Oslo rains big",
    }  # fmt: skip
    assert RandomInsertion()("Oslo rains. ", random.Random(0)) == "Oslo rains. "


def test_a_word_is_inserted_as_often_as_another():
    """The word is drawn first and then its synonym, as Wei and Zou do."""
    texts = (RandomInsertion()("a large city", random.Random(seed)) for seed in range(1000))
    assert 440 < sum("big" in text for text in texts) < 560


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_each_word_is_deleted_at_the_rate(rate):
    words = "a b c d e f g h i j".split()
    left = [len(RandomDeletion(rate)(" ".join(words), random.Random(seed)).split()) for seed in range(2000)]
    expected = (1 - rate) * len(words) + rate ** len(words)  # the last word stays
    assert sum(left) / len(left) == pytest.approx(expected, abs=4 * (len(words) * rate * (1 - rate) / len(left)) ** 0.5)


def test_deletion_by_hand():
    assert {RandomDeletion(1.0)(" a  b\n", random.Random(seed)) for seed in range(20)} == {"a", "b"}
    assert {RandomDeletion(1.0)("很好", random.Random(seed)) for seed in range(20)} == {"很", "好"}
    assert RandomDeletion(0.0)(" a  b\n", random.Random(0)) == " a  b\n"
    assert RandomDeletion(1.0)("a" + " " * 1_000_000, random.Random(0)) in (
        "a",
        "a" + " " * 1_000_000,
    )  # in linear time
    assert RandomDeletion()("", random.Random(0)) == ""


KNOWN = ["large", "City", "good", "day,", "(quickly)", "happy", "a", "not", "Oslo", "42", "猫", "很大"]
TEXTS = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(KNOWN), max_size=12).map(" ".join))
CLASSES = [AntonymReplacement, SynonymReplacement, RandomInsertion, RandomDeletion]


@given(TEXTS, st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 2**32))
def test_number_and_order_of_words(text, rate, seed):
    words = text.split()
    after = {kind: kind(rate)(text, random.Random(seed)).split() for kind in CLASSES}
    assert {kind: kind(rate)(text, random.Random(seed)).split() for kind in CLASSES} == after
    count = max(1, int(rate * len(words)))
    assert len(after[AntonymReplacement]) == len(after[SynonymReplacement]) == len(words)
    changed = sum(old != new for old, new in zip(words, after[SynonymReplacement], strict=True))
    assert changed <= 2 * count  # an article before a synonym may change too
    assert len(after[RandomInsertion]) in (len(words), len(words) + count)
    inserted = iter(after[RandomInsertion])
    assert all(word in inserted for word in words)
    assert bool(after[RandomDeletion]) == bool(words)
    assert is_subsequence("".join(after[RandomDeletion]), text)


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(letter in rest for letter in part)


@pytest.mark.parametrize("kind", CLASSES)
def test_they_survive_pickling_and_refuse_a_rate_above_1(kind):
    text = "a good day in a large city"
    assert pickle.loads(pickle.dumps(kind()))(text, random.Random(0)) == kind()(text, random.Random(0))
    with pytest.raises(ValueError, match=r"rate.*1\.5"):
        kind(1.5)


COPYING = """
import random, sys
import nltk
from st_contrastive.augmentations import SynonymReplacement, copy_wordnet

package, data = sys.argv[1:]
nltk.data.path[:] = [data]
for _ in range(2):
    copy_wordnet(package, data)
print(SynonymReplacement(1.0)("a large city", random.Random(0)))
"""


def test_the_wordnet_of_debians_package_is_copied(tmp_path):
    """The package has neither lexnames nor index.sense, and NLTK does not read it where it is."""
    package = write_wordnet(tmp_path / "usr")
    (package / "lexnames").unlink()
    (package / "index.sense").unlink()
    printed = run_python("-c", COPYING, package, tmp_path / "data")
    assert printed.splitlines() == ["a big town"]
    lines = (tmp_path / "data" / "corpora" / "wordnet" / "lexnames").read_text(encoding="utf-8").splitlines()
    assert lines[::22] == ["00\tadj.all\t3", "22\tnoun.process\t1", "44\tadj.ppl\t3"]
    with pytest.raises(OSError, match=r"data\.noun"):
        copy_wordnet(tmp_path, tmp_path / "data")


FORKING = """
import os, sys
import nltk
from nltk.corpus.reader import wordnet
from st_contrastive.augmentations import antonym

opened_by = []

class Reader(wordnet.WordNetCorpusReader):
    def __init__(self, *args, **options):
        opened_by.append(os.getpid())
        super().__init__(*args, **options)

def antonyms():
    antonym.cache_clear()
    return [antonym(word) for word in sys.argv[2:]]

wordnet.WordNetCorpusReader = Reader
nltk.data.path[:] = [sys.argv[1]]
print(*antonyms(), flush=True)
parent = os.getpid()
if not (child := os.fork()):
    print(*antonyms(), flush=True)
    os._exit(opened_by != [parent, os.getpid()])
assert os.waitpid(child, 0)[1] == 0
antonyms()
assert opened_by == [parent]
"""


def test_a_forked_worker_reads_files_of_its_own():
    """Open files that are shared with the parent have one position for both. What forks here has no threads yet."""
    printed = run_python("-c", FORKING, nltk.data.path[0], *(word for _, (word, *_), _, _ in SYNSETS))
    parent, child = (line.split() for line in printed.splitlines())
    assert parent == child
    assert len(parent) - parent.count("None") > 30


DAMAGED = """
import sys
import nltk
from st_contrastive.augmentations import AntonymReplacement

for folder in sys.argv[1:]:
    nltk.data.path[:] = [folder]
    try:
        AntonymReplacement()
    except OSError as error:
        print("nltk.downloader wordnet" in str(error), "copy_wordnet()" in str(error))
"""


def test_without_a_whole_wordnet_the_error_names_the_remedies(tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "zip" / "corpora").mkdir(parents=True)
    (tmp_path / "zip" / "corpora" / "wordnet.zip").write_bytes(b"PK half a file")
    (write_wordnet(tmp_path / "half") / "index.noun").unlink()
    printed = run_python("-c", DAMAGED, *(tmp_path / name for name in ("none", "zip", "half")))
    assert printed.splitlines() == ["True True"] * 3
