"""Properties of a SentenceTransformer: its parts, widths, limits, family and wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from accelerate.state import AcceleratorState, is_initialized
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Families in which the padding behind a text does not change its states.
_IGNORE_PADDING = frozenset({
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta",
})  # fmt: skip
#: Names of position embeddings: in BERT, in GPT-2, in GPT, and in OPT and BART.
_POSITION_TABLES = ("position_embeddings", "wpe", "positions_embed", "embed_positions")
#: Modules of sentence-transformers that compute each sentence vector from one pooled vector.
_BEHIND_POOLING = frozenset({"Normalize", "Dense", "LayerNorm", "Dropout"})


def wrapper_chain(model: nn.Module) -> list[nn.Module]:
    """The wrappers around a SentenceTransformer from the outside in, then the SentenceTransformer."""
    chain = [model]
    while not isinstance(chain[-1], SentenceTransformer):
        # torch.compile stores the wrapped module as _orig_mod, DDP and DataParallel as module.
        inner = getattr(chain[-1], "_orig_mod", None) or getattr(chain[-1], "module", None)
        if not isinstance(inner, nn.Module):
            raise TypeError(f"model must be a SentenceTransformer, got {type(chain[-1]).__name__}.")
        chain.append(inner)
    return chain


def unwrap(model: nn.Module) -> SentenceTransformer:
    """The SentenceTransformer inside its wrappers."""
    return cast(SentenceTransformer, wrapper_chain(model)[-1])


def text_module(model: nn.Module) -> Transformer:
    """The Transformer module at the start of the model; a TypeError if there is none that can be trained."""
    first = unwrap(model)[0]
    task = getattr(first, "transformer_task", "none")
    # "fill-mask" returns logits under the name of token embeddings.
    if not isinstance(first, Transformer) or task != "feature-extraction":
        raise TypeError(
            "model must start with Transformer(name, transformer_task='feature-extraction') of sentence-transformers, "
            "which has dropout and returns token embeddings, followed by a Pooling. It starts with "
            f"{type(first).__name__} for the task {task!r}."
        )
    if first.module_output_name != "token_embeddings":
        raise TypeError(
            f"model must return token embeddings to a Pooling, but its {type(first).__name__} returns "
            f"{first.module_output_name}, as CLIP's does. Load a text encoder."
        )
    if first.backend != "torch":
        raise TypeError(
            f"model has the backend {first.backend!r}, which can't be trained. Load it with backend='torch'."
        )
    return cast(Transformer, first)


def get_encoder(model: nn.Module) -> PreTrainedModel:
    """The model of transformers inside, without the wrapper of torch.compile."""
    encoder = text_module(model).model
    return cast(PreTrainedModel, getattr(encoder, "_orig_mod", encoder))


def get_tokenizer(model: nn.Module) -> PreTrainedTokenizerBase:
    """The model's tokenizer."""
    return cast(PreTrainedTokenizerBase, text_module(model).tokenizer)


def embedding_width(model: nn.Module) -> int:
    """Width of the sentence vectors in training, which ``truncate_dim`` does not shorten."""
    widths = (getattr(module, "get_embedding_dimension", None) for module in reversed(list(unwrap(model))))
    return next(int(width()) for width in widths if callable(width))  # the first module has one


def token_width(model: nn.Module) -> int:
    """Width of the token vectors that the encoder returns."""
    return int(text_module(model).get_embedding_dimension())


def weights_dtype(model: nn.Module) -> torch.dtype:
    """The dtype for weights that a loss adds: the encoder's, but at least float32. torch's default is ignored."""
    return torch.promote_types(get_encoder(model).dtype, torch.float32)


def embedding_matrix(encoder: PreTrainedModel) -> Tensor:
    """The token embeddings (V, e), where e may differ from the layers' width, as in ALBERT and ELECTRA."""
    try:
        weight = getattr(encoder.get_input_embeddings(), "weight", None)
    except NotImplementedError:
        weight = None
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise ValueError(
            f"{type(encoder).__name__} has no matrix of token embeddings, which this loss reads. Use SimCSELoss with "
            "mlm_weight=0, or an encoder such as BERT or RoBERTa."
        )
    return weight


@contextmanager
def frozen_embeddings(model: nn.Module) -> Iterator[None]:
    """Context in which computations give the token embeddings no gradient."""
    trained = [weight for weight in get_encoder(model).get_input_embeddings().parameters() if weight.requires_grad]
    for weight in trained:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)


