"""Faults of texts, found by pure functions. Readers refuse or drop them, ``describe`` prints them, the trainer warns.

A function takes columns of texts, and sometimes the tokens that the model reads, and returns a :class:`Fault` or None.
The caller decides how many faults are too many.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

#: Placeholders that databases, pandas and spreadsheets write for a missing text.
PLACEHOLDERS = frozenset("NULL null None NaN nan NA <NA> N/A n/a #N/A".split())
#: A column with more distinct values than this is not a label, unless its name says so.
LABEL_VALUES = 3
#: Names of columns that say which pairs belong together.
LABEL_NAME = re.compile(
    r"(gold_?)?(labels?|scores?)|gold|qrels?|(is_?)?(duplicates?|paraphrases?|match|same|rel|relevant)|"
    r"(\w+_)?(sim|similarity|relatedness|relevance)(_score)?",
    re.IGNORECASE,
)
_NEGATIVE_LABEL = re.compile(
    r"0(\.0)?|-1(\.0)?|n|no|f|false|contradiction|different|unrelated|irrelevant|(non|not)[-_ ]\w+", re.IGNORECASE
)
Tokens = TypeVar("Tokens", bound=Hashable)
_ASCII_WORD = re.compile(r"[!-~]+")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+")
#: Two columns are judged only if at least this many rows are not ties, as :func:`related_share` counts them.
_JUDGED_PAIRS = 30
#: Two columns don't belong together if fewer of their pairs than this fraction share more words than by chance.
_RELATED = 0.6


@dataclass(frozen=True)
class Fault:
    """A fault of one or more texts.

    Attributes:
        kind: kind of fault, such as "ids" or "same tokens".
        column: column of the texts, "" for a fault of whole rows.
        count: number of texts or rows with the fault.
        example: one of these texts or rows; for texts with the same tokens, an earlier text and a later one.
        remedy: a sentence that says what to do.
    """

    kind: str
    column: str
    count: int
    example: tuple[str, ...]
    remedy: str


def strip(text: str | None) -> str:
    """The text without white space and byte-order marks at its ends; "" if nothing is visible, or for ``\\N``."""
    text = text.strip() if text else ""
    while text[:1] == "\ufeff" or text[-1:] == "\ufeff":
        text = text.strip("\ufeff").strip()
    if text[:1].isalnum():
        return text
    is_visible = any(character.isprintable() and not character.isspace() for character in text)
    return text if is_visible and text != "\\N" else ""  # databases write \N for a missing value


def present(text: str | None) -> str:
    """The text as :func:`strip` returns it; "" if it is a placeholder for a missing text."""
    text = strip(text)
    return "" if text in PLACEHOLDERS else text


def is_id(text: str) -> bool:
    """Whether a text is one word with a digit, or an address, such as "A-1207" or "https://example.org"."""
    return bool(_ASCII_WORD.fullmatch(text)) and (any(map(str.isdigit, text)) or "://" in text)


def is_negative_label(label: object) -> bool:
    """Whether a label of pairs may say that the texts don't belong together, such as 0, "no" or "contradiction"."""
    return bool(_NEGATIVE_LABEL.fullmatch(str(label)))


def find_empty(rows: Iterable[Sequence[str | None]]) -> Fault | None:
    """Rows in which a text is missing: empty, blank or a placeholder."""
    bad = [tuple(text or "" for text in row) for row in rows if not all(map(present, row))]
    remedy = "Drop these rows. st_contrastive.inputs.load_sentences and load_pairs do it."
    return _fault("empty", "", bad, len(bad), remedy)


def find_repeats(column: str, rows: Iterable[Hashable]) -> Fault | None:
    """Texts or rows that are equal to an earlier one."""
    counts = Counter(rows)
    bad = [row for row, count in counts.items() if count > 1]
    remedy = "Drop the repeats. st_contrastive.inputs.load_sentences and load_pairs do it."
    return _fault("repeated", column, [(f"{row}",) for row in bad[:1]], counts.total() - len(counts), remedy)


