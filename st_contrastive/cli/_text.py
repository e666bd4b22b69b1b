"""Plain text in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(rows: Iterable[Sequence[str]], gap: int = 2) -> str:
    """Rows with their cells below each other, each column as wide as its widest cell.

    Example:
        >>> print(columns([("a", "one"), ("long", "two")]))
        a     one
        long  two
    """
    table = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) + gap for column in zip(*table, strict=True)]
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )
