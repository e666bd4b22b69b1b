"""The record of a training run, a JSON file in the folder of the saved model."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerState

from st_contrastive import __version__
from st_contrastive._files import sha256

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_contrastive.evaluation import STSEvaluator
    from st_contrastive.training import KeepBest

#: The record's file name.
NAME = "training_run.json"
_PACKAGES = ("sentence-transformers", "transformers", "torch", "datasets")
_FILES = (
    "data", "translations", "output", "checkpoints", "model", "stage1", "auxiliary", "generator", "translation_encoder",
    "dev",
)  # fmt: skip
_HUB = ("model", "auxiliary", "generator", "translation_encoder")
_READ = ("data", "translations", "dev", "model", "stage1")
_BANDS = 5
#: Entries of the namespace that are not options.
_UNRECORDED = ("run", "given", "verbose")


class RunRecord(TrainerCallback):
    """Collects a run's record.

    Args:
        args: the command's options. Of files, the record keeps only the last part of the path.
        files: SHA-256 of the files that the run reads, from :func:`digests`.
        loss: the loss, whose arguments, terms and queue are recorded.
        model: the model that is trained.
        evaluator: its pairs' similarities are recorded before and after training; or None.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        files: dict[str, str],
        loss: Any,
        model: SentenceTransformer,
        evaluator: STSEvaluator | None,
    ) -> None:
        self.loss, self.model, self.evaluator = loss, model, evaluator
        self._started = time.perf_counter()
        self.options = as_recorded({key: value for key, value in vars(args).items() if key not in _UNRECORDED})
        self.files = files
        self.before = self._similarities()
        #: The development score before training; None without an evaluator.
        self.dev_before = self._score()

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Add the seconds that a resumed run took before it was interrupted."""
        self._started -= _seconds_before(state)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Log the last step, which is rarely a multiple of the logging steps."""
        control.should_log |= state.global_step >= state.max_steps

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Add the time and the length of the queue to the log, which checkpoints keep."""
        entry = state.log_history[-1]
        entry["seconds"] = self._seconds()
        queue = getattr(self.loss, "queue", None)
        if queue is not None:
            entry["queue"] = len(queue)
        if "loss" in entry and getattr(self.loss, "fallback_share", None) is not None:  # of the batch of this step
            entry["fallback_share"] = self.loss.fallback_share

    def _seconds(self) -> float:
        return round(time.perf_counter() - self._started, 1)

    def write(
        self,
        folder: Path,
        state: TrainerState,
        best: KeepBest | None,
        *,
        share: float = 1.0,
        after: float | None = None,
    ) -> dict[str, Any]:
        """Write the record into the folder of the saved model, and return it.

        Args:
            folder: the folder.
            state: the Trainer's.
            best: what kept the best weights; None without an evaluator.
            share: share of the trained weights in the saved ones.
            after: the development score of the saved weights.
        """
        config = {key: _plain(value) for key, value in self.loss.get_config_dict().items()}
        record = {
            "options": self.options,
            "files": self.files,
            "loss": {"class": type(self.loss).__name__, **_without_folders(config)},
            "steps": state.global_step,
            # At its last step, a resumed run has nothing left to train.
            "seconds": max(self._seconds(), _seconds_before(state)),
            "log": [{key: _plain(value) for key, value in entry.items()} for entry in state.log_history],
            "queue": [(entry["step"], entry["queue"]) for entry in state.log_history if "queue" in entry],
            "dev_before": _plain(self.dev_before),
            "best": None if best is None else {"step": best.step, "value": _plain(best.value)},
            "dev_after": _plain(after),
            "share": share,
            "similarities": {"before": self.before, "after": self._similarities()},
            "device": str(self.model.device),
            "peak_mib": _peak_mib(self.model.device),
            "versions": {
                "python": platform.python_version(),
                "st_contrastive": __version__,
                **{package: version(package) for package in _PACKAGES},
            },
        }
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        (folder / NAME).write_text(text + "\n", encoding="utf-8")
        return record

    def _score(self) -> float | None:
        """The development score of the model as it is now."""
        if self.evaluator is None:
            return None
        from st_contrastive.encoder import modes_kept
        from st_contrastive.evaluation import sts_spearman

        dtype = self.evaluator.dtype  # the same as in evaluations during training
        with modes_kept(self.model), torch.autocast(self.model.device.type, dtype=dtype, enabled=dtype is not None):
            return sts_spearman(self.model, self.evaluator.pairs, batch_size=self.evaluator.batch_size)

    def _similarities(self) -> list[dict[str, Any]] | None:
        """The bounds of each band of gold scores, and the cosine similarities of its pairs."""
        if self.evaluator is None:
            return None
        from st_contrastive.encoder import modes_kept
        from st_contrastive.evaluation import similarity_by_score

        with modes_kept(self.model):
            found = similarity_by_score(
                self.model, self.evaluator.pairs, bands=_BANDS, batch_size=self.evaluator.batch_size
            )
        return [
            {"from": low, "to": high, "similarities": [_plain(round(value, 4)) for value in own]}
            for (low, high), own in zip(found.bands, found.similarities, strict=True)
        ]


def _seconds_before(state: TrainerState) -> float:
    """What a run had taken at its last log."""
    return max((entry.get("seconds", 0.0) for entry in state.log_history), default=0.0)


def as_recorded(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a record has them: without those that are None, and without the folders of files."""
    return _without_folders({key: value for key, value in options.items() if value is not None})


def _without_folders(options: dict[str, Any]) -> dict[str, Any]:
    def short(key: str, value: Any) -> Any:
        is_file = key in _FILES and value is not None and (key not in _HUB or Path(str(value)).exists())
        return last_part(str(value)) if is_file else value  # organisation/model is a name on the hub

    return {key: short(key, value) for key, value in options.items()}


def last_part(path: str) -> str:
    """The name of a file or folder, also of the working directory."""
    return Path(os.path.abspath(path)).name


def digests(args: argparse.Namespace, names: Sequence[str] = _READ) -> dict[str, str]:
    """SHA-256 of the files and models that a run reads, by the name of the option."""
    given = {name: Path(str(getattr(args, name))) for name in names if getattr(args, name, None)}
    # A pipe could be read once only.
    return {name: _digest(path) for name, path in given.items() if path.is_file() or path.is_dir()}


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of the weights and configuration in a model's folder."""
    return sha256([path] if path.is_file() else sorted([*path.rglob("*.safetensors"), *path.rglob("config.json")]))


def read(folder: Path) -> dict[str, Any]:
    """The record in a saved model's folder.

    Raises:
        FileNotFoundError: it has none.
        ValueError: it is damaged.
    """
    path = folder / NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no {NAME}: it is not the output of st-contrastive train or pretrain-infocse."
        )
    record = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict) or not {"options", "loss", "log", "versions"} <= record.keys():
        raise ValueError(f"{path} is not the record of a training run.")
    return record


def _plain(value: Any) -> Any:
    """A value for JSON: NaN becomes null, and an object the name of its class."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__


def _peak_mib(device: torch.device) -> int | None:
    """Peak memory of this process, on the GPU or resident; None where the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    try:
        import resource
    except ImportError:
        return None
    per_mib = 2**20 if platform.system() == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // per_mib