def learned_positions(network: PreTrainedModel) -> int | None:
    """The number of tokens that a network has position embeddings for; None if it learns no position embeddings."""
    for name, module in network.named_modules():
        if name.rpartition(".")[2] in _POSITION_TABLES and isinstance(module, nn.Embedding):
            if module.padding_idx is not None:  # RoBERTa counts positions from the padding index on
                return module.num_embeddings - module.padding_idx - 1
            stated = getattr(network.config, "max_position_embeddings", None)  # OPT's first rows are unused
            return min(module.num_embeddings, stated or module.num_embeddings)
    return None


def has_dropout(model: nn.Module) -> bool:
    """Whether dropout can make two passes in training differ."""
    has_layers = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    # Some families apply dropout without a module.
    settings = ("attention_dropout", "dropout", "hidden_dropout")
    return has_layers or any(getattr(get_encoder(model).config, name, 0) for name in settings)


def dropout_setting(model: nn.Module) -> str | None:
    """The name of the setting in the encoder's configuration for its layers' dropout; None if it is unknown."""
    names = [name for name in get_encoder(model).config.to_dict() if "dropout" in name or "pdrop" in name]
    return min(names, key=lambda name: "att" in name or "classif" in name, default=None)


def vocabulary_size(encoder: PreTrainedModel) -> int | None:
    """The number of token embeddings; None if the encoder has no matrix of them."""
    try:
        return len(embedding_matrix(encoder))
    except ValueError:
        return None


def is_causal(model: nn.Module) -> bool:
    """Whether each token of the encoder only sees the tokens before it."""
    return any(getattr(module, "is_causal", False) is True for module in get_encoder(model).modules())


def reads_first_token(model: nn.Module) -> bool:
    """Whether the model has first-token pooling ("cls")."""
    return any(isinstance(m, Pooling) and m.pooling_mode in ("cls", ("cls",), ["cls"]) for m in unwrap(model))


@dataclass(frozen=True)
class ModelState:
    """The state of the model at a step. It may have been wrapped, compiled or changed since the loss was built."""

    encoder: PreTrainedModel
    is_training: bool  # both the SentenceTransformer and the encoder; transformers loads in evaluation mode
    pads_right: bool
    pad_token_id: int
    ignores_padding: bool  # neither padding nor the other texts of a batch change a text's vectors
    is_compiled: bool  # the model or its encoder
    broadcasts_buffers: bool  # DDP broadcasts before each pass, so all processes need the same number of passes
    replays_outputs: bool  # a wrapper loss (MatryoshkaLoss) makes the model return the output of an earlier pass
    replays_layers: bool  # a wrapper loss (AdaptiveLayerLoss) makes its first module do so
    is_prepared: bool  # accelerate runs the model's forward pass under autocast

    @classmethod
    def of(cls, model: nn.Module) -> ModelState:
        """The current state of a model, with or without wrappers."""
        chain = wrapper_chain(model)
        inner = cast(SentenceTransformer, chain[-1])
        first, behind = text_module(inner), list(inner)[1:]
        encoder, tokenizer = get_encoder(inner), get_tokenizer(inner)
        return cls(
            encoder,
            is_training=inner.training and encoder.training,
            pads_right=tokenizer.padding_side == "right",
            pad_token_id=tokenizer.pad_token_id or 0,
            ignores_padding=encoder.config.model_type in _IGNORE_PADDING
            and [type(module) for module in behind[:1]] == [Pooling]
            and {type(module).__name__ for module in behind[1:]} <= _BEHIND_POOLING,
            is_compiled=any(_is_compiled(module) for module in (*chain, first.model)),
            broadcasts_buffers=any(_broadcasts_buffers(module) for module in chain),
            replays_outputs=_is_replayed(inner),
            replays_layers=_is_replayed(first),
            is_prepared=hasattr(inner, "_original_forward"),
        )

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast for the computations of a loss, since accelerate only opens it in the model's forward pass."""
        mixed = AcceleratorState().mixed_precision if is_initialized() and self.is_prepared else "no"
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return torch.autocast(self.encoder.device.type, dtypes[mixed]) if mixed in dtypes else nullcontext()


def _is_compiled(module: nn.Module) -> bool:
    return bool(vars(module).get("_compiled_call_impl")) or "_orig_mod" in vars(module)["_modules"]


def _broadcasts_buffers(module: nn.Module) -> bool:
    is_ddp = isinstance(module, DistributedDataParallel)
    return is_ddp and bool(module.broadcast_buffers) and next(module.buffers(), None) is not None


def _is_replayed(module: nn.Module) -> bool:
    return type(vars(module).get("forward")).__module__.startswith("sentence_transformers.")
