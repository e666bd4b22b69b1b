"""Builders of training data: InputExamples for ``model.fit``, Datasets for the Trainer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive._checks import require_count, require_texts, warn

#: Strings, or a Dataset with the column ``sentence``.
Sentences: TypeAlias = Iterable[str] | Dataset
#: A column of texts, or a function that makes one text from a sentence and a random generator.
Second: TypeAlias = Iterable[str] | Callable[[str, random.Random], str]


def text_examples(sentences: Sentences, other: Second | None = None, *, seed: int = 42) -> list[InputExample]:
    """Examples for ``model.fit``, for all losses that need nothing but sentences.

    Args:
        sentences: the sentences, or a Dataset with the column ``sentence``.
        other: another form of each sentence, for SimCSELoss and MomentumContrastLoss; or a function that makes it, such
            as ESimCSE's ``WordRepetition()``. Without it, dropout makes the two views differ.
        seed: with the row's number, seeds the random generator that the function gets.

    Raises:
        TypeError, ValueError: a row is not a string or holds half of a surrogate pair, or the columns differ in length.

    Example:
        >>> text_examples(["A cat sleeps."], lambda text, rng: text + " Sleeps.")[0].texts
        ['A cat sleeps.', 'A cat sleeps. Sleeps.']
    """
    return _examples(_columns(sentences, "other", other, seed))


def text_dataset(sentences: Sentences, other: Second | None = None, *, seed: int = 42) -> Dataset:
    """A Dataset for the Trainer, in memory, with the columns ``sentence`` and, if given, ``other``.

    The arguments are those of :func:`text_examples`. What does not fit into memory gets its column by ``Dataset.map``;
    ``dataset.set_transform(lambda rows: {**rows, "other": [augment(text, rng) for text in rows["sentence"]]})`` makes
    it anew in each epoch.
    """
    return _dataset(_columns(sentences, "other", other, seed), sentences)


def conisi_examples(sentences: Sentences, constructed: Second | None = None, *, seed: int = 42) -> list[InputExample]:
    """Examples of ConIsILoss for ``model.fit``.

    Args:
        sentences: as for :func:`text_examples`.
        constructed: for strategy "given", the constructed sentence of each, or a function that makes it, such as
            ``AntonymReplacement()`` (ConIsI-o2). If it equals its sentence, the loss takes another sentence of the
            batch. With None the loss constructs the sentences itself.
        seed: with the row's number, seeds the random generator that the function gets.
    """
    return _examples(_columns(sentences, "constructed", constructed, seed))


def conisi_dataset(sentences: Sentences, constructed: Second | None = None, *, seed: int = 42) -> Dataset:
    """As :func:`text_dataset`, with the column ``constructed``; the arguments are those of :func:`conisi_examples`."""
    return _dataset(_columns(sentences, "constructed", constructed, seed), sentences)


def twins_examples(
    sentences: Sentences, translations: Iterable[str] | None = None, *, fraternal: Any = None
) -> list[InputExample]:
    """Examples of TwinsLoss for ``model.fit``.

    Args:
        sentences: as for :func:`text_examples`; or what :func:`load_translations` returns, with the translations.
        translations: the translation of each sentence. None gives one column, for identical twins and the queue only.
        fraternal: the FraternalEmbedding of the loss. It tokenises the translations here, once, into the label of each
            example. With None they are a second text column, which the model's own tokenizer reads.
    """
    columns = _twins_columns(sentences, translations, fraternal)
    if fraternal is None:
        return _examples(columns)
    return [InputExample(texts=[text], label=label) for text, label in zip(*columns.values(), strict=True)]


def twins_dataset(sentences: Sentences, translations: Iterable[str] | None = None, *, fraternal: Any = None) -> Dataset:
    """A Dataset for the Trainer, in memory, with the columns ``sentence`` and, if given, ``translation``.

    With ``fraternal``, ``label`` holds the token ids of the translation instead. The arguments are those of
    :func:`twins_examples`.
    """
    return _dataset(_twins_columns(sentences, translations, fraternal), sentences)


def texts_of(sentences: Sentences) -> Iterable[str]:
    """The sentences, checked one by one."""
    if not isinstance(sentences, Dataset):
        return require_texts("sentences", sentences)
    if "sentence" not in sentences.column_names:
        known = ", ".join(sentences.column_names)
        raise ValueError(f"sentences has no column 'sentence', only {known}: load_sentences takes one of them.")
    return require_texts("sentences", sentences["sentence"])


def _columns(sentences: Sentences, name: str, second: Second | None, seed: int = 0) -> dict[str, Any]:
    """The columns by name. Every text is checked; empty ones, which a loss would take for sentences, are warned of."""
    require_count("seed", seed, least=0)
    columns = {"sentence": list(texts_of(sentences))}
    if callable(second):
        rows = enumerate(columns["sentence"])
        second = [second(sentence, random.Random(f"{seed} {index}")) for index, sentence in rows]
    if second is not None:
        columns[name] = list(require_texts(name, second))
    lengths = [len(column) for column in columns.values()]
    if len(set(lengths)) > 1:
        raise ValueError(f"The columns must be equally long: sentences has {lengths[0]} rows, {name} has {lengths[1]}.")
    empty = [index for index, row in enumerate(zip(*columns.values(), strict=True)) if not all(map(str.strip, row))]
    if empty:
        warn(f"{len(empty):,} of {lengths[0]:,} rows have an empty text, the first of them row {empty[0]}.")
    return columns


def _twins_columns(sentences: Sentences, translations: Iterable[str] | None, fraternal: Any) -> dict[str, Any]:
    if translations is None and isinstance(sentences, Dataset) and "translation" in sentences.column_names:
        translations = sentences["translation"]
    if fraternal is not None and (translations is None or not hasattr(fraternal, "labels")):
        kind = type(fraternal).__name__
        raise ValueError(f"fraternal must be a FraternalEmbedding, which needs translations=... too; got {kind}.")
    columns = _columns(sentences, "translations", translations)
    if fraternal is not None:
        texts = columns.pop("translations")
        batches = [texts[start : start + 1000] for start in range(0, len(texts), 1000)]
        columns["label"] = np.concatenate([fraternal.labels(batch) for batch in batches])
    elif translations is not None:
        columns["translation"] = columns.pop("translations")
    return columns


def _examples(columns: dict[str, Any]) -> list[InputExample]:
    return [InputExample(texts=list(row)) for row in zip(*columns.values(), strict=True)]


def _dataset(columns: dict[str, Any], sentences: Sentences) -> Dataset:
    data = Dataset.from_dict(columns)
    if isinstance(sentences, Dataset):  # what a reader noted for describe()
        data.info.description = sentences.info.description
    return data
