"""The parts of a run that are checked before the first step: its Trainer, losses and data as training reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from datasets import Dataset, IterableDataset
from torch import nn

from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.inputs.tables import columns_read
from st_contrastive.losses.base import TextLoss
from st_contrastive.training.loss_state import Losses, distinct_losses

#: Number of rows of each dataset that are checked.
ROWS = 1000
#: Number of rows that are searched for missing texts at a time.
_BLOCK = 100_000


@dataclass(frozen=True)
class TrainedDataset:
    """A dataset that losses of this package read.

    Attributes:
        name: the dataset's name in messages.
        text_losses: the losses of this package that read it.
    """

    trainer: Any
    name: str
    data: Dataset | IterableDataset
    text_losses: list[TextLoss]

    @property
    def size(self) -> int | None:
        """The number of rows; None for a stream."""
        return len(self.data) if isinstance(self.data, Sized) else None

    @property
    def label(self) -> str | None:
        """The column that the data collator takes the labels from."""
        known = getattr(self.trainer.data_collator, "valid_label_columns", ())
        columns = columns_read(self.data)
        return next((name for name in known if name in columns), None)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The first rows, as training reads them."""
        if isinstance(self.data, IterableDataset):
            return list(itertools.islice(self.data, ROWS))
        columns = self.data[:ROWS]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @cached_property
    def columns(self) -> list[str]:
        """The columns that are tokenised."""
        return tokenised_columns(self.trainer, self.rows[0]) if self.rows else []

    def cells(self, column: str) -> list[Any]:
        """The first texts of a column."""
        return [row[column] for row in self.rows]

    def tokens(self, column: str) -> list[bytes]:
        """The token ids, as bytes, of the first texts of a column, from the trainer's data collator."""
        return [tokens for batch in self._batches for tokens in _unpadded(batch, column)]

    @cached_property
    def _batches(self) -> list[dict[str, Any]]:
        size = self.trainer.args.train_batch_size
        return [self.trainer.data_collator(self.rows[start : start + size]) for start in range(0, len(self.rows), size)]

    def missing_texts(self) -> Iterator[tuple[int, str]]:
        """Row and column of missing texts in the whole stored Dataset. Arrow counts them without reading texts."""
        names = [name for name in self.columns if isinstance(self.data, Dataset) and name in self.data.features]
        blocks = self.data.select_columns(names).with_format("arrow").iter(_BLOCK) if names else ()
        for block, table in enumerate(blocks):
            for column in table.column_names:
                if table[column].null_count:
                    row = block * _BLOCK + table[column].is_null().to_pylist().index(True)
                    if self.data[row].get(column) is None:  # a transform may fill in the text
                        yield row, column

    def distinct(self, column: str) -> list[Any]:
        """The distinct values of a column, in the whole Dataset or in the first rows of a stream."""
        if isinstance(self.data, Dataset) and column in self.data.features:
            stored = self.data.select_columns([column]).with_format("arrow")[:][column]
            if not pa.types.is_nested(stored.type):
                return list(stored.unique().to_pylist())
        # Lists are not hashable.
        return list({str(cell) if isinstance(cell, list) else cell: cell for cell in self.cells(column)}.values())


@dataclass(frozen=True)
class TrainingRun:
    """The parts of a run that the checks read: a Trainer, its losses, those from this package, and their datasets."""

    trainer: Any
    losses: list[nn.Module]
    text_losses: list[TextLoss]
    datasets: list[TrainedDataset]

    @classmethod
    def of(cls, trainer: Any) -> TrainingRun:
        """The parts of a Trainer's run."""
        return cls(trainer, distinct_losses(trainer.loss), text_losses(trainer.loss), _trained_datasets(trainer))

    @property
    def args(self) -> Any:
        """The training arguments."""
        return self.trainer.args


def tokenised_columns(trainer: Any, columns: Iterable[str]) -> list[str]:
    """The columns that are tokenised: all except the label columns, which the data collator names."""
    labels = getattr(trainer.data_collator, "valid_label_columns", ["label", "labels", "score", "scores"])
    return [name for name in columns if name not in labels and name not in ("dataset_name", "return_loss")]


def text_losses(losses: Losses) -> list[TextLoss]:
    """The losses of this package, including losses inside other losses."""
    return [part for loss in distinct_losses(losses) for part in loss.modules() if isinstance(part, TextLoss)]


def losses_of(trainer: Any, name: str) -> list[TextLoss]:
    """The losses of this package that read the dataset with this name."""
    return text_losses(trainer.loss[name] if isinstance(trainer.loss, dict) else trainer.loss)


def by_name(data: Any) -> dict[str, Any]:
    """Datasets by name. A single dataset has an empty name."""
    return dict(data) if isinstance(data, dict) else {"": data}


def module_settings(modules: Iterable[nn.Module]) -> list[Any]:
    """The class and settings of each module of a model. For the encoder, which is first, only the class."""
    encoder, *others = modules
    return [type(encoder).__name__, *([type(module).__name__, _config(module)] for module in others)]


def _config(module: nn.Module) -> dict[str, Any]:
    config: dict[str, Any] = getattr(module, "get_config_dict", dict)()
    return config


def _trained_datasets(trainer: Any) -> list[TrainedDataset]:
    """The training datasets that losses of this package read."""
    datasets = []
    for name, data in by_name(trainer.train_dataset).items():
        losses = losses_of(trainer, name)
        if isinstance(data, (Dataset, IterableDataset)) and losses:
            full_name = f"train_dataset[{name!r}]" if name else "train_dataset"
            datasets.append(TrainedDataset(trainer, full_name, data, losses))
    return datasets


def _unpadded(batch: dict[str, Any], column: str) -> Iterator[bytes]:
    names = ("input_ids", "attention_mask", "cu_seq_lens_q", "max_length_q")  # the last two are in flat batches
    rows = TokenBatch.of({name: batch[f"{column}_{name}"] for name in names if f"{column}_{name}" in batch})
    for row, attended in zip(rows.ids, rows.mask, strict=True):
        yield row[attended != 0].numpy().tobytes()
