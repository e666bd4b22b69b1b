"""Facts about a SentenceTransformer: its parts, widths, limits, family traits and wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import is_sentence_transformer_model
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def wrapper_chain(model: nn.Module) -> list[nn.Module]:
    """The wrappers around a SentenceTransformer, outermost first, and the SentenceTransformer itself, last.

    DDP has what it wraps as ``module``, torch.compile as ``_orig_mod``.

    Raises:
        TypeError: there is no SentenceTransformer inside.
    """
    found = [model]
    while not isinstance(found[-1], SentenceTransformer):
        # A compiled module passes "module" on to what it compiled: look at its own attribute first.
        inner = getattr(found[-1], "_orig_mod", None) or getattr(found[-1], "module", None)
        if not isinstance(inner, nn.Module):
            raise TypeError(f"model must be a SentenceTransformer, got {type(found[-1]).__name__}.")
        found.append(inner)
    return found


def unwrap(model: nn.Module) -> SentenceTransformer:
    """The SentenceTransformer inside its wrappers."""
    return cast(SentenceTransformer, wrapper_chain(model)[-1])


def settings_of(model: SentenceTransformer) -> dict[str, Any]:
    """What a SentenceTransformer has beside its modules, as arguments of another."""
    names = ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name")
    return {name: getattr(model, name) for name in names}


def text_module(model: nn.Module) -> Transformer:
    """The token-level Transformer module that the model starts with.

    Raises:
        TypeError: the model has none, or it gives no token embeddings.
    """
    first = unwrap(model)[0]
    if not isinstance(first, Transformer) or first.module_output_name != "token_embeddings":
        raise TypeError(
            f"model must start with a token-level Transformer module, got {type(first).__name__}: these losses need "
            "dropout and token embeddings. Build the model as SentenceTransformer(modules=[Transformer(name), "
            "Pooling(width, 'cls')])."
        )
    return cast(Transformer, first)


def encoder_of(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside."""
    return text_module(model).model


def tokenizer_of(model: nn.Module) -> PreTrainedTokenizerBase:
    """The tokenizer inside."""
    return cast(PreTrainedTokenizerBase, text_module(model).tokenizer)


def embedding_width(model: nn.Module) -> int:
    """Width of the sentence embeddings in training, where ``truncate_dim`` does not cut them."""
    for module in reversed(list(unwrap(model))):
        width = getattr(module, "get_embedding_dimension", None)
        if callable(width):
            return int(width())
    raise ValueError("model does not tell its embedding dimension; end it with a Pooling or Dense module.")


def token_width(model: nn.Module) -> int:
    """Width of the token embeddings."""
    return int(text_module(model).get_embedding_dimension())


def input_embedding_width(model: nn.Module) -> int:
    """Width of the embedding matrix, which some families (ALBERT, ELECTRA) project to that of the layers."""
    return cast(Tensor, encoder_of(model).get_input_embeddings().weight).shape[1]


def vocabulary_size(model: nn.Module) -> int:
    """The number of tokens that the encoder knows."""
    return cast(Tensor, encoder_of(model).get_input_embeddings().weight).shape[0]


def is_saved_model(name: str) -> bool:
    """Whether a folder or hub name is a saved SentenceTransformer, and not a plain checkpoint."""
    return bool(is_sentence_transformer_model(name))


def max_positions(model: nn.Module) -> int | None:
    """Most tokens that the encoder has positions for; None where it tells no limit."""
    table = position_table(encoder_of(model))
    config = encoder_of(model).config.get_text_config()  # of several modalities, the text's
    limit = getattr(config, "max_position_embeddings", None) if table is None else table
    return limit if isinstance(limit, int) and limit > 0 else None


def position_table(network: PreTrainedModel) -> int | None:
    """Most tokens that a network's table of position embeddings has rows for: a longer text fails.

    None where it has no such table, as encoders with relative or rotary positions. Families with RoBERTa's position ids
    start counting behind the padding index, and lose that many rows.
    """
    for name, module in network.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            if module.padding_idx is not None:
                return module.num_embeddings - module.padding_idx - 1
            stated = getattr(network.config, "max_position_embeddings", None)  # some tables begin with a gap
            return min(module.num_embeddings, stated or module.num_embeddings)
    return None


