"""Augmentations that are drawn anew in each epoch of the Trainer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from st_contrastive._checks import require_count

Augmentation = Callable[[str, random.Random], str]


class FreshAugmentation(TrainerCallback):
    """A transform for ``Dataset.set_transform`` that augments texts as they are read.

    The result depends only on the seed, the epoch, the column and the text. It is the same for any number of worker
    processes or devices, and in a resumed run. The epoch comes from the Trainer, so pass this object among its
    callbacks too; otherwise all epochs get the same texts. Worker processes read the epoch from shared memory. A
    streamed dataset (``IterableDataset.map(fresh, batched=True)``) has no length, so a resumed Trainer can't tell its
    epoch, and begins again at epoch 0.

    ``model.fit`` reads its loader once and takes no callbacks: use a builder there, whose augmentation is the same in
    all epochs.

    Args:
        columns: for each column to make, its name and its augmentation. An existing column is replaced. The value
            ``(source, augmentation)`` makes the column from the column ``source``.
        seed: of all random draws.

    Raises:
        TypeError: ``columns`` is not such a mapping.
        ValueError: ``seed`` is not a whole number; or, when rows are read, the dataset does not have a column.
        TypeError: when rows are read, if an augmentation does not return a string.

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
                    f"columns[{name!r}] must be an augmentation, a function from a text and a random.Random to a text, "
                    "or a pair (source column, augmentation)."
                )
            self.columns[name] = (source, augment)
        require_count("seed", seed, least=0)
        self.seed = seed
        self._begun = 0
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> FreshAugmentation:
        # datasets copies a transform with its dataset; the copy would not get the Trainer's epochs.
        return self

    def set_epoch(self, epoch: int) -> None:
        """Draw the texts of this epoch from now on."""
        self._epoch.fill_(epoch)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count epochs from the start."""
        self._begun = 0

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        """Set the epoch that the Trainer begins, or resumes."""
        # Without a length, the Trainer's own count is of the run, and not of passes over the data.
        self.set_epoch(
            int(state.epoch or 0) if train_dataloader is None or has_length(train_dataloader) else self._begun
        )
        self._begun += 1

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
                # Bytes give the same seed in every process; "surrogatepass" also takes half of a surrogate pair.
                rng.seed(f"{self.seed} {epoch} {name} {text}".encode("utf-8", "surrogatepass"))
                texts.append(augment(text, rng))
                if not isinstance(texts[-1], str):
                    raise TypeError(
                        f"the augmentation of column {name!r} must return a string, got {type(texts[-1]).__name__} for "
                        f"{text!r:.80}."
                    )
            made[name] = texts
        return made
