"""Augmentation that is drawn anew in every epoch of the Trainer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import TrainerCallback

Augmentation = Callable[[str, random.Random], str]


class FreshAugmentation(TrainerCallback):
    """A transform for ``Dataset.set_transform`` that augments texts as they are read.

    What is drawn depends on the seed, the epoch, the column and the text alone: not on the worker process that reads
    the row, nor on the rows before it, so that any number of workers, any number of devices and a resumed run draw the
    same. The epoch comes from the Trainer, which must have this object among its callbacks too; worker processes see it
    in shared memory. Without it every epoch draws the same.

    ``model.fit`` reads its loader once and takes no callbacks: augment the sentences before, and they are frozen.

    Args:
        columns: an augmentation for each column that it makes, under the column's name. A name of the dataset's is
            replaced; a pair ``(name, augmentation)`` as the value reads another column, for one that the dataset lacks.
        seed: of all draws.

    Raises:
        TypeError, ValueError: ``columns`` is none of that.

    Example:
        >>> from st_contrastive import conisi_dataset
        >>> from st_contrastive.augmentations import RandomDeletion
        >>> fresh = FreshAugmentation({"constructed": ("sentence", RandomDeletion(0.5))})
        >>> dataset = conisi_dataset(["It rains in Oslo again today."])
        >>> dataset.set_transform(fresh)
        >>> first = dataset[0]["constructed"]
        >>> fresh.set_epoch(1)  # the Trainer does it: SentenceTransformerTrainer(..., callbacks=[fresh])
        >>> first == dataset[0]["constructed"], dataset[0]["sentence"]
        (False, 'It rains in Oslo again today.')
    """

    def __init__(self, columns: Mapping[str, Augmentation | tuple[str, Augmentation]], *, seed: int = 42) -> None:
        if not isinstance(columns, Mapping) or not columns:
            raise TypeError("columns must map column names to augmentations.")
        self.columns: dict[str, tuple[str, Augmentation]] = {}
        for name, value in columns.items():
            source, augment = value if isinstance(value, tuple) and len(value) == 2 else (name, value)
            if not callable(augment) or not isinstance(source, str):
                raise TypeError(
                    f"columns[{name!r}] must be an augmentation, text and random.Random to text, or a pair of a "
                    "column's name and one."
                )
            self.columns[name] = (source, augment)
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> FreshAugmentation:
        # datasets copies a transform with a dataset; the copy would not hear of the epochs.
        return self

    def set_epoch(self, epoch: int) -> None:
        """Draw those of this epoch from now on."""
        self._epoch.fill_(epoch)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer's word that an epoch begins; in a resumed run, the one that goes on."""
        self.set_epoch(int(state.epoch or 0))

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The batch with its augmented columns."""
        epoch = int(self._epoch)
        made = dict(batch)
        rng = random.Random()
        for name, (source, augment) in self.columns.items():
            if source not in batch:
                raise ValueError(f"the dataset has no column {source!r} to augment, only {', '.join(batch)}.")
            texts = []
            for text in batch[source]:
                # Bytes are hashed, the same way everywhere; those of half a surrogate pair too.
                rng.seed(f"{self.seed} {epoch} {name} {text}".encode("utf-8", "surrogatepass"))
                texts.append(augment(text, rng))
            made[name] = texts
        return made
