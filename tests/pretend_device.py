"""A pretend GPU: tensors that say that they lie on ``cuda:0``, and whose numbers lie in the CPU's memory.

It stands in for a GPU in three ways:

- a tensor of the device and one of the CPU can't be used together, but where CUDA allows it: the CPU's tensor is a
  number (0-d) in an elementwise function, or an index;
- what a program asks a tensor is answered as on CUDA: ``device``, ``is_cuda``, ``Module.to``, pinned memory, events;
- whatever would make the program wait for a GPU is written down, with the function that asked for it.

All computing is the CPU's own, and so are random numbers: the same seed draws the same on both.

It does not stand in for a GPU's kernels, memory, streams or own random numbers, nor for backward passes in a thread of
their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_aten = torch.ops.aten

#: Functions that put a tensor on another device.
_COPIES = (_aten.copy_, _aten._to_copy, _aten.copy)
#: Functions, beside the elementwise ones, that take a CPU's number (0-d) for a tensor of the device.
_TAKE_NUMBERS = (_aten.fill_, _aten.fill, _aten.masked_fill, _aten.masked_fill_, _aten.index_put, _aten.index_put_)
_INDEXING = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_)
#: How often a function waits whose tags do not tell. Multinomial looks whether its probabilities can be drawn from.
_WAITS = {_aten.multinomial: 2, _aten.bincount: 1}


@dataclass(frozen=True)
class Synchronisation:
    """One moment at which a program waits for the device.

    Args:
        kind: "number read", "copy to the CPU", "copy to the device", "search" (a shape that depends on values), or
            "event", which waits for what the device was given before the event alone.
        place: module and function that asked for it, the innermost one outside of torch.
    """

    kind: str
    place: str


class PretendTensor(Tensor):
    """A tensor of the device."""

    numbers: Tensor  # on the CPU
    device = property(lambda _: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda _: True)  # type: ignore[assignment]
    is_meta = property(lambda _: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: Tensor) -> PretendTensor:
        # To torch's own code it is one of the meta device, which has shapes alone.
        with torch.inference_mode(numbers.is_inference()) if torch.is_inference_mode_enabled() else nullcontext():
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                numbers.size(),
                strides=numbers.stride(),
                storage_offset=numbers.storage_offset(),
                dtype=numbers.dtype,
                device="meta",
            )
        made.numbers = numbers
        return made

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: PretendTensor) -> None:
        self.numbers = value.numbers
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.numbers.untyped_storage()

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, values: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        return torch.tensor(values, dtype=dtype or self.dtype, device=device or DEVICE)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        kwargs = {"device": None, "dtype": None, "non_blocking": False, "copy": False, **kwargs}
        for value in args:
            if isinstance(value, Tensor):
                kwargs.update(device=value.device, dtype=value.dtype)
            else:
                kwargs["dtype" if isinstance(value, torch.dtype) else "device"] = value
        device = torch.device(kwargs.pop("device") or DEVICE)
        if device.type == "meta":  # what torch's own code takes it to be of
            device = DEVICE
        same = device.type == DEVICE.type and kwargs["dtype"] in (None, self.dtype)
        if same and not kwargs["copy"]:
            return self
        del kwargs["copy"]
        return _aten._to_copy(self, device=device, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            made = self.detach().clone(memory_format=torch.preserve_format).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                made = torch.nn.Parameter(made, self.requires_grad)
            memo[id(self)] = made
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.numbers.__reduce_ex__(protocol)  # a file is read onto the CPU

    def __repr__(self, **_: Any) -> str:
        return f"PretendTensor({self.numbers!r})"

    __str__ = __repr__

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.to:  # a tensor of the CPU, to where this one is
                source, other, *rest = args
                return source.to(other.device, other.dtype, *rest, **(kwargs or {}))
            if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
                own, index, *rest = args
                parts = index if isinstance(index, tuple) else (index,)
                # Torch's own code would make the indices on the device that it takes this tensor to be of.
                args = (own, tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts), *rest)
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Calls(TorchDispatchMode):
    """Sees the calls that have no tensor of the device among their arguments: those that make one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_inference_mode_enabled():  # what is made of other functions then comes here whole
            with self:
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        return _run(func, args, kwargs or {})


