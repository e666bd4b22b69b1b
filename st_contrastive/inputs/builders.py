"""Builders of training data: InputExamples for ``model.fit``, Datasets for the Trainer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from datasets import Dataset, Features, Value
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive._checks import require_texts, warn
from st_contrastive.inputs._tables import unformatted
from st_contrastive.inputs.readers import get_reading, set_reading

#: Strings, or a Dataset with the column ``sentence``.
Sentences: TypeAlias = Iterable[str] | Dataset
#: A column of texts, or a function that makes one text from a sentence and a random generator.
Second: TypeAlias = Iterable[str] | Callable[[str, random.Random], str]


def text_examples(sentences: Sentences, other: Second | None = None, *, seed: int = 42) -> list[InputExample]:
    """Examples for ``model.fit``, for all losses that need nothing but sentences.

    Args:
        sentences: the sentences, or a Dataset with the column ``sentence`` and perhaps the second one.
        other: another form of each sentence, for SimCSELoss and MomentumContrastLoss; or a function that makes it, such
            as ESimCSE's ``WordRepetition()``. Without it, dropout makes the two views differ.
        seed: with the row's number, seeds the random generator that the function gets.

    Example:
        >>> text_examples(["A cat sleeps."], lambda text, rng: text + " Sleeps.")[0].texts
        ['A cat sleeps.', 'A cat sleeps. Sleeps.']
    """
    return _examples(_data(sentences, "other", other, seed))


def text_dataset(sentences: Sentences, other: Second | None = None, *, seed: int = 42) -> Dataset:
    """A Dataset for the Trainer with the columns ``sentence`` and, if given, ``other``.

    The arguments are those of :func:`text_examples`. What a function makes of a Dataset that is on disk is on disk too.
    ``dataset.set_transform(lambda rows: {**rows, "other": [augment(text, rng) for text in rows["sentence"]]})`` makes
    it anew in each epoch.
    """
    return _data(sentences, "other", other, seed)


def conisi_examples(sentences: Sentences, constructed: Second | None = None, *, seed: int = 42) -> list[InputExample]:
    """Examples of ConIsILoss for ``model.fit``.

    The arguments are those of :func:`text_examples`, but for ``constructed``: for strategy "given", the constructed
    sentence of each, or a function that makes it, such as ``AntonymReplacement()`` (ConIsI-o2). If it equals its
    sentence, the loss takes another sentence of the batch. With None the loss constructs the sentences itself.
    """
    return _examples(_data(sentences, "constructed", constructed, seed))


def conisi_dataset(sentences: Sentences, constructed: Second | None = None, *, seed: int = 42) -> Dataset:
    """As :func:`text_dataset`, with the column ``constructed``; the arguments are those of :func:`conisi_examples`."""
    return _data(sentences, "constructed", constructed, seed)


def twins_examples(
    sentences: Sentences, translations: Iterable[str] | None = None, *, fraternal: Any = None
) -> list[InputExample]:
    """Examples of TwinsLoss for ``model.fit``.

    Args:
        sentences: as for :func:`text_examples`, or what :func:`load_translations` returns.
        translations: the translation of each sentence. None gives one column, for identical twins and the queue only.
        fraternal: the FraternalEmbedding of the loss. It tokenises the translations here, once, into the label of each
            example. With None they are a second text column, which the model's own tokenizer reads.
    """
    data = twins_dataset(sentences, translations, fraternal=fraternal)
    if fraternal is None:
        return _examples(data)
    labels: Iterable[Any] = map(np.array, data["label"])
    return [InputExample(texts=[text], label=label) for text, label in zip(data["sentence"], labels, strict=True)]


def twins_dataset(sentences: Sentences, translations: Iterable[str] | None = None, *, fraternal: Any = None) -> Dataset:
    """As :func:`text_dataset`, with the column ``translation`` or, with ``fraternal``, its token ids as ``label``.

    The arguments are those of :func:`twins_examples`.
    """
    data = _data(sentences, "translation", translations)
    if fraternal is None:
        return data
    if "translation" not in data.column_names:
        raise ValueError("fraternal reads translations, and there are none: give translations=..., or no fraternal.")
    batches = data.select_columns("translation").iter(1000)
    labels = [fraternal.encode_labels(batch["translation"]) for batch in batches]
    labelled = data.remove_columns("translation").add_column("label", list(np.concatenate(labels)))
    return set_reading(labelled, get_reading(data))


def iter_texts(sentences: Sentences, column: str = "sentence") -> Iterator[str]:
    """The sentences, or another column of theirs, checked one by one."""
    name = "sentences" if column == "sentence" else column
    if not isinstance(sentences, Dataset):
        return require_texts(name, sentences)
    batches = unformatted(sentences).select_columns(column).iter(1000)
    return require_texts(name, (text for batch in batches for text in batch[column]))


def _data(sentences: Sentences, name: str, second: Second | None, seed: int = 0) -> Dataset:
    """The columns. Every text is checked; empty ones, which a loss would take for sentences, are warned of."""
    texts = iter_texts(sentences)
    if isinstance(sentences, Dataset):
        has_second = second is None and name in sentences.column_names
        data = unformatted(sentences).select_columns(["sentence", name] if has_second else ["sentence"])
    else:
        data = Dataset.from_dict({"sentence": list(texts)})
    if callable(second):
        make = partial(_made, name=name, second=second, seed=seed)
        options = {"with_indices": True, "batched": True, "load_from_cache_file": False, "desc": f"make {name}"}
        data = data.map(make, features=Features({**data.features, name: Value("string")}), **options)
    elif second is not None:
        data = data.add_column(name, list(require_texts(name, second)))
    rows = zip(*(iter_texts(data, column) for column in data.column_names), strict=True)
    empty = [index for index, row in enumerate(rows) if not all(map(str.strip, row))]
    if empty:
        warn(f"{len(empty):,} of {len(data):,} rows have an empty text, the first of them row {empty[0]}.")
    return set_reading(data, get_reading(sentences))


def _made(batch: dict[str, list[str]], rows: list[int], *, name: str, second: Any, seed: int) -> dict[str, list[str]]:
    sentences = require_texts("sentences", batch["sentence"], start=rows[0])
    made = (second(text, random.Random(f"{seed} {row}")) for row, text in zip(rows, sentences, strict=True))
    return {name: list(require_texts(name, made, start=rows[0]))}


def _examples(data: Dataset) -> list[InputExample]:
    return [InputExample(texts=list(row)) for batch in data.iter(1000) for row in zip(*batch.values(), strict=True)]
