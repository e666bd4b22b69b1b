"""Where the tests of this folder run: on a GPU where there is one, a few of them on the CPU elsewhere."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sentence_transformers.util import batch_to_device
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.contracts.test_devices import RUNS, made
from tests.pretend_device import Synchronisation

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")


def chosen(names: Iterable[str], *here: str) -> list[str]:
    """All names on a GPU, and those of ``here`` on a CPU, where they only show that the tests themselves are right."""
    known = list(names)
    assert set(here) <= set(known)
    return known if CUDA else list(here)


def moved(columns: list[dict[str, Any]], device: torch.device) -> list[dict[str, Any]]:
    """Copies of the columns on the device."""
    return [batch_to_device(dict(column), device) for column in columns]


def loss_on(
    device: torch.device, name: str, model: Any, german: str, sentences: list[str], dtype: torch.dtype = torch.float32
) -> tuple[Any, list[dict[str, Any]], Tensor]:
    """The loss of that name, its columns and labels. It is made on the CPU, so that its weights are the same there."""
    loss, columns, labels = made(name, model, german, sentences)
    return loss.to(device, dtype), moved(columns, device), labels.to(device)


class CPURandomNumbers(TorchDispatchMode):
    """While open, a GPU's random numbers are drawn on the CPU: for the same seed, the same as there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu"))
        if device.type == "cpu" or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)

        def on_cpu(value: Any) -> Any:
            return value.to("cpu") if isinstance(value, Tensor) else value

        given = {**tree_map(on_cpu, kwargs), **({"device": torch.device("cpu")} if "device" in kwargs else {})}
        found = func(*tree_map(on_cpu, args), **given)
        if func.overloadpacket.__name__.endswith("_"):  # it writes into its first argument
            return args[0].copy_(found)
        return tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, found)


@contextmanager
def watching_cuda() -> Iterator[list[Synchronisation]]:
    """While open, operations that wait for the GPU are written to the list that it gives.

    The debug mode is "warn", not "error", so that one run names all of them. It does not see waits for an event, nor
    those of torch.distributed.
    """
    found: list[Synchronisation] = []

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            found.append(Synchronisation("synchronising operation", _place()))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _place() -> str:
    """Module and function of the innermost frame that is not torch's, as in ``pretend_device``."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module not in ("torch", "warnings") and not module.startswith(("torch.", "st_contrastive.distributed")):
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "backward"


def memory_in_use(device: torch.device) -> int:
    """Bytes of all tensors on the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = {}
    for value in gc.get_objects():
        if type(value) in (Tensor, torch.nn.Parameter) and value.device.type == "cpu":
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


__all__ = ["CUDA", "DEVICE", "RUNS", "CPURandomNumbers", "chosen", "loss_on", "memory_in_use", "moved", "watching_cuda"]
