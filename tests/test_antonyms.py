from __future__ import annotations

import pickle
import random

import nltk
import pytest

from st_contrastive import augmentations
from st_contrastive.augmentations import AntonymReplacement, antonym
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


def test_it_survives_pickling():
    replace = pickle.loads(pickle.dumps(AntonymReplacement()))
    assert replace("a good day", random.Random(0)) == "a bad night"


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


@pytest.mark.parametrize("damage", ["none", "zip", "half"])
def test_without_a_whole_wordnet_the_error_names_the_remedy(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    if damage == "half":
        (write_wordnet(tmp_path) / "index.noun").unlink()
    elif damage == "zip":
        (tmp_path / "corpora").mkdir()
        (tmp_path / "corpora" / "wordnet.zip").write_bytes(b"PK half a file")
    # Without its cache: to clear that would leave the open files of the reader in it to the garbage collector.
    monkeypatch.setattr(augmentations, "_reader", augmentations._reader.__wrapped__)
    with pytest.raises(OSError, match=r"nltk\.downloader wordnet"):
        AntonymReplacement()
