"""Rows of text, checked as they come, and the examples made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set, Sized

from sentence_transformers.sentence_transformer.readers import InputExample


def texts(name: str, values: Iterable[str]) -> Iterator[str]:
    """``values``, each checked to be a string.

    Raises:
        TypeError: it is one string, not an iterable, or holds what is not a string; the first such row is named.
        ValueError: it is empty, or a row holds half of a surrogate pair.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of strings, one a sentence, got {type(values).__name__}.")
    if isinstance(values, (Mapping, Set)) or hasattr(values, "columns") or hasattr(values, "column_names"):
        # What iterates over its keys, or in no order, would train on the wrong thing.
        raise TypeError(
            f"{name} is a {type(values).__name__}; give a sequence of strings, such as one column of it: "
            "table['sentence']."
        )
    return _checked(name, values)


def _checked(name: str, values: Iterable[str]) -> Iterator[str]:
    index = -1
    for index, row in enumerate(values):
        if not isinstance(row, str):
            cure = " Give one column of it, such as dataset['sentence']." if isinstance(row, dict) else ""
            raise TypeError(f"{name}[{index}] must be a string, got {type(row).__name__}: {row!r:.80}.{cure}")
        require_whole(f"{name}[{index}]", row)
        yield row
    if index < 0:
        raise ValueError(f"{name} is empty; there is nothing to train on.")


def require_whole(name: str, text: str) -> None:
    """Refuse half of a surrogate pair: neither a tokenizer nor a Dataset takes it."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{name} holds half of a surrogate pair, which no tokenizer takes: {text!r:.80}. Mend it with "
            "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')."
        ) from None


def rows(**given: Iterable[str] | None) -> Iterator[tuple[str, ...]]:
    """The given columns row by row, checked; None is left out.

    Raises:
        TypeError, ValueError: as in :func:`texts`, or the lengths differ.
    """
    columns = {name: values for name, values in given.items() if values is not None}
    # Those of the arguments that are no columns at all are told apart at once.
    streams = {name: texts(name, values) for name, values in columns.items()}
    lengths = {name: len(values) for name, values in columns.items() if isinstance(values, Sized)}
    if len(lengths) == len(columns) and len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"The columns must be equally long, row for row: {said}.")
    return _together(streams)


def _together(streams: dict[str, Iterator[str]]) -> Iterator[tuple[str, ...]]:
    count = 0
    while True:
        row = {name: next(stream, None) for name, stream in streams.items()}
        ended = [name for name, text in row.items() if text is None]
        if len(ended) == len(streams):
            return
        if ended:
            raise ValueError(f"The columns must be equally long, row for row: {ended[0]} ends after {count} rows.")
        count += 1
        yield tuple(text for text in row.values() if text is not None)


def examples(table: Iterable[tuple[str, ...]]) -> list[InputExample]:
    """One InputExample a row, its texts in the order of the columns."""
    return [InputExample(texts=list(row)) for row in table]
