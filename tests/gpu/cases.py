"""Device and cases of these tests: all cases on a GPU, or a few of them on the CPU if there is no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers.util import batch_to_device
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from st_contrastive import FraternalEmbedding, TwinsLoss
from tests import foreign
from tests.cases import CASES, build_loss, columns

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
GERMAN = "twins-german"
RUNS = (*CASES, GERMAN)


def chosen(names: Iterable[str], *here: str) -> list[str]:
    """All names on a GPU. On a CPU only those of ``here``, which check the tests themselves."""
    known = list(names)
    assert set(here) <= set(known)
    return known if CUDA else list(here)


def moved(batch: list[dict[str, Any]], device: torch.device) -> list[dict[str, Any]]:
    """Copy the columns to the device."""
    return [batch_to_device(dict(column), device) for column in batch]


def loss_on(
    device: torch.device, name: str, model: Any, german: str, sentences: list[str], **options: Any
) -> tuple[Any, list[dict[str, Any]], Tensor]:
    """Loss, columns and labels of a case. The loss is built on the CPU, and has the same weights on all devices."""
    torch.manual_seed(3)
    labels = torch.zeros(len(sentences))
    if name == GERMAN:
        fraternal = FraternalEmbedding.from_pretrained(german, model, max_length=30)
        labels = torch.tensor(fraternal.encode_labels(foreign.GERMAN))
        loss, batch = TwinsLoss(model, fraternal=fraternal, **options), [model.preprocess(sentences)]
    else:
        loss, batch = build_loss(name, model, **options), columns(model, sentences, name)
    loss.group_by_length = False  # as on a GPU
    return loss.to(device), moved(batch, device), labels.to(device)


class CPURandomNumbers(TorchDispatchMode):
    """Context in which random numbers are drawn on the CPU, so that a seed gives the same numbers on a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu"))
        if device.type == "cpu" or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)

        def on_cpu(value: Any) -> Any:
            return value.to("cpu") if isinstance(value, Tensor) else value

        options = {**tree_map(on_cpu, kwargs), **({"device": torch.device("cpu")} if "device" in kwargs else {})}
        found = func(*tree_map(on_cpu, args), **options)
        if func.overloadpacket.__name__.endswith("_"):  # it writes into its first argument
            return args[0].copy_(found)
        return tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, found)
