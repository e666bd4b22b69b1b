"""Splits texts into words and joins them again."""

from __future__ import annotations

import re

#: Characters of scripts without spaces, and their punctuation.
_IDEOGRAPH = (
    "\u2e80-\u2fdf\u3001-\u303f\uff01-\uff60\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
_PIECE = re.compile(rf"(\s*)([{_IDEOGRAPH}]|[^\s{_IDEOGRAPH}]+)")
_IS_IDEOGRAPH = re.compile(f"[{_IDEOGRAPH}]")
#: Punctuation, a word of the letters a to z, punctuation. Not parts of addresses, words with a hyphen or an apostrophe,
#: or letters under a combining accent or before a soft hyphen.
_CORE = re.compile(r"([^\w#@/\\]*)([A-Za-z]+)(?![\u0300-\u036f\u00ad])([^\w@/\\]*)")


def split(text: str) -> list[tuple[str, str]]:
    """The words, each after its white space. Words end at white space; a Chinese or Japanese character is a word."""
    return _PIECE.findall(text.rstrip())  # white space that no word follows would take quadratic time


def core(word: str) -> tuple[str, str, str]:
    """The punctuation before a word, the word, the punctuation after it; the word is "" if it is no plain one."""
    match = _CORE.fullmatch(word)
    return (match[1], match[2], match[3]) if match else (word, "", "")


def join(pieces: list[tuple[str, str]]) -> str:
    """The text of these pieces, with a space where two words would become one."""
    out: list[str] = []
    for space, word in pieces:
        if out and not space and not _IS_IDEOGRAPH.match(word) and not _IS_IDEOGRAPH.match(out[-1]):
            space = " "
        out += [space if out else "", word]
    return "".join(out)


def space_before(word: str) -> str:
    """The white space to put before an added word."""
    return "" if _IS_IDEOGRAPH.match(word) else " "
