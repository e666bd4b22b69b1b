"""Builders of training data: Datasets for the Trainer, and InputExamples for ``model.fit``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

from datasets import Dataset, Features, List, Value
from datasets.fingerprint import generate_random_fingerprint
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive._checks import require_texts, warn
from st_contrastive.inputs.row_filter import get_row_counts, set_row_counts
from st_contrastive.inputs.tables import columns_read, plain

#: Strings, or a Dataset with the column ``sentence``.
Sentences: TypeAlias = Iterable[str] | Dataset
#: A column of texts, or a function that makes one text from a sentence and a random generator.
Second: TypeAlias = Iterable[str] | Callable[[str, random.Random], str]


def text_dataset(sentences: Sentences, other: Second | None = None, *, seed: int = 42) -> Dataset:
    """A Dataset for the Trainer with the column ``sentence`` and, if there is a second text, ``other``.

    A function is called once for each sentence, so its texts are the same in each epoch. If the sentences are a Dataset
    on disk, the texts are stored on disk, too.

    Args:
        sentences: the sentences, or a Dataset with the column ``sentence`` and optionally the second column.
        other: another version of each sentence, for SimCSELoss and MomentumContrastLoss; or a function that creates it.
            Without it, only dropout makes the two views differ.
        seed: seeds, together with the row number, the random generator that is passed to the function.

    Example:
        >>> text_dataset(["A cat sleeps."], lambda text, rng: text + " Sleeps.")[0]
        {'sentence': 'A cat sleeps.', 'other': 'A cat sleeps. Sleeps.'}
    """
    return _data(sentences, "other", other, seed)


def conisi_dataset(sentences: Sentences, constructed: Second | None = None, *, seed: int = 42) -> Dataset:
    """Like :func:`text_dataset`, with the column ``constructed``, for ConIsILoss with ``strategy="given"``.

    Args:
        constructed: the constructed sentence for each sentence, or a function that creates it, such as
            ``AntonymReplacement()`` (ConIsI-o2). If it equals its sentence, the loss uses another sentence of the
            batch. If this is true of most rows, a warning says so.
    """
    data = _data(sentences, "constructed", constructed, seed)
    if "constructed" in columns_read(data):
        equal = sum(map(str.__eq__, iter_texts(data), iter_texts(data, "constructed")))
        if equal > 0.6 * len(data):  # a third of English sentences contain no word with an antonym
            warn(
                f"{equal:,} of {len(data):,} constructed sentences equal their sentence. For these, the loss uses "
                "another sentence of the batch. Antonyms are only known for English words."
            )
    return data


def twins_dataset(sentences: Sentences, translations: Iterable[str] | None = None, *, fraternal: Any = None) -> Dataset:
    """Like :func:`text_dataset`, with the column ``translation`` or, with ``fraternal``, its token ids as ``label``.

    Args:
        sentences: as for :func:`text_dataset`, or the Dataset that :func:`load_translations` returns.
        translations: the translation of each sentence, if ``sentences`` has no such column. Without translations, only
            identical twins and the queue are trained.
        fraternal: the FraternalEmbedding of the loss. It tokenizes the translations once, here. With None, the model's
            tokenizer tokenizes them during training.
    """
    data = _data(sentences, "translation", translations)
    if fraternal is None:
        return data
    if "translation" not in columns_read(data):
        raise ValueError("fraternal needs translations, but there are none. Pass translations, or remove fraternal.")
    data = plain(data)
    labelled = data.map(
        lambda batch: {"label": fraternal.encode_labels(batch["translation"])},
        features=Features({"sentence": data.features["sentence"], "label": List(Value("int32"))}),
        remove_columns="translation", batched=True, load_from_cache_file=False, desc="tokenize the translations",
        new_fingerprint=generate_random_fingerprint(),  # a hash of the function would include the fraternal embeddings
    )  # fmt: skip
    return set_row_counts(labelled, get_row_counts(data))


def input_examples(dataset: Dataset) -> list[InputExample]:
    """The rows of a Dataset as InputExamples for ``model.fit``. If there is a column ``label``, it sets their label.

    Example:
        >>> input_examples(text_dataset(["A cat sleeps."], ["It rains."]))[0].texts
        ['A cat sleeps.', 'It rains.']
    """
    examples = []
    for batch in plain(dataset).iter(1000):
        labels = batch.pop("label", repeat(0))
        rows = zip(*batch.values(), strict=True)
        examples += [InputExample(texts=list(texts), label=label) for texts, label in zip(rows, labels, strict=False)]
    return examples


def iter_texts(sentences: Sentences, column: str = "sentence") -> Iterator[str]:
    """Iterate over the sentences, or the texts of another column, and check each one."""
    name = "sentences" if column == "sentence" else column
    if not isinstance(sentences, Dataset):
        return require_texts(name, sentences)
    shown = _select(sentences, [column])
    return require_texts(name, (text for batch in shown.iter(1000) for text in batch[column]))


def _select(data: Dataset, columns: list[str]) -> Dataset:
    """Select columns of a Dataset. A transform (``set_transform``) is kept, and runs in each epoch."""
    if data.format["type"] != "custom":
        return data.with_format(None).select_columns(columns)
    transform = data.format["format_kwargs"]["transform"]
    return data.with_transform(partial(_transform, transform=transform, columns=columns))


def _transform(batch: dict[str, Any], *, transform: Any, columns: list[str]) -> dict[str, Any]:
    rows = transform(batch)
    if missing := [column for column in columns if column not in rows]:
        raise ValueError(
            f"{missing[0]!r} is not among the columns that the Dataset's transform returns: {', '.join(rows)}."
        )
    return {column: rows[column] for column in columns}


def _data(sentences: Sentences, name: str, second: Second | None, seed: int = 0) -> Dataset:
    """Build the Dataset and check every text. Empty texts cause a warning, because a loss would train on them."""
    texts = iter_texts(sentences)
    if isinstance(sentences, Dataset):
        has_second = second is None and name in columns_read(sentences)
        data = _select(sentences, ["sentence", name] if has_second else ["sentence"])
        data = data if second is None else plain(data)
    else:
        data = Dataset.from_dict({"sentence": list(texts)})
    if callable(second):
        make = partial(_create_texts, name=name, second=second, seed=seed)
        options = {"with_indices": True, "batched": True, "load_from_cache_file": False, "desc": f"make {name}"}
        data = data.map(make, features=Features({**data.features, name: Value("string")}), **options)
    elif second is not None:
        data = data.add_column(name, list(require_texts(name, second)))
    rows = zip(*(iter_texts(data, column) for column in columns_read(data)), strict=True)
    empty = [index for index, row in enumerate(rows) if not all(map(str.strip, row))]
    if empty:
        warn(f"{len(empty):,} of {len(data):,} rows have an empty text (first: row {empty[0]}).")
    return set_row_counts(data, get_row_counts(sentences))


def _create_texts(
    batch: dict[str, list[str]], rows: list[int], *, name: str, second: Any, seed: int
) -> dict[str, list[str]]:
    sentences = require_texts("sentences", batch["sentence"], start=rows[0])
    texts = (second(text, random.Random(f"{seed} {row}")) for row, text in zip(rows, sentences, strict=True))
    return {name: list(require_texts(name, texts, start=rows[0]))}
