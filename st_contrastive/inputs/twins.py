"""Inputs of TwinsLoss."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive._checks import require_count
from st_contrastive.inputs import _checks, _tables
from st_contrastive.inputs.parallel import cleaned, stream_pairs
from st_contrastive.inputs.translation import in_batches

Translations: TypeAlias = str | Path | Iterable[str] | Callable[[list[str]], list[str]]


class Fraternal(Protocol):
    """What is used of a FraternalEmbedding: translations to an int32 array with a row of tokens for each."""

    def labels(self, texts: list[str]) -> Any: ...


def twins_examples(
    sentences: Iterable[str],
    translations: Translations | None = None,
    *,
    fraternal: Fraternal | None = None,
    languages: tuple[str, str] | None = None,
    batch_size: int = 64,
) -> list[InputExample]:
    """Examples for ``model.fit``.

    Args:
        sentences: the sentences.
        translations: the translation of each: an iterable; or a .tsv or .jsonl (.gz) of pairs, as
            :func:`translate_corpus` writes and :func:`read_parallel` reads, which holds the sentences in the same
            order and may hold others between them; or a function from a list of sentences to the list of their
            translations. None gives one column: identical twins and the queue alone.
        fraternal: the FraternalEmbedding of the loss. The translations are tokenised by it here, once, and stand in
            the label of each example. None leaves a second text column, which the model's own tokenizer reads.
        languages: the fields of a file of pairs, sentence first; see :func:`read_parallel`.
        batch_size: how many sentences a function gets at a time.

    Raises:
        TypeError, ValueError: a row is not a string or holds half of a surrogate pair, the columns are not equally
            long, or an argument does not fit.
        CorpusError: a file can't be read, or lacks a sentence.

    Example:
        >>> twins_examples(["A cat sleeps."], ["Eine Katze schläft."])[0].texts
        ['A cat sleeps.', 'Eine Katze schläft.']
        >>> twins_examples(["A cat", "It rains"], lambda batch: [text.upper() for text in batch])[1].texts
        ['It rains', 'IT RAINS']
    """
    table = _rows(sentences, translations, fraternal, languages, batch_size)
    if fraternal is None:
        return _checks.examples(table)
    return [
        InputExample(texts=[text], label=label)
        for texts, labels in _tokenised(table, fraternal)
        for text, label in zip(texts, labels, strict=True)
    ]


def twins_dataset(
    sentences: Iterable[str],
    translations: Translations | None = None,
    *,
    fraternal: Fraternal | None = None,
    languages: tuple[str, str] | None = None,
    batch_size: int = 64,
) -> Dataset:
    """A memory-mapped Dataset for the Trainer; see :func:`twins_examples`.

    Its columns are ``sentence`` and, if given, ``translation`` (text) or, with ``fraternal``, ``label`` (its tokens).
    The arguments may be iterators of any length.

    Example:
        >>> twins_dataset(["A cat sleeps."], ["Eine Katze schläft."]).column_names
        ['sentence', 'translation']
    """
    table = _rows(sentences, translations, fraternal, languages, batch_size)
    if fraternal is not None:
        return _tables.dataset_with_labels(_tokenised(table, fraternal))
    return _tables.dataset(table, ["sentence"] if translations is None else ["sentence", "translation"])


def _rows(
    sentences: Iterable[str],
    translations: Translations | None,
    fraternal: Fraternal | None,
    languages: tuple[str, str] | None,
    batch_size: int,
) -> Iterator[tuple[str, ...]]:
    if fraternal is not None and not callable(getattr(fraternal, "labels", None)):
        raise TypeError(f"fraternal must be a FraternalEmbedding or None, got {type(fraternal).__name__}.")
    if fraternal is not None and translations is None:
        raise ValueError("fraternal is another language's embedding layer, and needs translations=....")
    if isinstance(translations, (str, Path)):
        return _looked_up(_checks.texts("sentences", sentences), Path(translations), languages)
    if languages is not None:
        raise ValueError("languages names the fields of a file of translations; translations is none.")
    if callable(translations):
        require_count("batch_size", batch_size)
        batches = in_batches("translations", translations, _checks.texts("sentences", sentences), batch_size)
        return itertools.chain.from_iterable(batches)
    return _checks.rows(sentences=sentences, translations=translations)


def _looked_up(sentences: Iterator[str], path: Path, languages: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
    """Each sentence with its translation from the file, which is read once, in step with the sentences."""
    pairs = stream_pairs(path, languages)
    waiting = next(pairs, None)
    before, translation = None, ""
    for index, sentence in enumerate(sentences):
        wanted = cleaned(sentence)
        # A sentence that stands twice in a row may have one line, or one for each.
        if wanted != before or (waiting is not None and waiting[0] == wanted):
            while waiting is not None and waiting[0] != wanted:
                waiting = next(pairs, None)
            if waiting is None:
                raise ValueError(
                    f"{path} has no translation of sentences[{index}], {sentence!r:.80}, behind the one before it. The "
                    "file must hold the sentences in their order; read_parallel(path) gives both columns as they are."
                )
            translation, before = waiting[1], wanted
            waiting = next(pairs, None)
        yield sentence, translation


def _tokenised(table: Iterator[tuple[str, ...]], fraternal: Fraternal) -> Iterator[tuple[list[str], Any]]:
    while batch := list(itertools.islice(table, 1000)):
        sentences, translations = zip(*batch, strict=True)
        yield list(sentences), fraternal.labels(list(translations))