def find_shared_text(column: str, texts: Iterable[str]) -> Fault | None:
    """The text that most rows share. The rows must be distinct."""
    for text, count in Counter(filter(str.strip, texts)).most_common(1):
        remedy = "If it is a placeholder for a missing text, drop these rows."
        return _fault("shared text", column, [(text,)], count if count > 1 else 0, remedy)
    return None


def find_ids(column: str, texts: Iterable[str]) -> Fault | None:
    """Texts that are ids or addresses."""
    bad = [text for text in texts if is_id(text)]
    return _fault("ids", column, [(bad[0],)] if bad else [], len(bad), "If the column holds no texts, remove it.")


def find_same_tokens(column: str, texts: Iterable[str], tokens: Iterable[Hashable]) -> Fault | None:
    """Texts that differ from an earlier one, but not in the tokens that the model reads."""
    bad = [(earlier, text) for earlier, text, _ in texts_with_same_tokens(texts, tokens)]
    return _fault("same tokens", column, bad, len(bad), "Raise max_length, or use an encoder for these texts.")


def texts_with_same_tokens(texts: Iterable[str], tokens: Iterable[Tokens]) -> list[tuple[str, str, Tokens]]:
    """Texts that differ from an earlier one but not in their tokens, as (earlier text, this text, tokens)."""
    first: dict[Tokens, str] = {}
    found = [(first.setdefault(ids, text), text, ids) for text, ids in zip(texts, tokens, strict=True)]
    return [(earlier, text, ids) for earlier, text, ids in found if earlier != text]


def find_mixed_labels(column: str, values: Sequence[str]) -> Fault | None:
    """Different values in a column whose name says that it labels pairs."""
    if not LABEL_NAME.fullmatch(column) or len(values) < 2:
        return None
    remedy = "Keep the rows whose texts belong together, and remove the column. load_graded_pairs reads scores."
    return _fault("mixed labels", column, [tuple(values)], len(values), remedy)


def find_negative_labels(column: str, values: Sequence[str], rows: int) -> Fault | None:
    """Values such as 0 or "no" in a column that may say whether the texts of a row belong together."""
    can_be_label = LABEL_NAME.fullmatch(column) or 1 < len(values) <= LABEL_VALUES < rows
    bad = [value for value in values if is_negative_label(value)] if can_be_label else []
    remedy = "Remove the rows whose value says that their texts do not."
    return _fault("negative labels", column, [tuple(values)], len(bad), remedy)


def related_share(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Fraction of rows in which the first text shares more words with the second text than with the next row's.

    For unrelated columns it is about 0.5. Rare words count more, and ties are ignored. None if fewer than 30
    rows are not ties.
    """
    one, two = ([{*_WORD.findall(text.casefold())} for text in texts] for texts in (first, second))
    rarity = {word: 1 / count for word, count in Counter(word for words in two for word in words).items()}
    same_row = [sum(rarity[word] for word in a & b) for a, b in zip(one, two, strict=True)]
    next_row = [sum(rarity[word] for word in a & b) for a, b in zip(one, two[1:] + two[:1], strict=True)]
    judged = [a > b for a, b in zip(same_row, next_row, strict=True) if a != b]
    return sum(judged) / len(judged) if len(judged) >= _JUDGED_PAIRS else None


def find_unrelated_columns(column: str, first: Sequence[str], second: Sequence[str]) -> Fault | None:
    """Two columns whose texts don't belong together, for example because one of them was shuffled or sorted."""
    share = related_share(first, second)
    if share is None or share >= _RELATED:
        return None
    remedy = "Check that the two columns are in the same order. Training compares them again with the encoder."
    return _fault("unrelated", column, [(first[0], second[0])], len(first), remedy)


def _fault(kind: str, column: str, examples: Sequence[tuple[str, ...]], count: int, remedy: str) -> Fault | None:
    return Fault(kind, column, count, examples[0], remedy) if count else None
