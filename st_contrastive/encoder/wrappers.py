"""What stands around an encoder, or in it, that decides how it may be run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from st_contrastive.encoder.model import text_module, wrapper_chain


@dataclass(frozen=True)
class Surroundings:
    """What was found around and in a model.

    Args:
        compiled: torch.compile stands around it, or around a part of it.
        checkpointed: layers are run again in the backward pass.
        hooked: somebody looks at its modules' inputs or outputs.
        replayed: a loss around this one, such as MatryoshkaLoss, stands in place of its pass, counts the passes and
            gives out for one what it kept from another.
        batch_statistics: what it makes of a row depends on the batch's others.
        parallel: DataParallel runs it in threads.
        synchronises_buffers: each of its passes is one that all ranks must make.
    """

    compiled: bool = False
    checkpointed: bool = False
    hooked: bool = False
    replayed: bool = False
    batch_statistics: bool = False
    parallel: bool = False
    synchronises_buffers: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> Surroundings:
        """Those of a model, in whatever wrapper.

        Raises:
            ValueError: a loss around this one stands in place of the Transformer module's pass (AdaptiveLayerLoss).
        """
        if _is_replaced(text_module(model)):
            raise ValueError(
                "A loss around this one, such as AdaptiveLayerLoss, hands the layers' states on from pass to pass in "
                "the batch, of which this loss takes copies. Train this loss by itself."
            )
        *wrappers, inner = wrapper_chain(model)
        found = {"compiled": False, "checkpointed": False, "hooked": False, "batch_statistics": False}
        # Met at every step: the modules' own dictionaries are asked, which cost less than their attributes.
        for module in (*wrappers, *inner.modules()):
            own = vars(module)
            found["compiled"] |= "_orig_mod" in module._modules or own.get("_compiled_call_impl") is not None
            checkpointing = own.get("gradient_checkpointing") is True
            found["checkpointed"] |= checkpointing or "_checkpoint_wrapped_module" in module._modules
            found["batch_statistics"] |= isinstance(module, _BatchNorm)
        for module in inner.modules():
            found["hooked"] |= bool(module._forward_hooks or module._forward_pre_hooks)
        return cls(
            **found,
            replayed=_is_replaced(inner),
            parallel=any(isinstance(wrapper, nn.DataParallel) for wrapper in wrappers),
            synchronises_buffers=any(
                isinstance(wrapper, DistributedDataParallel)
                and wrapper.broadcast_buffers
                and next(iter(wrapper.module.buffers()), None) is not None
                for wrapper in wrappers
            ),
        )


def _is_replaced(module: nn.Module) -> bool:
    return type(vars(module).get("forward")).__module__.startswith("sentence_transformers.")
