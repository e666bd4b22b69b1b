from __future__ import annotations

import multiprocessing
import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path

import nltk
import pytest
from nltk.corpus.reader.wordnet import WordNetCorpusReader

from st_contrastive.augmentations import AntonymReplacement, Lexicon, wordnet
from st_contrastive.augmentations.inflection import Inflections
from tests.miniature_wordnet import SYNSETS, write_database
from tests.selection import crossed

ANTONYMS = [
    ("An easy day.", "A difficult night."),
    ("Larger cities are hotter.", "Smaller cities are colder."),
    ("the largest, the easiest", "the smallest, the most difficult"),
    ("Better days", "Worse nights"),
    ("He lost it.", "He found it."),
    ("Prices rose and have risen.", "Prices fell and have fallen."),
    ("It fell. She has fallen; they are falling.", "It rose. She has risen; they are rising."),
    ("They sold it, he loves it, loving it.", "They bought it, he hates it, hating it."),
    ("She stopped.", "She started."),
    ("She started; it is starting.", "She stopped; it is stopping."),
    ("men and women, days", "women and men, nights"),
    ("The light is good.", "The darkness is bad."),  # the noun, which "light" is more often
    ("GOOD DAY", "BAD NIGHT"),
    ("He is in Oslo.", "He is in Oslo."),  # no adverb, no inch
    ("It is not never hot, but isn't early.", "It is not never cold, but isn't late."),
    ("We met Good, at Large.", "We met Good, at Large."),  # names
    ("a well-loved man", "a well-loved woman"),
    ("A good idea, an early train", "A bad idea, a late train"),
    ("a usual day, an unusual day", "an unusual night, a usual night"),
    ("an honest man, A dishonest man", "a dishonest woman, An honest woman"),
    ("a unilateral and a multilateral city", "a multilateral and a unilateral city"),
    ("AN EASY DAY", "A DIFFICULT NIGHT"),
    ("He comes, came, had come.", "He goes, went, had gone."),
    ("He goes, went, had gone.", "He comes, came, had come."),
    ("fewer cities, the fewest", "more cities, the most"),
    ("naïve Straße 42 day!", "naïve Straße 42 night!"),
    ("", ""),
    ("Xylophones abound.", "Xylophones abound."),
]


@pytest.mark.parametrize(("text", "expected"), ANTONYMS)
def test_antonyms_keep_form_casing_articles_and_negation(text, expected):
    assert AntonymReplacement()(text, random.Random(0)) == expected


def test_a_rate_replaces_a_share_but_at_least_one():
    text = "a good day, a hot night, a large man, an easy, happy, early city"
    whole = AntonymReplacement()(text, random.Random(0)).split()
    counts: list[int] = []
    chosen: set[int] = set()
    for seed in range(300):
        some = AntonymReplacement(0.3)(text, random.Random(seed)).split()
        changed = sum(one != two for one, two in zip(some, text.split(), strict=True) if one not in ("a", "an"))
        assert all(
            word in (one, two) or word in ("a", "an") for word, one, two in zip(some, text.split(), whole, strict=True)
        )
        counts.append(changed)
        chosen.update(place for place, (one, two) in enumerate(zip(some, text.split(), strict=True)) if one != two)
    assert set(counts) == {3}  # of 9 words: round(2.7)
    # Each word is chosen by some seed.
    assert chosen == {place for place, (one, two) in enumerate(zip(whole, text.split(), strict=True)) if one != two}
    assert AntonymReplacement(0.0)("a good day", random.Random(0)) in ("a bad day", "a good night")
    assert {AntonymReplacement(0.5)("a good day", random.Random(seed)) for seed in range(20)} == {
        "a bad day",
        "a good night",
    }


def test_a_lexicon_survives_pickling():
    replace = pickle.loads(pickle.dumps(AntonymReplacement()))
    assert replace("a good day", random.Random(0)) == "a bad night"


def in_child(lexicon, words, queue):
    before = lexicon._reader
    queue.put(([lexicon.antonym(word) for word in words], lexicon._reader is before))


def test_a_forked_worker_reads_files_of_its_own():
    """Open files that are shared with the parent have one position for both."""
    words = [word for _, (word, *_), _, _ in SYNSETS]
    lexicon = Lexicon()
    lexicon.antonym("hot")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forking a process with threads
        workers = [context.Process(target=in_child, args=(lexicon, words, queue)) for _ in range(2)]
        for worker in workers:
            worker.start()
    found = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    expected = [lexicon.antonym(word) for word in words]
    assert sum(antonym is not None for antonym in expected) > 30
    assert found == [(expected, False)] * 2


