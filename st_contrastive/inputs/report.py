"""What a data set looks like to a model, said before training."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase

from st_contrastive._checks import require_room
from st_contrastive.inputs._tables import Source, read_table, text_column, text_columns
from st_contrastive.inputs.readers import strip

_SAMPLE, _STREAMED = 10_000, 1_000
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")


@dataclass(frozen=True)
class DataReport:
    """What :func:`describe` finds; ``str`` gives it in four lines."""

    rows: int | None  #: of the source; None of a stream
    column: str | None  #: that was read, where the source names it
    texts: int  #: to train on
    faults: dict[str, int]  #: number of rows that are empty, repeated, unpaired
    left_out: bool  #: whether these are left out
    sampled: int  #: texts that were tokenised
    longer: int  #: of them, those with more than ``limit`` tokens
    limit: int | None  #: the model's ``max_seq_length``
    cut: float  #: the share of the sample's tokens beyond the limit
    with_tags: int  #: of the sample, texts with HTML tags
    examples: tuple[str, ...]  #: the first, the middle and the last text

    def __str__(self) -> str:
        column = f" from the column {self.column!r}" if self.column else ""
        faults = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.items() if count) or "none"
        if faults != "none" and not self.left_out:
            faults += "; still there: load_sentences leaves them out"
        length = f"{self.longer:,} of {self.sampled:,} texts are longer than max_seq_length {self.limit}"
        if self.limit is None:
            length = "the model sets no limit"
        elif self.longer:
            length += f", which cuts away {self.cut:.1%} of the tokens"
        if self.cut > 0.1 and "repeated sentences" not in self.faults:
            length += '; split="sentences" keeps them'
        if self.with_tags:
            length += f"; {self.with_tags:,} hold HTML tags"
        examples = " | ".join(repr(text if len(text) <= 80 else text[:77] + "...") for text in self.examples)
        rows = f"{self.rows or 0:,} read{column}, {self.texts:,} texts to train on"
        if self.rows is None:
            rows, faults = f"a stream, whose first {self.texts:,} texts are looked at", "said when the stream ends"
        return f"Rows: {rows}.\nLeft out: {faults}.\nLength: {length}.\nExamples: {examples}"


def describe(dataset: Source, model: Any, *, prompt: str | None = None) -> DataReport:
    """Rows read and left out, texts too long for the model, and three examples.

    Lengths are those of at most 10,000 texts, evenly spaced, with the prompt and special tokens. Of a stream, its first
    1,000 texts are looked at.

    Args:
        dataset: what :func:`load_sentences` or a builder returns, a Dataset with one column of text or a column
            ``sentence``, or a sequence of strings.
        model: the SentenceTransformer to train.
        prompt: the text that training puts before each sentence.

    Raises:
        ValueError: the prompt leaves no room for a text.
    """
    limit = _limit(model, prompt)
    table = read_table(dataset)
    column = "sentence" if "sentence" in text_columns(table) else text_column(text_columns(table), None, "dataset")
    streamed = isinstance(table, IterableDataset)
    texts = [row[column] for row in islice(table, _STREAMED)] if streamed else table[column]
    if not len(texts):
        raise ValueError("dataset has no row.")
    noted = _noted(table)
    rows, source_column = noted.pop("rows", None if streamed else len(texts)), noted.pop("column", None)
    sample = [text or "" for text in texts[:: -(-len(texts) // _SAMPLE)]]
    lengths = [] if limit is None else _lengths(model, sample, prompt)
    beyond = [length - limit for length in lengths if limit is not None and length > limit]
    cut = sum(beyond) / max(1, sum(lengths))
    with_tags = sum(bool(_TAG.search(text)) for text in sample)
    examples = tuple(texts[place] or "" for place in sorted({0, len(texts) // 2, len(texts) - 1}))
    faults = noted or _faults(texts)
    return DataReport(
        rows, source_column, len(texts), faults, bool(noted), len(sample), len(beyond), limit, cut, with_tags, examples
    )


def _limit(model: Any, prompt: str | None) -> int | None:
    """The model's max_seq_length, if it has one and a tokenizer that counts; checked against the prompt."""
    limit = getattr(model, "max_seq_length", None)
    if not isinstance(limit, int) or not isinstance(getattr(model, "tokenizer", None), PreTrainedTokenizerBase):
        return None
    if prompt:
        require_room(prompt, _lengths(model, [""], prompt)[0], limit)
    return limit


def _lengths(model: Any, texts: list[str], prompt: str | None) -> list[int]:
    texts = [(prompt or "") + text for text in texts]
    return [len(ids) for ids in model.tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]]


def _noted(table: Any) -> dict[str, Any]:
    """What a reader of this package noted in the Dataset."""
    try:
        noted = json.loads(table.info.description)
    except (TypeError, ValueError):
        return {}
    return noted if isinstance(noted, dict) and "rows" in noted else {}


def _faults(texts: Sequence[str | None]) -> dict[str, int]:
    visible = [text for text in map(strip, texts) if text]
    return {"empty": len(texts) - len(visible), "repeated": len(visible) - len(set(visible))}
