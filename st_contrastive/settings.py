"""The settings of a run, except the arguments of its loss and of the Trainer: their names, types and help.

These fields are the options of ``st-contrastive train``, and the names in its files and in ``recipes.run``. Nothing
here imports torch, which takes seconds, because the help must not wait for it.
"""

# ruff: noqa: RUF009 - each call creates a field
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NewType

from st_contrastive._arguments import PositiveShare, Share
from st_contrastive.methods import METHODS
from st_contrastive.poolings import POOLINGS, PoolingName

#: A file, a folder, or a name on the hub.
Location = NewType("Location", str)


def _setting(metavar: str, text: str) -> Any:
    return field(default=None, metadata={"metavar": metavar, "help": text})


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run. ``None`` means that a setting is not set."""

    recipe: str | None = _setting("NAME", "own-text, or another name that st-contrastive recipes lists")
    loss: str | None = _setting("NAME", f"{', '.join(METHODS)}; or a loss of your own, my_module:MyLoss")
    model: Location | None = _setting("NAME", "encoder to start from: a folder or a hub name")
    data: Location | None = _setting(
        "FILE", "text, csv, tsv, json(l) or parquet, also compressed; a folder; a data set of the hub"
    )
    output_dir: Location | None = _setting("DIR", "folder of the model and its checkpoints")
    column: Sequence[str] | str | None = _setting(
        "NAME", "column of --data that holds the texts, or the two columns of pairs: title,body"
    )
    pairs: Literal["first"] | None = _setting(
        "HOW", "first: pair the first sentence of each document with the rest of it"
    )
    segment: str | None = _setting(
        "HOW", "how to split documents: sentences (English rules), the code of a language, or lines (the default)"
    )
    repeats: bool = field(
        default=False, metadata={"metavar": "true|false", "help": "also train on exact repeats, as the papers do"}
    )
    translations: Location | None = _setting(
        "FILE", "twins: a file of sentences and their translations, instead of --data"
    )
    languages: list[str] | None = _setting("NAME", "twins: the two columns of --translations, such as en de")
    antonyms: Share | None = _setting(
        "SHARE", "conisi, English: replace this share of the words that have an antonym, to create the second sentence"
    )
    dev: Location | None = _setting(
        "FILE",
        "how to score the model before and after training: a file of graded pairs (sentence1, sentence2, score), "
        "stsb (the STS Benchmark), or corpus, a test on documents that are held out of --data. The best weights are "
        "saved, which may be those that you started from",
    )
    mix: PositiveShare | None = _setting(
        "SHARE",
        "also score a weighted average of the trained weights (this share) and the weights before training; without "
        "--dev, save it",
    )
    stage1: Mapping[str, Any] | str | None = _setting(
        "SETTINGS", 'infocse: settings that differ in the first stage, such as "{learning_rate: 1e-4}"'
    )
    pooling: PoolingName | None = _setting(
        "NAME", f"{', '.join(POOLINGS)}; default: that of the model, or of the loss's paper"
    )
    max_length: int | None = _setting(
        "N", "number of tokens to which training truncates a text; default: that of the model"
    )
