"""Reads the data for training and evaluating a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal

from datasets import Dataset
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from st_contrastive import inputs
from st_contrastive._arguments import checked
from st_contrastive._checks import first_line, warn
from st_contrastive.evaluation import CorpusEvaluator, STSEvaluator
from st_contrastive.inputs.row_filter import RowCounts, get_row_counts, set_row_counts
from st_contrastive.inputs.segments import get_language
from st_contrastive.inputs.tables import Source, split_columns
from st_contrastive.methods import METHODS, Method
from st_contrastive.recipes.plan import DEV_WORDS
from st_contrastive.settings import RunSettings


@checked
def read_texts(
    source: Source,
    column: str | Sequence[str] | None = None,
    *,
    segment: str | None = None,
    pairs: Literal["first"] | None = None,
    repeats: bool = False,
) -> Dataset:
    """Texts in the column ``sentence``, or pairs in ``sentence`` and ``other``. The arguments are run settings.

    Separate two columns by a comma. If a name contains a comma, pass a list.
    """
    columns = split_columns(column)
    language = get_language(segment or "lines")
    if pairs is not None:
        return inputs.load_pairs(source, columns=columns, pairs="first", language=language or "en", repeats=repeats)
    if len(columns) < 2:
        name = columns[0] if columns else None
        return inputs.load_sentences(source, column=name, segment=segment or "lines", repeats=repeats)
    _require_absent("with pairs, which have two columns", segment=None if language is None else segment)
    return inputs.load_pairs(source, columns=columns, repeats=repeats)


def read_data(run: RunSettings, method: Method) -> tuple[Dataset, SentenceEvaluator | None]:
    """The texts to train on, and the evaluator of ``dev``, or None."""
    evaluator = None
    if run.dev is not None and run.dev != "corpus":
        with _naming_dev(run.dev):
            evaluator = STSEvaluator(run.dev, "dev")
    if run.antonyms is not None:
        _require_column("constructed", "antonyms", run, method)
    if run.translations is not None:
        _require_column("translation", "translations", run, method)
        _require_absent(
            "with translations, whose columns are set by languages",
            data=run.data,
            column=run.column,
            pairs=run.pairs,
            segment=run.segment,
            dev=run.dev if run.dev == "corpus" else None,
        )
        if run.languages is None:
            return inputs.load_translations(run.translations), evaluator
        return inputs.load_translations(run.translations, languages=run.languages), evaluator
    _require_absent("without translations", languages=run.languages)
    assert run.data is not None
    if run.dev == "corpus" and run.pairs == "first":
        warn(
            "pairs='first' trains almost the same task that dev='corpus' tests: matching a sentence with the rest of "
            "its document. The score may rise while search does not improve. Try your own queries with both models."
        )
    whole = run.dev == "corpus" and run.pairs is None  # hold out whole documents before splitting the others
    segment = None if whole else run.segment
    dataset = read_texts(run.data, run.column, segment=segment, pairs=run.pairs, repeats=run.repeats)
    if "other" in dataset.column_names and run.pairs is None and "constructed" in method.columns:
        dataset = set_row_counts(dataset.rename_column("other", "constructed"), get_row_counts(dataset))
    if "other" in dataset.column_names:
        _require_column("other", "column" if run.pairs is None else "pairs", run, method)
    return _hold_out(dataset, run) if run.dev == "corpus" else (dataset, evaluator)


@contextmanager
def _naming_dev(dev: Any) -> Iterator[None]:
    """Add dev to error messages, with a workaround if it can't be loaded."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        remedy = " Name a file of graded pairs as dev, or turn dev off with dev=none." if dev == "stsb" else ""
        is_unknown = isinstance(dev, str) and dev not in DEV_WORDS
        if nearest := get_close_matches(dev, DEV_WORDS, n=1, cutoff=0.7) if is_unknown else ():
            remedy = f" Did you mean dev={nearest[0]!r}?"
        what = repr(str(dev)) if isinstance(dev, (str, os.PathLike)) else f"a {type(dev).__name__}"
        raise ValueError(f"dev={what:.80}: {first_line(error)}{remedy}") from error


def _require_absent(where: str, **settings: Any) -> None:
    """Refuse settings that would be ignored."""
    for name, value in settings.items():
        if value is not None:
            raise ValueError(f"{name}={value!r:.80} is not used {where}: remove it.")


def _require_column(column: str, setting: str, run: RunSettings, method: Method) -> None:
    """Require that the loss uses the column that the setting creates."""
    if column not in method.columns:
        users = ", ".join(other.name for other in METHODS.values() if column in other.columns)
        remedy = "Name one column, or use another loss." if setting == "column" else "Remove it."
        raise ValueError(
            f"{setting}={getattr(run, setting)!r} needs the loss {users}; {method.name} does not use it. {remedy}"
        )


def _hold_out(documents: Dataset, run: RunSettings) -> tuple[Dataset, CorpusEvaluator]:
    """The documents to train on, and an evaluator on the held-out ones."""
    if not isinstance(documents, Dataset):
        raise ValueError(
            "dev='corpus': data is a stream, and no documents can be held out of a stream. Pass a Dataset, or a file "
            "of graded pairs as dev."
        )
    read = get_row_counts(documents) or RowCounts(len(documents), {})
    documents = documents.shuffle(seed=42)
    count = CorpusEvaluator.held_out_count(len(documents))
    if count < CorpusEvaluator.min_documents:
        raise ValueError(
            f"dev='corpus': {len(documents)} documents are not enough to hold some out. At least "
            f"{3 * CorpusEvaluator.min_documents} documents of two or more sentences are needed. Add documents, "
            "use a file of graded pairs as dev, or remove dev."
        )
    held_out, body = documents.select(range(count)), documents.column_names[-1]
    titles = held_out["sentence"] if body == "other" else None
    with _naming_dev("corpus"):
        language = get_language(run.segment or "sentences") or "en"
        evaluator = CorpusEvaluator(held_out[body], titles=titles, language=language)
    bodies = set(held_out[body])  # another row may repeat a held-out body
    rest = documents.select(range(count, len(documents))).filter(
        lambda rows: [row not in bodies for row in rows], input_columns=body, batched=True, load_from_cache_file=False
    )
    # describe reports the rows that either reading dropped.
    dropped = {**read.dropped, "held out": len(documents) - len(rest)}
    if run.segment is not None and body == "sentence":
        rest = inputs.load_sentences(rest, column=body, segment=run.segment, repeats=run.repeats)
        again = get_row_counts(rest)
        dropped = {**(again.dropped if again else {}), **dropped}
    set_row_counts(rest, replace(read, dropped=dropped))
    return rest, evaluator
