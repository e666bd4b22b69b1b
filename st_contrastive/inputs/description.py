"""Reports how a model will read a data set, before training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from st_contrastive._checks import warn
from st_contrastive._tokenizers import keep_settings
from st_contrastive.inputs.faults import Fault, find_ids, find_repeats, find_same_tokens, find_unrelated_columns
from st_contrastive.inputs.row_filter import RowFilter, get_row_counts
from st_contrastive.inputs.tables import Source, read_table, text_column, text_columns

#: How many texts of a column are tokenized, how many characters of them, and how many rows of a stream are read.
_SAMPLE, _CHARACTERS, _STREAMED = 10_000, 5_000_000, 1_000
#: An HTML tag, but not "Vec<String>" in source code.
_TAG = re.compile(r"(?i)</?(a|b|br|div|em|h\d|i|img|li|ol|p|span|strong|su[bp]|table|t[dhr]|ul)\b[^<>]*>")


@dataclass(frozen=True)
class ColumnReport:
    """Findings of :func:`describe` about one column of texts. ``str`` formats them as one line."""

    name: str
    texts: int
    sampled: int  #: number of texts that were tokenized, evenly spaced
    longer: int  #: number of tokenized texts with more than ``limit`` tokens
    limit: int | None  #: number of tokens that the model reads of a text
    cut: float  #: fraction of the tokens that lie beyond the limit
    unknown: float  #: fraction of the tokens that the tokenizer does not know
    unknown_text: str  #: a text with such tokens
    alike: int  #: number of tokenized texts that differ from an earlier text, but not in their tokens
    alike_texts: tuple[str, ...]  #: an earlier text, and a later one with the same tokens
    oddities: dict[str, int]  #: number of odd texts by kind, such as "hold HTML tags"

    def __str__(self) -> str:
        of = f"of {self.sampled:,}"
        if self.limit is None:
            parts = ["the model has no limit"]
        else:
            texts = "sampled texts" if self.sampled < self.texts else "texts"
            cut = f", and {self.cut:.1%} of the tokens are cut" if self.longer else ""
            parts = [f"{self.longer:,} {of} {texts} are longer than {self.limit} tokens{cut}"]
        if self.unknown >= 0.001:
            parts.append(f"{self.unknown:.1%} of the tokens are unknown to the tokenizer, as in {self.unknown_text!r}")
        if self.alike:
            first, other = self.alike_texts
            parts.append(f"{self.alike:,} {of} have the same tokens as another text, such as {first!r} and {other!r}")
        parts += [f"{count:,} {of} {what}" for what, count in self.oddities.items() if count]
        return "; ".join(parts)


@dataclass(frozen=True)
class DataReport:
    """Findings of :func:`describe` about a data set. ``str`` formats them as a few lines."""

    rows: int  #: number of rows in the source
    source_columns: tuple[str, ...]  #: names of the columns that were read, if the source has names
    texts: int  #: number of texts or pairs to train on
    faults: dict[str, int]  #: number of rows by fault: empty, repeated or of equal texts
    is_filtered: bool  #: whether the rows with these faults were dropped
    columns: tuple[ColumnReport, ...]  #: one report per column of texts
    examples: tuple[tuple[str, ...], ...]  #: the first, the middle and the last row
    unrelated: Fault | None = None  #: set if the texts of two columns share too few words to belong together
    model_limit: int | None = None  #: number of tokens that the saved model reads of a text

    def __str__(self) -> str:
        faults = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.items() if count) or "none"
        dropped = f"Dropped: {faults}."
        if faults != "none" and not self.is_filtered:
            dropped = f"Still there: {faults}. load_sentences and load_pairs drop such rows."
        what = {1: "texts", 2: "pairs"}.get(len(self.columns), "rows")
        source = f" from {', '.join(map(repr, self.source_columns))}" if self.source_columns else ""
        report = f"Rows: {self.rows:,} read{source}, {self.texts:,} {what} to train on.\n{dropped}"
        for column in self.columns:
            of = f" of {column.name!r}" if len(self.columns) > 1 else ""
            is_fine = of or column.cut <= 0.1 or "repeated sentences" in self.faults
            is_model_limit = column.limit is None or self.model_limit is None or column.limit >= self.model_limit
            setting = "model.max_seq_length, if its encoder allows it," if is_model_limit else "max_length"
            advice = "" if is_fine else f"; raise {setting} to read more, or cut documents into sentences (segment)"
            report += f"\nLength{of}: {column}{advice}."
        limits = [column.limit for column in self.columns if column.longer and column.limit is not None]
        if limits and self.model_limit is not None and limits[0] < self.model_limit:
            report += f"\nOnly training cuts them: the saved model reads {self.model_limit} tokens."
        if self.unrelated:
            report += (
                f"\nPairs: the texts of {' and '.join(repr(column.name) for column in self.columns)} share no more "
                f"words within a row than with another row. {self.unrelated.remedy}"
            )
        shown = [[text if len(text) <= 80 else text[:77] + "..." for text in row] for row in self.examples]
        return report + "\nExamples: " + " | ".join(" / ".join(map(repr, row)) for row in shown)


def describe(
    dataset: Source, model: Any, *, prompt: str | Mapping[str, str] | None = None, max_length: int | None = None
) -> DataReport:
    """Report rows read and dropped, texts that the model cuts or can't tell apart, and three examples.

    At most 10,000 texts and 5 million characters of a column, evenly spaced, are examined; the report says so. Lengths
    include the prompt and special tokens.

    Args:
        dataset: a Dataset from :func:`load_sentences`, :func:`load_pairs` or a builder, any other Dataset with columns
            of text, or a sequence of strings.
        model: the SentenceTransformer to train.
        prompt: text that training puts before each text of the data set, or before those of each column, by name.
        max_length: number of tokens that training reads of a text; None for the model's ``max_seq_length``.
    """
    model_limit = getattr(model, "max_seq_length", None)
    limit = model_limit if max_length is None else max_length
    if not isinstance(limit, int) or not isinstance(getattr(model, "tokenizer", None), PreTrainedTokenizerBase):
        limit = None
    table = read_table(dataset)
    names = text_columns(table) or [text_column(table, None, "dataset")]
    if isinstance(table, IterableDataset):
        table = Dataset.from_list(list(islice(table, _STREAMED)))
        warn(f"dataset is a stream, so the report covers only its first {len(table):,} rows.")
    if not len(table):
        raise ValueError("dataset has no rows.")
    counts = get_row_counts(table)
    is_filtered = counts is not None
    if counts is None:  # count the rows that a reader would drop
        row_filter = RowFilter("dataset", names, tuple(names))
        for batch in table.iter(1000):
            row_filter(batch)
        counts = row_filter.row_counts()
    shown = counts.columns if len(counts.columns) == len(names) else names
    first = _sample(table[names[0]])
    prompts = prompt if isinstance(prompt, Mapping) else dict.fromkeys(names, prompt)
    columns = [
        _column(label, table[name], first if name != names[0] else [], model, limit, prompts.get(name))
        for label, name in zip(shown, names, strict=True)
    ]
    rows = sorted({0, len(table) // 2, len(table) - 1})
    examples = tuple(tuple(table[row][name] or "" for name in names) for row in rows)
    faults = dict(counts.dropped)
    second = _sample(table[names[1]]) if len(names) == 2 else []
    unrelated = find_unrelated_columns(names[0], first, second) if second else None
    return DataReport(
        counts.rows, counts.columns, len(table), faults, is_filtered, tuple(columns), examples, unrelated, model_limit
    )


def _sample(texts: Any) -> list[str]:
    return [text or "" for text in texts[:: -(-len(texts) // _SAMPLE)]]


def _column(name: str, texts: Any, first: list[str], model: Any, limit: int | None, prompt: str | None) -> ColumnReport:
    sample = _sample(texts)
    step = -(-sum(map(len, sample)) // _CHARACTERS) or 1
    sample, first = sample[::step], first[::step]
    pairs = [*zip(sample, first, strict=True)] if first else []
    longer_than_first = sum(text != one and bool(one) and text.startswith(one) for text, one in pairs)
    same_as_first = sum(text == one for text, one in pairs)
    tokens = [] if limit is None else _tokenize(model, sample, prompt)
    lengths = [len(ids) for ids in tokens]
    beyond = [length - limit for length in lengths if limit is not None and length > limit]
    special = len(_tokenize(model, [""], None)[0]) if tokens else 0
    unknown = [ids.count(model.tokenizer.unk_token_id) for ids in tokens]
    read = [tuple(ids if limit is None or len(ids) <= limit else ids[: limit - 1]) for ids in tokens]
    same = find_same_tokens(name, sample, read) if read else None
    return ColumnReport(
        name,
        texts=len(texts),
        sampled=len(sample),
        longer=len(beyond),
        limit=limit,
        cut=sum(beyond) / max(1, sum(lengths)),
        unknown=sum(unknown) / max(1, sum(lengths) - special * len(lengths)),
        unknown_text=f"{sample[unknown.index(max(unknown))]:.40}" if any(unknown) else "",
        alike=_count(same),
        alike_texts=tuple(f"{text:.40}" for text in same.example) if same else (),
        oddities={
            "hold HTML tags": sum(bool(_TAG.search(text)) for text in sample),
            "look like ids, not texts": _count(find_ids(name, sample)),
            "repeat another text": _count(find_repeats(name, sample)),
            "begin with the first column's text": longer_than_first,
            "equal the first column's text": same_as_first,
        },
    )


def _count(fault: Fault | None) -> int:
    return fault.count if fault else 0


def _tokenize(model: Any, texts: list[str], prompt: str | None) -> list[list[int]]:
    texts = [(prompt or "") + text for text in texts]
    with keep_settings(model.tokenizer):
        tokens: list[list[int]] = model.tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]
    return tokens