class _Requests(TorchFunctionMode):
    """Tells a program that asks for the meta device from torch's own code."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        global _asked_for_meta
        before, kwargs = _asked_for_meta, kwargs or {}
        named = [value for value in (*args, kwargs.get("device")) if isinstance(value, (str, torch.device))]
        _asked_for_meta = before or any(str(value) == "meta" for value in named)
        try:
            return func(*args, **kwargs)
        finally:
            _asked_for_meta = before


_asked_for_meta = False
_watched: list[list[Synchronisation]] = []


def _wait(kind: str, times: int = 1) -> None:
    for found in _watched:
        found.extend([Synchronisation(kind, _place())] * times)


def _place() -> str:
    """Module and function of the innermost frame that is neither torch's nor of this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        # The caller whose value is read counts, not the helper that reads it.
        if module != __name__ and not module.startswith(("torch.", "st_contrastive.distributed")) and module != "torch":
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "backward"


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function on the CPU's numbers; its results are the device's where an argument is, or where it is asked."""
    own: list[PretendTensor] = []
    others: list[Tensor] = []

    def look(value: Any) -> Any:
        if isinstance(value, PretendTensor):
            own.append(value)
            return value.numbers
        if isinstance(value, Tensor):
            others.append(value)
        return value

    plain_args, plain_kwargs = _each(look, args), _each(look, kwargs)
    asked = kwargs.get("device")
    # Torch's own code asks for the meta device, which it takes the tensors to be of.
    there = asked is not None and (asked.type == DEVICE.type or (asked.type == "meta" and (own or not _asked_for_meta)))
    if there:
        plain_kwargs["device"] = _CPU
    pinned = bool(plain_kwargs.pop("pin_memory", False))
    packet = getattr(func, "overloadpacket", None)
    if own and packet not in _COPIES:
        _require_one_device(func, packet, others)
    _count(func, packet, args, kwargs, own, others, there)
    result = func(*plain_args, **plain_kwargs)
    known = {id(tensor.numbers): tensor for tensor in own}
    lies_there = there if asked is not None else bool(own)
    if packet is _aten.copy_:
        lies_there = isinstance(args[0], PretendTensor)

    def give(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, PretendTensor):
            return value
        if id(value) in known:  # written in place
            same = known[id(value)]
            if same.shape != value.shape:
                raise NotImplementedError(f"{func} changes a tensor's shape in place.")
            return same
        if pinned:
            value.lies_in_pinned_memory = True  # type: ignore[attr-defined]
        return PretendTensor(value) if lies_there else value

    return _each(give, result)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """The value, or a copy of the list, tuple or dict with each of its values, after the function."""
    if isinstance(value, (list, tuple)):
        return type(value)([_each(function, part) for part in value])
    if isinstance(value, dict):
        return {name: _each(function, part) for name, part in value.items()}
    return function(value)


def _require_one_device(func: Any, packet: Any, others: list[Tensor]) -> None:
    takes_numbers = torch.Tag.pointwise in func.tags or packet in _TAKE_NUMBERS
    for tensor in others:
        if packet in _INDEXING and not tensor.is_floating_point():
            continue
        if tensor.device.type == "cpu" and (tensor.ndim > 0 or not takes_numbers):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
                f"(when checking argument of shape {tuple(tensor.shape)} in {func})"
            )


def _count(
    func: Any,
    packet: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    own: list[PretendTensor],
    others: list[Tensor],
    there: bool,
) -> None:
    """Write down what would wait for the device."""
    if packet in _COPIES:
        pair = (args[0], args[1]) if packet is not _aten._to_copy else None
        source = isinstance(pair[1] if pair else args[0], PretendTensor)
        asked = kwargs.get("device")
        target = isinstance(pair[0], PretendTensor) if pair else (there or (asked is None and source))
        number = not source and pair is not None and pair[1].ndim == 0
        blocking = not (kwargs.get("non_blocking") or (pair is not None and len(args) > 2 and args[2]))
        if source and not target and (blocking or not getattr(args[0], "lies_in_pinned_memory", False)):
            _wait("copy to the CPU")
        elif target and not source and blocking and not number:
            _wait("copy to the device")
    elif not own:
        return
    elif packet in _INDEXING:
        indices = args[1]
        if any(index is not None and index.device.type == "cpu" for index in indices):
            _wait("copy to the device")
        masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
        fills = packet is not _aten.index and args[2].ndim == 0
        if masks and not fills:
            _wait("search")
    elif packet in _WAITS:
        _wait("number read", _WAITS[packet])
    elif packet is _aten.repeat_interleave:
        if kwargs.get("output_size") is None:
            _wait("search")
    elif torch.Tag.data_dependent_output in func.tags:
        _wait("number read")
    elif torch.Tag.dynamic_output_shape in func.tags and packet is not _aten.nonzero_static:
        _wait("search")


class _Event:
    """``torch.cuda.Event``: by the time it is asked for, the CPU has done all that was recorded."""

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        _wait("event")


@contextmanager
def pretend_device() -> Iterator[list[Synchronisation]]:
    """While open, ``torch.device("cuda", 0)`` can be used. Gives the list that synchronisations are written to.

    ``watching`` counts those of a part.
    """
    lifted = torch._C._only_lift_cpu_tensors()
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        found = stack.enter_context(watching())
        for name, value in {
            "torch.cuda._lazy_init": lambda: None,
            "torch.cuda.Event": _Event,
            "torch.cuda.current_stream": lambda device=None: SimpleNamespace(),
        }.items():
            stack.enter_context(mock.patch(name, value))
        # torch.tensor(values, device=...) is then made on the CPU and copied, where a mode sees it.
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        # Parameters that are moved stay the same objects, as on CUDA.
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swapped)
        stack.enter_context(_Calls())
        stack.enter_context(_Requests())
        yield found


@contextmanager
def watching() -> Iterator[list[Synchronisation]]:
    """While open, synchronisations are written to the list that it gives."""
    found: list[Synchronisation] = []
    _watched.append(found)
    try:
        yield found
    finally:
        # By identity: equal lists are not the same.
        del _watched[next(i for i, known in enumerate(_watched) if known is found)]
