"""What a data set looks like to a model, said before training."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from st_contrastive._checks import require_room, warn
from st_contrastive.inputs._tables import Source, read_table, text_column, text_columns
from st_contrastive.inputs.readers import RowFilter

#: Texts of a column that are tokenised at most, their characters at most, and the rows that are read of a stream.
_SAMPLE, _CHARACTERS, _STREAMED = 10_000, 5_000_000, 1_000
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")


@dataclass(frozen=True)
class ColumnReport:
    """What :func:`describe` finds in a column of texts; ``str`` gives it in one line."""

    name: str
    texts: int
    sampled: int  #: texts that were tokenised, evenly spaced
    longer: int  #: of them, those with more than ``limit`` tokens
    limit: int | None  #: tokens that are read of a text
    cut: float  #: the share of their tokens beyond the limit
    with_tags: int  #: of them, texts with HTML tags

    def __str__(self) -> str:
        if self.limit is None:
            line = "the model sets no limit"
        else:
            texts = "sampled texts" if self.sampled < self.texts else "texts"
            line = f"{self.longer:,} of {self.sampled:,} {texts} are longer than {self.limit} tokens"
            line += f", which cuts away {self.cut:.1%} of the tokens" if self.longer else ""
        return line + (f"; {self.with_tags:,} of {self.sampled:,} hold HTML tags" if self.with_tags else "")


@dataclass(frozen=True)
class DataReport:
    """What :func:`describe` finds; ``str`` gives it in a few lines."""

    rows: int  #: of the source
    source_columns: tuple[str, ...]  #: that were read, where the source names them
    texts: int  #: or pairs, to train on
    faults: dict[str, int]  #: number of rows that are empty, repeated, of equal texts
    left_out: bool  #: whether these are left out
    columns: tuple[ColumnReport, ...]  #: of texts
    examples: tuple[tuple[str, ...], ...]  #: the first, the middle and the last row

    def __str__(self) -> str:
        faults = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.items() if count) or "none"
        if faults != "none" and not self.left_out:
            faults += "; still there: load_sentences and load_pairs leave them out"
        what = {1: "texts", 2: "pairs"}.get(len(self.columns), "rows")
        source = f" from {', '.join(map(repr, self.source_columns))}" if self.source_columns else ""
        report = f"Rows: {self.rows:,} read{source}, {self.texts:,} {what} to train on.\nLeft out: {faults}."
        for column in self.columns:
            of = f" of {column.name!r}" if len(self.columns) > 1 else ""
            whole = of or column.cut <= 0.1 or "repeated sentences" in self.faults
            keeps = "" if whole else '; segment="sentences" reads the whole texts'
            report += f"\nLength{of}: {column}{keeps}."
        shown = [[text if len(text) <= 80 else text[:77] + "..." for text in row] for row in self.examples]
        return report + "\nExamples: " + " | ".join(" / ".join(map(repr, row)) for row in shown)


def describe(dataset: Source, model: Any, *, prompt: str | None = None, max_length: int | None = None) -> DataReport:
    """Rows read and left out, texts too long for the model, and three examples.

    Lengths and HTML tags are those of at most 10,000 texts of a column and 5 million characters, evenly spaced; the
    report says so. Lengths count the prompt and special tokens.

    Args:
        dataset: what :func:`load_sentences`, :func:`load_pairs` or a builder returns, a Dataset with columns of text,
            or a sequence of strings.
        model: the SentenceTransformer to train.
        prompt: the text that training puts before each text.
        max_length: the tokens that training reads of a text; None for the model's ``max_seq_length``.
    """
    limit = getattr(model, "max_seq_length", None) if max_length is None else max_length
    if not isinstance(limit, int) or not isinstance(getattr(model, "tokenizer", None), PreTrainedTokenizerBase):
        limit = None
    elif prompt:
        require_room(prompt, _lengths(model, [""], prompt)[0], limit)
    table = read_table(dataset)
    names = text_columns(table) or [text_column([], None, "dataset")]
    if isinstance(table, IterableDataset):
        table = Dataset.from_list(list(islice(table, _STREAMED)))
        warn(f"dataset is a stream: the report is of its first {len(table):,} rows.")
    if not len(table):
        raise ValueError("dataset has no row.")
    description = table.info.description or ""
    noted = json.loads(description) if description.startswith('{"rows":') else {}  # by a reader of this package
    rows, source_columns = noted.pop("rows", len(table)), tuple(noted.pop("columns", ()))
    shown = source_columns if len(source_columns) == len(names) else names
    columns = [_column(own, table[name], model, limit, prompt) for own, name in zip(shown, names, strict=True)]
    places = sorted({0, len(table) // 2, len(table) - 1})
    examples = tuple(tuple(table[place][name] or "" for name in names) for place in places)
    faults = noted
    if not noted:  # what a reader would leave out
        cleaning = RowFilter("dataset", names, tuple(names))
        for batch in table.iter(1000):
            cleaning(batch)
        faults = {kind: count for kind, count in cleaning.counts.items() if kind != "rows"}
    return DataReport(rows, source_columns, len(table), faults, bool(noted), tuple(columns), examples)


def _column(name: str, texts: Any, model: Any, limit: int | None, prompt: str | None) -> ColumnReport:
    sample = [text or "" for text in texts[:: -(-len(texts) // _SAMPLE)]]
    sample = sample[:: -(-sum(map(len, sample)) // _CHARACTERS) or 1]
    lengths = [] if limit is None else _lengths(model, sample, prompt)
    beyond = [length - limit for length in lengths if limit is not None and length > limit]
    cut, with_tags = sum(beyond) / max(1, sum(lengths)), sum(bool(_TAG.search(text)) for text in sample)
    return ColumnReport(name, len(texts), len(sample), len(beyond), limit, cut, with_tags)


def _lengths(model: Any, texts: list[str], prompt: str | None) -> list[int]:
    texts = [(prompt or "") + text for text in texts]
    return [len(ids) for ids in model.tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]]
