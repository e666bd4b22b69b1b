"""The data that a run is trained and scored on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Literal

from datasets import Dataset
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from st_contrastive import inputs
from st_contrastive._arguments import checked
from st_contrastive._checks import warn
from st_contrastive.evaluation import CorpusEvaluator, STSEvaluator
from st_contrastive.inputs.row_filter import Reading, get_reading, set_reading
from st_contrastive.inputs.segments import get_language
from st_contrastive.inputs.tables import Source
from st_contrastive.methods import METHODS, Method
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
    """Texts in the column ``sentence``, or pairs in ``sentence`` and ``other``, as the settings of these names ask.

    A comma stands between two columns: a name that has one is given alone in a list.
    """
    columns = column.split(",") if isinstance(column, str) else [*(column or ())]
    language = get_language(segment or "lines")
    if pairs is not None:
        return inputs.load_pairs(source, columns=columns, pairs="first", language=language or "en")
    if len(columns) < 2:
        name = columns[0] if columns else None
        return inputs.load_sentences(source, column=name, segment=segment or "lines", repeats=repeats)
    _require_absent("beside pairs, which have two columns", segment=None if language is None else segment)
    return inputs.load_pairs(source, columns=[name.strip() for name in columns])


def read_data(run: RunSettings, method: Method) -> tuple[Dataset, SentenceEvaluator | None]:
    """The texts to train on, and the evaluator."""
    evaluator = None
    if run.dev is not None and run.dev != "corpus":
        with _naming_dev(run.dev):
            evaluator = STSEvaluator(run.dev, "dev")
    if run.antonyms is not None:
        _require_column("constructed", "antonyms", run, method)
    if run.translations is not None:
        _require_column("translation", "translations", run, method)
        _require_absent(
            "beside translations, whose columns languages names", data=run.data, column=run.column, pairs=run.pairs,
            segment=run.segment, dev=run.dev if run.dev == "corpus" else None,
        )  # fmt: skip
        if run.languages is None:
            return inputs.load_translations(run.translations), evaluator
        return inputs.load_translations(run.translations, languages=run.languages), evaluator
    _require_absent("without translations", languages=run.languages)
    assert run.data is not None
    if run.dev == "corpus" and run.pairs == "first":
        warn(
            "pairs='first' trains on what dev='corpus' asks, a sentence against the rest of its document: that score "
            "rises also where search gets no better. Try queries of your own on both models."
        )
    whole = run.dev == "corpus" and run.pairs is None  # whole documents are held out, and the others cut then
    segment = None if whole else run.segment
    dataset = read_texts(run.data, run.column, segment=segment, pairs=run.pairs, repeats=run.repeats)
    if "other" in dataset.column_names:
        _require_column("other", "column" if run.pairs is None else "pairs", run, method)
    return _hold_out(dataset, run) if run.dev == "corpus" else (dataset, evaluator)


@contextmanager
def _naming_dev(dev: str) -> Iterator[None]:
    """Name dev in errors."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"dev={dev!r:.80}: {error}") from error


def _require_absent(where: str, **settings: Any) -> None:
    """Refuse settings that would not be read."""
    for name, given in settings.items():
        if given is not None:
            raise ValueError(f"{name}={given!r:.80} is not read {where}: leave it out.")


def _require_column(column: str, setting: str, run: RunSettings, method: Method) -> None:
    """Require a method that takes the column which the setting makes."""
    if column not in method.columns:
        takers = ", ".join(other.name for other in METHODS.values() if column in other.columns)
        remedy = "Name one column, or take another loss." if setting == "column" else "Leave it out."
        given = asdict(run)[setting]
        raise ValueError(f"{setting}={given!r} goes with the loss {takers}, not {method.name}. {remedy}")


def _hold_out(documents: Dataset, run: RunSettings) -> tuple[Dataset, CorpusEvaluator]:
    """The documents to train on, and an evaluator on others: a tenth, and more of few documents."""
    if not isinstance(documents, Dataset):
        raise ValueError(
            "dev='corpus': data is a stream, of which no documents can be held out. Give a Dataset, or a file of "
            "graded pairs as dev."
        )
    read = get_reading(documents) or Reading(len(documents), {})
    documents = documents.shuffle(seed=42)
    count = min(1000, max(len(documents) // 10, min(200, len(documents) // 3)))
    if count < CorpusEvaluator.min_documents:
        raise ValueError(
            f"dev='corpus': {len(documents)} documents are too few to hold some out. At least "
            f"{3 * CorpusEvaluator.min_documents} are needed, of two sentences or more. Name graded pairs, or none."
        )
    held_out, body = documents.select(range(count)), documents.column_names[-1]
    titles = held_out["sentence"] if body == "other" else None
    with _naming_dev("corpus"):
        language = get_language(run.segment or "sentences") or "en"
        evaluator = CorpusEvaluator(held_out[body], titles=titles, language=language)
    bodies = set(held_out[body])  # another row may repeat one
    rest = documents.select(range(count, len(documents))).filter(
        lambda rows: [row not in bodies for row in rows], input_columns=body, batched=True, load_from_cache_file=False
    )
    # For describe: what the first reading left out, and the second.
    left_out = {**read.left_out, "held out": len(documents) - len(rest)}
    if run.segment is not None and body == "sentence":
        rest = inputs.load_sentences(rest, column=body, segment=run.segment, repeats=run.repeats)
        again = get_reading(rest)
        left_out = {**(again.left_out if again else {}), **left_out}
    set_reading(rest, replace(read, left_out=left_out))
    return rest, evaluator