@pytest.mark.parametrize("damage", crossed(["empty", "zip", "half"], quick="half".__eq__))
def test_a_damaged_wordnet_is_one_error(tmp_path, damage):
    corpora = tmp_path / "data" / "corpora"
    corpora.mkdir(parents=True)
    if damage == "zip":
        (corpora / "wordnet.zip").write_bytes(b"PK half a file")
    elif damage == "empty":
        (corpora / "wordnet").mkdir()
    else:
        write_database(corpora / "wordnet")
    done = run(FIND + "module()", tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert "WordNetError: NLTK's WordNet is damaged" in last
    assert "python -m nltk.downloader wordnet" in last


@pytest.mark.long
def test_a_database_without_counts_is_read(tmp_path):
    (write_database(tmp_path / "dict") / "cntlist.rev").unlink()
    code = FIND + "import sys; from st_contrastive.augmentations import Lexicon; print(Lexicon().antonym('hot'))"
    assert run(code, tmp_path, WNHOME=str(tmp_path)).stdout == "cold\n"


def test_rare_senses_and_rare_parts_of_speech_are_ignored():
    lexicon = Lexicon()
    assert lexicon.antonym("day") == "night"  # not "eve", of a sense with 3 uses of 93
    assert lexicon.antonym("works") == "idles"
    assert lexicon.antonym("men") == "women"
    assert lexicon.synonyms("large") == ["big"]
    assert lexicon.synonyms("started") == ["begined"]  # "begin" is not irregular in the miniature


@pytest.mark.parametrize(
    ("lemma", "pos", "feature", "expected"),
    [
        ("city", "n", "plural", "cities"),
        ("day", "n", "plural", "days"),
        ("box", "n", "plural", "boxes"),
        ("woman", "n", "plural", "women"),
        ("fireman", "n", "plural", "firemen"),
        ("human", "n", "plural", "humans"),
        ("carry", "v", "s", "carries"),
        ("carry", "v", "past", "carried"),
        ("close", "v", "past", "closed"),
        ("fall", "v", "past", "fell"),
        ("fall", "v", "participle", "fallen"),
        ("buy", "v", "participle", "bought"),
        ("close", "v", "ing", "closing"),
        ("see", "v", "ing", "seeing"),
        ("tie", "v", "ing", "tying"),
        ("stop", "v", "ing", "stopping"),
        ("hot", "a", "comparative", "hotter"),
        ("large", "a", "superlative", "largest"),
        ("happy", "a", "comparative", "happier"),
        ("difficult", "a", "comparative", "more difficult"),
        ("useful", "a", "superlative", "most useful"),
        ("simple", "a", "comparative", "simpler"),
        ("bad", "a", "comparative", "worse"),
    ],
)
def test_inflection(lemma, pos, feature, expected):
    assert Inflections(wordnet()).inflect(lemma, pos, feature) == expected


def run(code: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    nowhere = {"HOME": str(home), "PATH": "/usr/bin:/bin", "NLTK_DATA": str(home / "data")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**nowhere, **environment}, capture_output=True, text=True, check=False
    )


FIND = """
import nltk
nltk.data.path[:] = [nltk.data.path[0]]
from st_contrastive.augmentations import wordnet as module
import st_contrastive.augmentations.wordnet
import sys
places = sys.modules["st_contrastive.augmentations.wordnet"]
places.DATABASE_FOLDERS = ()
"""


def test_a_database_is_imported_once_with_the_files_that_nltk_needs(tmp_path):
    write_database(tmp_path / "dict")
    code = FIND + "print([s.name() for s in module().synsets('good')])"
    done = run(code, tmp_path, WNHOME=str(tmp_path))
    assert done.stdout == "['good.a.01']\n", done.stderr
    copy = tmp_path / "data/corpora/wordnet"
    assert len((copy / "lexnames").read_text().splitlines()) == 45
    assert not [path for path in copy.parent.iterdir() if path.name != "wordnet"]
    assert run(code, tmp_path).stdout == "['good.a.01']\n"  # from NLTK's own folder now


def test_without_wordnet_the_error_names_both_remedies(tmp_path):
    done = run(FIND + "module()", tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert "WordNetError" in last
    assert "python -m nltk.downloader wordnet" in last
    assert "apt install wordnet-base" in last


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    write_database(tmp_path / "dict")
    (tmp_path / "data").write_text("a file where the folder should be")
    done = run(FIND + "module()", tmp_path, WNHOME=str(tmp_path))
    assert "to any folder of NLTK: " in done.stderr
    assert "Set NLTK_DATA" in done.stderr


@pytest.fixture(scope="module")
def real_reader(tmp_path_factory):
    """WordNet itself, where the machine has it."""
    from st_contrastive.augmentations.wordnet import DATABASE_FOLDERS, _copy, _is_database

    database = next((Path(folder) for folder in DATABASE_FOLDERS if _is_database(Path(folder))), None)
    if database is not None:
        root = tmp_path_factory.mktemp("corpora") / "wordnet"
        root.mkdir()
        _copy(database, root)
        nltk.data.path.append(str(root.parent))
    else:
        homes = [Path.home() / "nltk_data", Path("/usr/share/nltk_data"), Path("/usr/local/share/nltk_data")]
        root = next((home / "corpora/wordnet" for home in homes if (home / "corpora/wordnet").is_dir()), None)
        if root is None:
            pytest.skip("no WordNet on this machine: apt install wordnet-base")
        nltk.data.path.append(str(root.parent.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield WordNetCorpusReader(nltk.data.FileSystemPathPointer(str(root)), None)
    nltk.data.path.pop()


def test_real_wordnet(real_reader):
    replace = AntonymReplacement(lexicon=Lexicon(real_reader))
    pairs = {
        "He had lost the good game.": "He had kept the bad game.",
        "The men saw an ugly dog.": "The women saw a beautiful dog.",
        "It was never larger than the earliest ones.": "It was never smaller than the latest ones.",
        "Prices rose and have risen; isn't it better?": "Prices fell and have fallen; isn't it worse?",
    }
    assert {text: replace(text, random.Random(0)) for text in pairs} == pairs


@pytest.mark.long
def test_share_on_wikipedia(real_reader, data_folder):
    from st_contrastive.inputs import read_corpus

    path = data_folder / "en_wiki" / "wiki_en.00.txt.gz"
    sentences = read_corpus(path, limit=10_000).sentences
    replace = AntonymReplacement(lexicon=Lexicon(real_reader))
    made = [replace(text, random.Random(0)) for text in sentences]
    share = sum(one != two for one, two in zip(made, sentences, strict=True)) / len(made)
    assert len(made) == 10_000
    assert 0.7 < share < 0.9
