"""How a model is wrapped and watched, which decides how it may be run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from st_contrastive.encoder.model import text_module, wrapper_chain


@dataclass(frozen=True)
class Wrapping:
    """What was found around a model and in it.

    Args:
        compiled: the model, or a part of it, is under torch.compile.
        checkpointed: layers are run again in the backward pass.
        hooked: a module of the model has a forward hook.
        replayed: a loss around this one, such as MatryoshkaLoss, replaces the model's forward pass, counts the passes
            and returns for one what it kept of another.
        batch_statistics: the output for a row depends on the other rows of the batch (BatchNorm).
        parallel: DataParallel runs the model in threads.
        synchronises_buffers: DistributedDataParallel broadcasts buffers in each pass, so that all processes must make
            the same number of passes.
    """

    compiled: bool = False
    checkpointed: bool = False
    hooked: bool = False
    replayed: bool = False
    batch_statistics: bool = False
    parallel: bool = False
    synchronises_buffers: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> Wrapping:
        """The wrapping of a model, as it is now.

        Raises:
            ValueError: a loss around this one replaces the Transformer module's forward pass (AdaptiveLayerLoss).
        """
        if _is_replaced(text_module(model)):
            raise ValueError(
                "A loss around this one, such as AdaptiveLayerLoss, hands the layers' states on from pass to pass in "
                "the batch, of which this loss takes copies. Train this loss by itself."
            )
        *wrappers, inner = wrapper_chain(model)
        compiled = any(_is_compiled(vars(wrapper)) for wrapper in wrappers)
        checkpointed = any(_is_checkpointed(vars(wrapper)) for wrapper in wrappers)
        hooked = batch_statistics = False
        pending: list[nn.Module | None] = [inner]
        while pending:  # at every step, over all modules: their dictionaries are four times as fast as their attributes
            module = pending.pop()
            if module is None:
                continue
            own = module.__dict__
            compiled = compiled or _is_compiled(own)
            checkpointed = checkpointed or _is_checkpointed(own)
            hooked = hooked or bool(own["_forward_hooks"] or own["_forward_pre_hooks"])
            batch_statistics = batch_statistics or isinstance(module, _BatchNorm)
            pending.extend(own["_modules"].values())
        return cls(
            compiled=compiled,
            checkpointed=checkpointed,
            hooked=hooked,
            batch_statistics=batch_statistics,
            replayed=_is_replaced(inner),
            parallel=any(isinstance(wrapper, nn.DataParallel) for wrapper in wrappers),
            synchronises_buffers=any(
                isinstance(wrapper, DistributedDataParallel)
                and wrapper.broadcast_buffers
                and next(iter(wrapper.module.buffers()), None) is not None
                for wrapper in wrappers
            ),
        )


def _is_compiled(own: dict[str, object]) -> bool:
    return own.get("_compiled_call_impl") is not None or "_orig_mod" in own["_modules"]  # type: ignore[operator]


def _is_checkpointed(own: dict[str, object]) -> bool:
    return own.get("gradient_checkpointing") is True or "_checkpoint_wrapped_module" in own["_modules"]  # type: ignore[operator]


def _is_replaced(module: nn.Module) -> bool:
    return type(vars(module).get("forward")).__module__.startswith("sentence_transformers.")