def has_dropout(model: nn.Module) -> bool:
    """Whether two passes of the model in training can differ."""
    encoder = encoder_of(model)
    layers = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    # Some families apply it without a module.
    functional = ("attention_dropout", "dropout", "hidden_dropout")
    return layers or any(getattr(encoder.config, name, 0) for name in functional)


def dropout_setting(model: nn.Module) -> str | None:
    """The name of the layers' dropout in the encoder's configuration; None where none is found."""
    settings = encoder_of(model).config.to_dict()
    names = (
        "hidden_dropout_prob", "hidden_dropout", "dropout", "dropout_rate", "resid_pdrop", "resid_dropout",
        "embedding_dropout", "attention_dropout",
    )  # fmt: skip
    return next((name for name in names if name in settings), None)


def begins_with_special_token(model: nn.Module) -> bool:
    """Whether the tokenizer puts a special token, such as [CLS], before each text."""
    mask = tokenizer_of(model)("a", return_special_tokens_mask=True)["special_tokens_mask"]
    return bool(mask and mask[0])


POOLING_MODES: tuple[str, ...] = tuple(Pooling.POOLING_MODES)


#: Modules of sentence-transformers that read only the pooled vector.
_BEHIND_POOLING = ("Normalize", "Dense", "LayerNorm", "Dropout")
_PACKAGE = "sentence_transformers."


def embeds_first_token(model: nn.Module) -> bool:
    """Whether the sentence embedding is made of the first token's last state alone."""
    behind = list(unwrap(model))[1:]
    if not behind or type(behind[0]) is not Pooling or behind[0].pooling_mode not in ("cls", ("cls",), ["cls"]):
        return False
    kinds = [type(module) for module in behind[1:]]
    return all(kind.__name__ in _BEHIND_POOLING and kind.__module__.startswith(_PACKAGE) for kind in kinds)


@dataclass(frozen=True)
class Wrapping:
    """How a model is wrapped and what watches it, which decides how it may be run.

    Args:
        compiled: the model, or a part of it, is under torch.compile.
        checkpointed: layers are run again in the backward pass.
        hooked: a module of the model has a forward hook.
        replayed: a loss around this one, such as MatryoshkaLoss, replaces the model's forward pass and returns the
            kept output of an earlier pass.
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

    @property
    def intercepted(self) -> bool:
        """Whether something other than the model's own code runs or watches its passes."""
        return self.compiled or self.hooked or self.replayed or self.parallel

    @classmethod
    def of(cls, model: nn.Module) -> Wrapping:
        """The wrapping of a model, as it is now.

        Raises:
            ValueError: a loss around this one replaces the Transformer module's forward pass (AdaptiveLayerLoss).
        """
        if _is_replaced(text_module(model)):
            raise ValueError(
                "A loss around this one, such as AdaptiveLayerLoss, passes layer states through the batch's dict, "
                "which this loss copies. Train this loss by itself."
            )
        *wrappers, inner = wrapper_chain(model)
        compiled = any(_is_compiled(vars(wrapper)) for wrapper in wrappers)
        checkpointed = any(_is_checkpointed(vars(wrapper)) for wrapper in wrappers)
        hooked = batch_statistics = False
        pending: list[nn.Module | None] = [inner]
        # At every step, over all modules: reading their dictionaries is four times as fast as reading attributes.
        while pending:
            module = pending.pop()
            if module is None:
                continue
            own = module.__dict__
            compiled = compiled or _is_compiled(own)
            checkpointed = checkpointed or _is_checkpointed(own)
            if own["_forward_hooks"] or own["_forward_pre_hooks"]:
                hooked = hooked or _is_hooked(own["_forward_hooks"]) or _is_hooked(own["_forward_pre_hooks"])
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


def _is_hooked(hooks: Mapping[int, object]) -> bool:
    # transformers' own stay for good after one pass that returned the states of all layers.
    return any(getattr(hook, "__module__", "") != "transformers.utils.output_capturing" for hook in hooks.values())


def _is_compiled(own: dict[str, object]) -> bool:
    return own.get("_compiled_call_impl") is not None or "_orig_mod" in own["_modules"]  # type: ignore[operator]


def _is_checkpointed(own: dict[str, object]) -> bool:
    return own.get("gradient_checkpointing") is True or "_checkpoint_wrapped_module" in own["_modules"]  # type: ignore[operator]


def _is_replaced(module: nn.Module) -> bool:
    return type(vars(module).get("forward")).__module__.startswith("sentence_transformers.")
