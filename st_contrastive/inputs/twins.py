"""Inputs of TwinsLoss."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive._checks import require_count, require_texts
from st_contrastive.inputs import _rows, _tables
from st_contrastive.inputs.parallel import cleaned, stream_pairs
from st_contrastive.inputs.translation import in_batches

Translations: TypeAlias = str | Path | Iterable[str] | Callable[[list[str]], list[str]]


class Fraternal(Protocol):
    """The part of FraternalEmbedding that is used here."""

    def labels(self, texts: list[str]) -> Any:
        """An int32 array with a row of token ids for each text."""


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
        translations: the translation of each sentence, as an iterable; as a .tsv or .jsonl (.gz) of pairs, which
            :func:`translate_corpus` writes and :func:`read_parallel` reads, with the sentences in the same order and
            possibly others between them; or as a function from a list of sentences to the list of translations. None
            gives one column, for identical twins and the queue only.
        fraternal: the FraternalEmbedding of the loss. It tokenises the translations here, once, into the label of each
            example. With None they are a second text column, which the model's own tokenizer reads.
        languages: the fields of a file of pairs, sentence first; see :func:`read_parallel`.
        batch_size: number of sentences that a function gets at a time.

    Raises:
        TypeError, ValueError: a row is not a string or holds half of a surrogate pair, the columns differ in length, a
            file of pairs lacks a sentence, or an argument does not fit the others.
        CorpusError: a file can't be read.

    Example:
        >>> twins_examples(["A cat sleeps."], ["Eine Katze schläft."])[0].texts
        ['A cat sleeps.', 'Eine Katze schläft.']
        >>> twins_examples(["A cat", "It rains"], lambda batch: [text.upper() for text in batch])[1].texts
        ['It rains', 'IT RAINS']
    """
    table = _texts(sentences, translations, fraternal, languages, batch_size)
    if fraternal is None:
        return _rows.examples(table)
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
    """A memory-mapped Dataset for the Trainer, with the columns ``sentence`` and, if given, ``translation``.

    With ``fraternal``, ``label`` holds the token ids of the translation instead. The arguments are those of
    :func:`twins_examples`; iterators may have any length.

    Example:
        >>> twins_dataset(["A cat sleeps."], ["Eine Katze schläft."]).column_names
        ['sentence', 'translation']
    """
    table = _texts(sentences, translations, fraternal, languages, batch_size)
    if fraternal is not None:
        return _tables.dataset_with_labels(_tokenised(table, fraternal))
    return _tables.dataset(table, ["sentence"] if translations is None else ["sentence", "translation"])


def _texts(
    sentences: Iterable[str],
    translations: Translations | None,
    fraternal: Fraternal | None,
    languages: tuple[str, str] | None,
    batch_size: int,
) -> Iterator[tuple[str, ...]]:
    if fraternal is not None and not callable(getattr(fraternal, "labels", None)):
        raise TypeError(f"fraternal must be a FraternalEmbedding or None, got {type(fraternal).__name__}.")
    if fraternal is not None and translations is None:
        raise ValueError("fraternal embeds translations: give translations=... too.")
    if isinstance(translations, (str, Path)):
        found = _looked_up(require_texts("sentences", sentences), Path(translations), languages)
        return _rows.warning_of_empty(found)
    if languages is not None:
        raise ValueError("languages names the fields of a file of pairs; translations is not a file.")
    if callable(translations):
        require_count("batch_size", batch_size)
        batches = in_batches("translations", translations, require_texts("sentences", sentences), batch_size)
        return _rows.warning_of_empty(itertools.chain.from_iterable(batches))
    return _rows.rows(sentences, "translations", translations)


def _looked_up(sentences: Iterator[str], path: Path, languages: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
    """Each sentence with its translation from the file, which is read once, along with the sentences."""
    pairs = stream_pairs(path, languages)
    pair = next(pairs, None)
    previous, translation = None, ""
    for index, sentence in enumerate(sentences):
        wanted = cleaned(sentence)
        # A sentence that is repeated may have one line, or one line each time.
        if wanted != previous or (pair is not None and pair[0] == wanted):
            while pair is not None and pair[0] != wanted:
                pair = next(pairs, None)
            if pair is None:
                raise ValueError(
                    f"{path} has no translation of sentences[{index}], {sentence!r:.80}, after that of the sentence "
                    "before it. The file must have the sentences in their order; read_parallel(path) gives both "
                    "columns as they are."
                )
            translation, previous = pair[1], wanted
            pair = next(pairs, None)
        yield sentence, translation


def _tokenised(table: Iterator[tuple[str, ...]], fraternal: Fraternal) -> Iterator[tuple[list[str], Any]]:
    while batch := list(itertools.islice(table, 1000)):
        sentences, translations = zip(*batch, strict=True)
        yield list(sentences), fraternal.labels(list(translations))
