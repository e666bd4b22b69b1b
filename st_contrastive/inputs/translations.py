"""Sentences with their translations from any source."""

from __future__ import annotations

import json
import os

from datasets import Dataset, Features, Value

from st_contrastive._checks import require_languages
from st_contrastive.inputs._tables import Source, read_table, text_columns
from st_contrastive.inputs.sentences import strip

_COLUMNS = ("sentence", "translation")


def load_translations(source: Source, *, languages: tuple[str, str] = ("en", "de")) -> Dataset:
    """A Dataset with the columns ``sentence`` and ``translation``.

    White space at both ends of a text is removed. Rows without one of the two are left out and counted;
    :func:`describe` shows the count.

    Args:
        source: as for :func:`load_sentences`, of pairs. A .tsv of two columns needs no heading; ``paste`` makes one of
            two text files with as many lines.
        languages: the columns of the sentence and of the translation, which may be fields under ``translation``, as in
            data sets of the hub. A table with the columns ``sentence`` and ``translation`` needs none.

    Raises:
        OSError, ValueError: the source can't be read, lacks a column, or no row has both texts.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.tsv"
        >>> _ = path.write_text("A cat sleeps.\\tEine Katze schläft.\\nIt rains.\\tEs regnet.\\n", encoding="utf-8")
        >>> load_translations(path)["translation"][:]
        ['Eine Katze schläft.', 'Es regnet.']
    """
    require_languages(languages)
    name = str(source) if isinstance(source, (str, os.PathLike)) else "source"
    table = read_table(source, pair=languages)
    if not isinstance(table, Dataset):
        raise TypeError(f"source must be read whole, got a {type(table).__name__}.")
    table = table.flatten()
    first, second = _fields(table, languages, name)
    table = table.map(
        lambda batch: {"sentence": list(map(strip, batch[first])), "translation": list(map(strip, batch[second]))},
        batched=True,
        remove_columns=table.column_names,
        features=Features({column: Value("string") for column in _COLUMNS}),
    )
    pairs = table.filter(lambda batch: [bool(a and b) for a, b in zip(*batch.values(), strict=True)], batched=True)
    if not len(pairs):
        raise ValueError(f"{name}: none of {len(table):,} rows has both {first!r} and {second!r}.")
    pairs.info.description = json.dumps({"rows": len(table), "unpaired": len(table) - len(pairs)})
    return pairs


def _fields(table: Dataset, languages: tuple[str, str], name: str) -> tuple[str, str]:
    """The columns of the sentence and of the translation."""
    columns = text_columns(table)
    nested = tuple(f"translation.{language}" for language in languages)
    for first, second in (languages, nested, _COLUMNS):
        if first in columns and second in columns:
            return first, second
    known = ", ".join(column.removeprefix("translation.") for column in columns) or "(none)"
    raise ValueError(
        f"languages={languages!r}: {name} has the text columns {known}. Name the sentence's and the translation's; a "
        "text file of pairs needs a name that ends in .tsv."
    )
