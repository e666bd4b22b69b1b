from __future__ import annotations

import pickle
import random

import nltk
import pytest

from st_contrastive.augmentations import AntonymReplacement, lexicon
from st_contrastive.augmentations.lexicon import inflected
from tests.miniature_wordnet import SYNSETS, write_wordnet
from tests.processes import run_python

ANTONYMS = [
    ("Larger cities are hotter, the easiest.", "Smaller cities are colder, the most difficult."),
    ("He lost it.", "He found it."),
    ("It fell. She has fallen; they are falling.", "It rose. She has risen; they are rising."),
    ("They sold it, he loves it, loving it.", "They bought it, he hates it, hating it."),
    ("men and women, days", "women and men, nights"),
    ("The light is good.", "The darkness is bad."),  # the noun, which "light" is more often
    ("GOOD DAY", "BAD NIGHT"),
    ("He is in Oslo.", "He is in Oslo."),  # no adverb, no inch
    ("It is not never hot, but isn't early.", "It is not never cold, but isn't late."),
    ("We met Good, at Large.", "We met Good, at Large."),  # names
    ('"Hot Springs" are hot.', '"Hot Springs" are cold.'),
    ("Hot I like.", "Cold I like."),
    ("Hot, York said.", "Cold, York said."),
    ("A good idea, an early train", "A bad idea, a late train"),
    ("a usual day, an unusual day", "an unusual night, a usual night"),
    ("an honest man, A dishonest man", "a dishonest woman, An honest woman"),
    ("a well-loved man", "a well-loved woman"),
    ("a unilateral and a multilateral city", "a multilateral and a unilateral city"),
    ("AN EASY DAY", "A DIFFICULT NIGHT"),
    ("He comes, came, had come.", "He goes, went, had gone."),
    ("fewer cities, the fewest", "more cities, the most"),
    ("naïve Straße 42 day!", "naïve Straße 42 night!"),
    ("http://day.com/large good@day.org #day large_day day.py", None),
    ("cafe\u0301 large\u0301 day\u0301. large\u00adly", None),
    ("", None),
    ("  Xylophones  abound. ", None),
]


@pytest.mark.parametrize(("text", "expected"), ANTONYMS)
def test_antonyms_keep_form_case_articles_and_negation(text, expected):
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
    assert lexicon.antonym("day") == "night"  # not "eve", of a sense with 3 uses of 93
    assert lexicon.antonym("works") == "idles"
    assert lexicon.synonyms("large") == ("big",)
    assert lexicon.synonyms("started") == ("begined",)  # "begin" is not irregular in the miniature


FORMS = """
city n plural cities, day n plural days, box n plural boxes, woman n plural women, fireman n plural firemen,
human n plural humans, carry v s carries, carry v past carried, close v past closed, fall v past fell,
fall v participle fallen, buy v participle bought, cut v past cut, close v ing closing, see v ing seeing,
tie v ing tying, stop v ing stopping, hot a comparative hotter, large a superlative largest,
happy a comparative happier, difficult a comparative more difficult, useful a superlative most useful,
simple a comparative simpler, bad a comparative worse
"""


@pytest.mark.parametrize("case", FORMS.split(","))
def test_inflection(case):
    lemma, pos, feature, expected = case.split(maxsplit=3)
    assert inflected(lemma, pos, feature) == expected.strip()


def test_it_survives_pickling():
    replace = pickle.loads(pickle.dumps(AntonymReplacement()))
    assert replace("a good day", random.Random(0)) == "a bad night"


FORKING = """
import os, sys
import nltk
from nltk.corpus.reader import wordnet
from st_contrastive.augmentations import lexicon

opened_by = []

class Reader(wordnet.WordNetCorpusReader):
    def __init__(self, *args, **options):
        opened_by.append(os.getpid())
        super().__init__(*args, **options)

def antonyms():
    lexicon.antonym.cache_clear()
    return [lexicon.antonym(word) for word in sys.argv[2:]]

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
    monkeypatch.setattr(lexicon, "_reader", lexicon._reader.__wrapped__)
    with pytest.raises(LookupError, match=r"nltk\.downloader wordnet"):
        AntonymReplacement()
