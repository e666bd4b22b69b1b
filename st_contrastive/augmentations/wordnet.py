"""NLTK's WordNet reader, also for a WordNet database that NLTK does not find by itself."""

from __future__ import annotations

import os
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nltk

from st_contrastive._files import work_folder

#: Folders of WordNet's own database files, Debian's first.
DATABASE_FOLDERS = ("/usr/share/wordnet", "/usr/local/share/wordnet", "/usr/local/WordNet-3.0/dict")

_POS = ("adj", "adv", "noun", "verb")
_NEEDED = tuple(f"{kind}.{pos}" for kind in ("index", "data") for pos in _POS) + tuple(f"{pos}.exc" for pos in _POS)
#: WordNet's lexicographer files in their order, for the file "lexnames", which NLTK reads and Debian does not have.
_LEXNAMES = (
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition "
    "noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object "
    "noun.person noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape "
    "noun.state noun.substance noun.time verb.body verb.change verb.cognition verb.communication verb.competition "
    "verb.consumption verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession "
    "verb.social verb.stative verb.weather adj.ppl "
).split()
_POS_NUMBERS = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}


class WordNetError(LookupError):
    """There is no usable WordNet; the message names the remedy."""


def wordnet() -> Any:
    """NLTK's WordNet reader.

    If NLTK has no WordNet but the machine has its database, for example from Debian's package ``wordnet-base``, the
    database is copied once to the first folder on ``nltk.data.path`` that can be written, with two more files that NLTK
    needs. It is looked for in ``$WNSEARCHDIR``, ``$WNHOME/dict`` and :data:`DATABASE_FOLDERS`.

    Raises:
        WordNetError: there is no WordNet, it is damaged, or it can't be copied.
    """
    from nltk.corpus import wordnet as reader

    if _is_loaded(reader):
        return reader
    database = next((folder for folder in _databases() if _is_database(folder)), None)
    if database is None:
        raise WordNetError(
            "NLTK finds no WordNet. Download it with `python -m nltk.downloader wordnet`, or install the database with "
            "`apt install wordnet-base`."
        )
    _import(database)
    if not _is_loaded(reader):
        raise WordNetError(f"NLTK can't find the WordNet that was copied from {database}.")
    return reader


def _is_loaded(reader: Any) -> bool:
    try:
        reader.ensure_loaded()
    except LookupError:
        return False
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise WordNetError(
            f"NLTK's WordNet is damaged ({error}). Delete corpora/wordnet and corpora/wordnet.zip in NLTK's data "
            f"folder, one of {', '.join(map(str, nltk.data.path))}, and download it again with "
            "`python -m nltk.downloader wordnet`."
        ) from error
    return True


def reopened(root: Any) -> Any:
    """A new reader of the WordNet at an NLTK path, with its own open files."""
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about languages other than English
        return WordNetCorpusReader(root, None)


def sense_counts(reader: Any) -> dict[str, int]:
    """The uses of each sense in WordNet's texts, by its key. NLTK's own count searches the file each time."""
    try:
        with reader.open("cntlist.rev") as file:
            return {key: int(count) for key, _, count in map(str.split, file)}
    except OSError:  # a database without counts: all senses count the same
        return {}


def _databases() -> Iterator[Path]:
    if "WNSEARCHDIR" in os.environ:
        yield Path(os.environ["WNSEARCHDIR"])
    if "WNHOME" in os.environ:
        yield Path(os.environ["WNHOME"], "dict")
    yield from map(Path, DATABASE_FOLDERS)


def _is_database(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _NEEDED)


def _import(database: Path) -> None:
    """Copy a database to a folder of NLTK, which reads neither links nor other folders; completely or not at all."""
    errors = []
    for root in nltk.data.path:
        target = Path(root, "corpora", "wordnet")
        try:
            with work_folder(target) as work:
                copy = work / "wordnet"
                copy.mkdir()
                _copy(database, copy)
                copy.rename(target)
            return
        except OSError as error:
            if target.exists():  # there before, or made by another process just now
                return
            errors.append(f"{root} ({error})")
    raise WordNetError(
        f"WordNet can't be copied from {database} to any folder of NLTK: {', '.join(errors)}. Set NLTK_DATA to a "
        "folder that can be written."
    )


def _copy(database: Path, folder: Path) -> None:
    for name in (*_NEEDED, "cntlist.rev", "lexnames", "index.sense"):
        if (database / name).is_file():
            shutil.copyfile(database / name, folder / name)
    if not (folder / "lexnames").exists():
        lines = [f"{n:02d}\t{name}\t{_POS_NUMBERS[name.split('.')[0]]}\n" for n, name in enumerate(_LEXNAMES)]
        (folder / "lexnames").write_text("".join(lines), encoding="utf-8")
    # NLTK needs these files. Without counts all senses count the same; the sense index is not used here.
    for name in ("cntlist.rev", "index.sense"):
        (folder / name).touch()
