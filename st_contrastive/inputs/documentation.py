"""English sentences from the documentation of Python itself, which need no download."""

from __future__ import annotations

import ast
import functools
import importlib.util
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from st_contrastive._checks import require_count

#: Folders whose docstrings are not prose or not the standard library's own.
_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "turtledemo"})
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_MARKUP = re.compile(r":[a-z:]+:`~?!?([^`<]+)(?: <[^>]+>)?`|``?([^`]+)``?|\*\*?([^*\s][^*]*)\*\*?")
_CODE = re.compile(r"[{}<>|=\\\[\]_@#$%^~`*]|::|\.\.\.|>>>|--|\w\(|/")
_LISTING = re.compile(r"^\s*(?:[-*•+]|\d+[.)]|\.\.|:|>>>)")


def documentation_sentences(limit: int | None = None, *, seed: int = 42) -> list[str]:
    """Sentences of 5 to 40 words from the docstrings of Python's standard library and from ``pydoc``'s topics.

    About 15,000, each once, shuffled; they differ a little between Python versions. Source files are parsed, not
    imported.

    Args:
        limit: number of sentences to return; None returns all.
        seed: of the shuffle.

    Example:
        >>> sentences = documentation_sentences(3)
        >>> len(sentences), all(len(sentence.split()) >= 5 for sentence in sentences)
        (3, True)
    """
    if limit is not None:
        require_count("limit", limit)
    found = list(_prose())
    random.Random(seed).shuffle(found)
    return found[:limit]


@functools.cache  # parsing the standard library takes seconds
def _prose() -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentence for text in _documents() for sentence in _sentences(text)))


def _documents() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not _SKIPPED.intersection(path.relative_to(root).parts):
            yield from _docstrings(path)
    if importlib.util.find_spec("pydoc_data.topics") is not None:
        from pydoc_data.topics import topics

        yield from (topics[name] for name in sorted(topics))


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in the file
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return  # a template or a file for another version
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        if any(_LISTING.match(line) for line in lines) or len({len(ln) - len(ln.lstrip()) for ln in lines}) > 1:
            continue  # a list, a listing or a table
        prose = _MARKUP.sub(lambda match: next(part for part in match.groups() if part), " ".join(paragraph.split()))
        for sentence in _SENTENCE_END.split(prose):
            if _is_prose(sentence):
                yield sentence


def _is_prose(sentence: str) -> bool:
    words = sentence.split()
    letters = sum(character.isalpha() or character.isspace() for character in sentence)
    return (
        5 <= len(words) <= 40
        and sentence[0].isupper()
        and sentence[-1] in ".!?"
        and letters >= 0.9 * len(sentence)
        and not _CODE.search(sentence)
    )
