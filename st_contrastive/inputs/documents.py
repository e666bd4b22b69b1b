"""Reads a collection of documents to search. Unlike training data, every row with text is kept as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from st_contrastive._arguments import checked
from st_contrastive.inputs.faults import present, strip
from st_contrastive.inputs.tables import (
    Source,
    read_flat_table,
    require_column,
    source_errors,
    source_name,
    split_columns,
    text_column,
)

#: Reasons why a row is not a document.
EMPTY, PLACEHOLDER = "empty", "placeholder"


@dataclass(frozen=True)
class Documents:
    """The documents of a collection, in the order of its rows. All sequences have one item per document.

    Attributes:
        rows: row numbers in the source, from 0.
        titles: text of the first of two columns, "" if it is missing; all "" if only one column was read.
        bodies: text of the last column, "" if it is missing.
        total: number of rows in the source.
        kept: values of the columns that were kept, by column.
        unused: number of rows that are not documents, by reason: "empty", or "placeholder" for a text such as "N/A".
    """

    rows: Sequence[int]
    titles: Sequence[str]
    bodies: Sequence[str]
    total: int
    unused: Mapping[str, int]
    kept: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def texts(self) -> list[str]:
        """Title and body of each document, separated by a blank line. If one is missing, only the other."""
        pairs = zip(self.titles, self.bodies, strict=True)
        return ["\n\n".join(dict.fromkeys(part for part in pair if part)) for pair in pairs]

    @property
    def note(self) -> str:
        """A sentence about the rows that are not documents, with reasons; "" if all are documents."""
        reasons = {EMPTY: "are empty", PLACEHOLDER: "hold only a placeholder such as 'N/A'"}
        found = " and ".join(f"{count:,} {reasons[kind]}" for kind, count in self.unused.items() if count)
        return f"{len(self):,} of {self.total:,} rows are documents; {found}." if found else ""


@checked
def load_documents(
    source: Source,
    *,
    columns: str | Sequence[str] | None = None,
    keep: str | Sequence[str] = (),
    split: str | None = None,
) -> Documents:
    """Read every row that has text as one document, with its row number. Use it for search and for evaluation.

    Unlike the readers of training data, this keeps repeated, untitled and short documents. White space at both ends
    of a text is removed. A cell with only a placeholder, such as "N/A" or "NULL", counts as empty.

    Args:
        source: as for :func:`load_sentences`.
        columns: the column of texts, or the columns of title and body, also as "title,body". None reads the only
            column of text.
        keep: other columns, such as an id, whose values stay with each document; also as "id,name".
        split: as for :func:`load_sentences`.

    Raises:
        OSError, ValueError: the source can't be read, or no row has text.

    Example:
        >>> documents = load_documents(["A cat sleeps.", "", "A cat sleeps."])
        >>> documents.rows, documents.unused
        ([0, 2], {'empty': 1, 'placeholder': 0})
    """
    names, others = split_columns(columns), split_columns(keep)
    if len(names) > 2 or len({*names}) < len(names):
        raise ValueError(f"columns must be one name, or two different ones (title and body), got {columns!r}.")
    name = source_name(source)
    if others and not names:  # of a CSV, only the named columns are read
        names = [text_column(read_flat_table(source, (), split=split), None, name)]
    table = read_flat_table(source, [*names, *others], split=split)
    names = [text_column(table, column, name) for column in names] or [text_column(table, None, name)]
    for column in others:
        require_column(table, column, name)
    kept: dict[str, list[Any]] = {column: [] for column in others}
    rows, titles, bodies, total, unused = [], [], [], 0, {EMPTY: 0, PLACEHOLDER: 0}
    with source_errors(name):
        for batch in table.iter(1000):
            for place, cells in enumerate(zip(*(batch[column] for column in names), strict=True)):
                texts = [*map(present, cells)]
                if any(texts):
                    for column in others:
                        kept[column].append(batch[column][place])
                    rows.append(total)
                    titles.append(texts[0] if len(texts) > 1 else "")
                    bodies.append(texts[-1])
                else:
                    unused[PLACEHOLDER if any(map(strip, cells)) else EMPTY] += 1
                total += 1
    if not rows:
        raise ValueError(f"{name}: none of {total:,} rows has text in {' or '.join(map(repr, names))}.")
    return Documents(rows, titles, bodies, total, unused, kept)
