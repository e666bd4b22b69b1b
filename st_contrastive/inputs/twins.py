"""Inputs of TwinsLoss."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias

import numpy as np
from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive._checks import require_count, warn
from st_contrastive.inputs import _rows
from st_contrastive.inputs.sentences import strip
from st_contrastive.inputs.translation import in_batches
from st_contrastive.inputs.translations import load_translations

Translations: TypeAlias = "str | os.PathLike[str] | Iterable[str] | Callable[[list[str]], list[str]]"


class Fraternal(Protocol):
    """The part of FraternalEmbedding that is used here."""

    def labels(self, texts: list[str]) -> Any:
        """An int32 array with a row of token ids for each text."""


def twins_examples(
    sentences: _rows.Sentences,
    translations: Translations | None = None,
    *,
    fraternal: Fraternal | None = None,
    languages: tuple[str, str] = ("en", "de"),
    batch_size: int = 64,
) -> list[InputExample]:
    """Examples for ``model.fit``.

    Args:
        sentences: the sentences, or a Dataset with the column ``sentence`` and possibly ``translation``, which
            :func:`load_translations` returns.
        translations: the translation of each sentence; or a file of pairs, in which each sentence is looked up (those
            without a translation are left out, with a warning); or a function from a list of sentences to the list of
            translations. None gives one column, for identical twins and the queue only.
        fraternal: the FraternalEmbedding of the loss. It tokenises the translations here, once, into the label of each
            example. With None they are a second text column, which the model's own tokenizer reads.
        languages: the columns of a file of pairs; see :func:`load_translations`.
        batch_size: number of sentences that a function gets at a time.

    Raises:
        TypeError, ValueError: as :func:`text_examples`; or a file of pairs lacks most sentences, or an argument does
            not fit the others.

    Example:
        >>> twins_examples(["A cat sleeps."], ["Eine Katze schläft."])[0].texts
        ['A cat sleeps.', 'Eine Katze schläft.']
        >>> twins_examples(["A cat", "It rains"], lambda batch: [text.upper() for text in batch])[1].texts
        ['It rains', 'IT RAINS']
    """
    table = _table(sentences, translations, fraternal, languages, batch_size)
    if fraternal is None:
        return _rows.examples(table)
    return [
        InputExample(texts=[text], label=label)
        for texts, labels in _tokenised(table, fraternal)
        for text, label in zip(texts, labels, strict=True)
    ]


def twins_dataset(
    sentences: _rows.Sentences,
    translations: Translations | None = None,
    *,
    fraternal: Fraternal | None = None,
    languages: tuple[str, str] = ("en", "de"),
    batch_size: int = 64,
) -> Dataset:
    """A Dataset for the Trainer, in memory, with the columns ``sentence`` and, if given, ``translation``.

    With ``fraternal``, ``label`` holds the token ids of the translation instead. The arguments are those of
    :func:`twins_examples`.

    Example:
        >>> twins_dataset(["A cat sleeps."], ["Eine Katze schläft."]).column_names
        ['sentence', 'translation']
    """
    table = _table(sentences, translations, fraternal, languages, batch_size)
    if fraternal is None:
        has_pairs = translations is not None or _has_translations(sentences)
        return _rows.dataset(table, sentences, ("sentence", "translation") if has_pairs else ("sentence",))
    texts, labels = zip(*_tokenised(table, fraternal), strict=True)
    return Dataset.from_dict({"sentence": list(chain.from_iterable(texts)), "label": np.concatenate(labels)})


def _has_translations(sentences: Any) -> bool:
    return isinstance(sentences, Dataset) and "translation" in sentences.column_names


def _table(
    sentences: _rows.Sentences,
    translations: Translations | None,
    fraternal: Fraternal | None,
    languages: tuple[str, str],
    batch_size: int,
) -> Iterator[tuple[str, ...]]:
    """The rows of one or two texts."""
    if translations is None and isinstance(sentences, Dataset) and _has_translations(sentences):
        translations = sentences["translation"]
    if fraternal is not None and not callable(getattr(fraternal, "labels", None)):
        raise TypeError(f"fraternal must be a FraternalEmbedding or None, got {type(fraternal).__name__}.")
    if fraternal is not None and translations is None:
        raise ValueError("fraternal embeds translations: give translations=... too.")
    if isinstance(translations, (str, os.PathLike)):
        return _rows.warning_of_empty(_looked_up(sentences, translations, languages))
    if callable(translations):
        require_count("batch_size", batch_size)
        batches = in_batches("translations", translations, _rows.texts_of(sentences), batch_size)
        return _rows.warning_of_empty(chain.from_iterable(batches))
    return _rows.rows(sentences, "translations", translations, 0)


def _looked_up(
    sentences: _rows.Sentences, source: str | os.PathLike[str], languages: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """The sentences that the file translates, with their translations; says how many it lacks."""
    pairs = load_translations(source, languages=languages)
    known = dict(zip(pairs["sentence"], pairs["translation"], strict=True))
    count, absent = 0, 0
    for count, sentence in enumerate(_rows.texts_of(sentences), start=1):  # noqa: B007
        translation = known.get(strip(sentence))
        if translation is None:
            absent += 1
        else:
            yield sentence, translation
    if 2 * absent > count:
        raise ValueError(
            f"translations={str(source)!r} lacks {absent:,} of {count:,} sentences. To train on the pairs of the file "
            "themselves, give load_translations(file) as sentences."
        )
    if absent:
        warn(f"{absent:,} of {count:,} sentences have no translation in {source} and are left out.")


def _tokenised(table: Iterator[tuple[str, ...]], fraternal: Fraternal) -> Iterator[tuple[list[str], Any]]:
    while batch := list(islice(table, 1000)):
        sentences, translations = zip(*batch, strict=True)
        yield list(sentences), fraternal.labels(list(translations))
