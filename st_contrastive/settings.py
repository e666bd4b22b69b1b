"""Names, types and help texts of a run's settings, without the arguments of the loss and of the Trainer.

Each field is an option of ``st-contrastive train``, an entry of its YAML files and an argument of ``recipes.run``.
This module must not import torch, which takes seconds, because the help would have to wait for it.
"""

# ruff: noqa: RUF009 - each call creates a field
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NewType

from st_contrastive._arguments import Count, PositiveShare, Share
from st_contrastive.methods import METHODS
from st_contrastive.poolings import POOLINGS, PoolingName

#: A file, a folder, or a name on the hub.
Location = NewType("Location", str)


def _setting(metavar: str, text: str) -> Any:
    return field(default=None, metadata={"metavar": metavar, "help": text})


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run. ``None`` means "not set"."""

    recipe: str | None = _setting("NAME", "own-text, or another recipe listed by st-contrastive recipes")
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
        "data for scoring before and after training: a file of graded pairs (sentence1, sentence2, score), stsb (the "
        "STS Benchmark), or corpus, a test on documents held out of --data. The best weights are saved, which may be "
        "the initial ones",
    )
    soup: Count | None = _setting(
        "N", "train N times, with the seeds SEED, SEED+1 and so on, and average the N sets of weights"
    )
    mix: PositiveShare | None = _setting(
        "SHARE", "save a weighted average of the trained weights (this share) and the initial weights"
    )
    stage1: Mapping[str, Any] | str | None = _setting(
        "SETTINGS", 'infocse: settings to change for the first stage, such as "{learning_rate: 1e-4}"'
    )
    pooling: PoolingName | None = _setting(
        "NAME", f"{', '.join(POOLINGS)}; default: the model's pooling, or the one in the loss's paper"
    )
    max_length: int | None = _setting("N", "truncate texts to this many tokens in training; default: the model's limit")
