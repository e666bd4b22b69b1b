"""What a training run was and how it went, beside the model that came of it."""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from st_contrastive._files import sha256

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_contrastive.evaluation import STSEvaluator

#: The record's name in the folder of a saved model.
NAME = "training_run.json"
_PACKAGES = ("st_contrastive", "sentence-transformers", "transformers", "torch", "datasets")
_FILES = (
    "data", "translations", "output", "checkpoints", "model", "stage1", "auxiliary", "generator", "translation_encoder",
    "dev",
)  # fmt: skip
_HUB = ("model", "auxiliary", "generator", "translation_encoder")
_READ = ("data", "translations", "dev", "model", "stage1")
_BANDS = 5
#: What is in an options' namespace and no option of the run.
_UNRECORDED = ("run", "given", "verbose")


class RunRecord(TrainerCallback):
    """Collects a run's record.

    Args:
        args: the command's options. Of files, the record keeps the last part of the name.
        files: SHA-256 of those that the run reads, as :func:`digests` has them.
        loss: whose arguments, terms and queue it is about.
        model: what is trained.
        evaluator: whose pairs' similarities are kept, before and after; or None.
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

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the seconds before a resumed run was cut short."""
        self._started -= max((entry.get("seconds", 0.0) for entry in state.log_history), default=0.0)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note how full the queue is and the time, in the log: checkpoints keep that."""
        entry = state.log_history[-1]
        entry["seconds"] = self._seconds()
        queue = getattr(self.loss, "queue", None)
        if queue is not None:
            entry["queue"] = len(queue)
        if getattr(self.loss, "fallback_share", None) is not None:
            entry["fallback_share"] = self.loss.fallback_share

    def _seconds(self) -> float:
        return round(time.perf_counter() - self._started, 1)

    def write(self, folder: Path, state: TrainerState, best: tuple[int | None, float | None] | None) -> None:
        """Write the record into the folder of the saved model."""
        config = {key: _plain(value) for key, value in self.loss.get_config_dict().items()}
        record = {
            "options": self.options,
            "files": self.files,
            "loss": {"class": type(self.loss).__name__, **_without_folders(config)},
            "steps": state.global_step,
            "seconds": self._seconds(),
            "log": [{key: _plain(value) for key, value in entry.items()} for entry in state.log_history],
            "queue": [(entry["step"], entry["queue"]) for entry in state.log_history if "queue" in entry],
            "dev_before": _plain(self.dev_before),
            "best": None if best is None else {"step": best[0], "value": _plain(best[1])},
            "similarities": {"before": self.before, "after": self._similarities()},
            "device": str(self.model.device),
            "peak_mib": _peak_mib(self.model.device),
            "versions": {"python": platform.python_version(), **_versions(_PACKAGES)},
        }
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        (folder / NAME).write_text(text + "\n", encoding="utf-8")

    def _score(self) -> float | None:
        """The development score of the model as it is."""
        if self.evaluator is None:
            return None
        from st_contrastive.evaluation import sts_spearman

        training = self.model.training
        dtype = self.evaluator.dtype  # as the evaluations in training
        with torch.autocast(self.model.device.type, dtype=dtype, enabled=dtype is not None):
            found = sts_spearman(self.model, self.evaluator.pairs, batch_size=self.evaluator.batch_size)
        self.model.train(training)
        return found

    def _similarities(self) -> list[dict[str, Any]] | None:
        """Of each band of gold scores, its bounds and its pairs' cosine similarities."""
        if self.evaluator is None:
            return None
        from st_contrastive.evaluation import similarity_by_score

        training = self.model.training
        found = similarity_by_score(
            self.model, self.evaluator.pairs, bands=_BANDS, batch_size=self.evaluator.batch_size
        )
        self.model.train(training)
        return [
            {"from": low, "to": high, "similarities": [_plain(round(value, 4)) for value in own]}
            for (low, high), own in zip(found.bands, found.similarities, strict=True)
        ]


def as_recorded(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a record has them: those that are set, and of files the last part of the name."""
    return _without_folders({key: value for key, value in options.items() if value is not None})


def _without_folders(options: dict[str, Any]) -> dict[str, Any]:
    # A name of the hub's, organisation/model, is no file.
    named = {key for key in _FILES if options.get(key) is not None}
    files = {key for key in named if key not in _HUB or Path(str(options[key])).exists()}
    return {key: Path(str(value)).name if key in files else value for key, value in options.items()}


def digests(args: argparse.Namespace, names: Sequence[str] = _READ) -> dict[str, str]:
    """SHA-256 of the files that an options' run reads, by option: a name alone does not tell what was in them."""
    given = {name: Path(str(getattr(args, name))) for name in names if getattr(args, name, None)}
    return {name: _digest(path) for name, path in given.items() if path.exists()}


def _digest(path: Path) -> str:
    """Of a file, or of the weights and settings in a model's folder."""
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
        raise ValueError(f"{path} is no record of a training run.")
    return record


def _plain(value: Any) -> Any:
    """A value as JSON has it; what it has not by the name of its class."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__


def _peak_mib(device: torch.device) -> int | None:
    """The most memory of this process: the GPU's, or what was resident; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    try:
        import resource
    except ImportError:
        return None
    per_mib = 2**20 if platform.system() == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // per_mib


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
