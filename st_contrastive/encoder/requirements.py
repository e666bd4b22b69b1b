"""Checks of a model when a loss is built, and freezing of its token embeddings."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from st_contrastive._checks import first_line, warn
from st_contrastive.encoder.layers import embedding_outputs
from st_contrastive.encoder.model import (
    embeds_first_token,
    encoder_of,
    max_positions,
    text_module,
    unwrap,
    wrapper_chain,
)
from st_contrastive.encoder.probe import is_causal, probing


def require_text_encoder(model: nn.Module) -> None:
    """Refuse a model that no loss can train.

    Raises:
        TypeError: the model does not start with a token-level Transformer module.
        ValueError: it has no tokenizer, or one without a vocabulary or a padding token.
    """
    first = text_module(model)
    if not isinstance(first.tokenizer, PreTrainedTokenizerBase):
        raise ValueError(
            "model has no tokenizer, which these losses need to tell words from special tokens. Load the Transformer "
            "module from a folder or name that holds one."
        )
    if len(first.tokenizer) <= len(set(first.tokenizer.all_special_ids)):
        # transformers makes such a tokenizer of a folder without tokenizer files.
        raise ValueError(
            f"model's tokenizer ({type(first.tokenizer).__name__}) has no vocabulary besides special tokens: its "
            "folder has no tokenizer files. "
            "Save the tokenizer beside the encoder (tokenizer.save_pretrained(folder)) and load the model again."
        )
    require_padding(first.tokenizer)


def require_padding(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that can't make a batch of texts of different lengths, such as GPT-2's."""
    if tokenizer.pad_token_id is None:
        raise ValueError(
            f"The tokenizer {type(tokenizer).__name__} has no padding token. Set model.tokenizer.pad_token, for "
            "instance to its end-of-sequence token; for the command line, save the model with it."
        )


def require_trainable(model: SentenceTransformer) -> None:
    """Refuse weights that training would destroy. Warn of weights that hardly move, and of a decoder's first token.

    Raises:
        ValueError: weights that are trained are float16, or the model has no limit to cut texts at.
    """
    if unwrap(model).max_seq_length is None:
        limit = max_positions(model)
        raise ValueError(
            "model.max_seq_length is None, so that texts would not be truncated: set it to a number"
            + (f", at most {limit}, the positions that the encoder has." if limit else ".")
        )
    require_no_half(model, "model has")
    if any(weight.dtype == torch.bfloat16 for weight in model.parameters() if weight.requires_grad):
        warn(
            "model has bfloat16 weights, in which most small updates round away. Load it with model_kwargs={'dtype': "
            "torch.float32}, and give the trainer bf16=True to save time."
        )
    if embeds_first_token(model) and is_causal(model):
        warn(
            "model is a decoder that is read at its first token, which sees no other: sentences that begin alike get "
            "one vector. End it with Pooling(width, 'lasttoken') or 'mean'."
        )


def require_no_half(part: nn.Module, whose: str) -> None:
    """Refuse float16 weights that are trained; ``whose`` begins the message.

    Raises:
        ValueError: there are some.
    """
    if any(weight.dtype == torch.float16 for weight in part.parameters() if weight.requires_grad):
        raise ValueError(
            f"{whose} float16 weights: an optimizer's squared gradients underflow in them, and its steps become "
            "arbitrary. Load the model with model_kwargs={'dtype': torch.float32}, or take model.float(); to save "
            "time, give the trainer fp16=True or bf16=True."
        )


def require_plain_tokens(model: nn.Module, reader: str) -> None:
    """Refuse a model that changes the encoder's token vectors before it pools them.

    Args:
        model: the model.
        reader: what reads them, for the message.

    Raises:
        ValueError: there is such a module.
    """
    adapters = getattr(encoder_of(model), "peft_config", None) or {}
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        raise ValueError(
            f"{reader} reads the encoder's own token vectors, and prompt tuning (PEFT) puts others before them. Take "
            "LoRA, or a loss that reads sentence vectors only, such as SimCSELoss or ConIsILoss."
        )
    for module in list(unwrap(model))[1:]:
        if isinstance(module, Pooling):
            return
        if type(module).__name__ in ("Dense", "CNN", "LSTM", "WordWeights"):
            raise ValueError(
                f"{reader} reads the encoder's own token vectors, and {type(module).__name__} changes them before the "
                "model pools them. Put it behind the Pooling, or take a loss that reads sentence vectors only, such "
                "as SimCSELoss or ConIsILoss."
            )


def freeze_token_embeddings(model: SentenceTransformer) -> None:
    """``requires_grad=False`` for the token embeddings of the model's encoder.

    Raises:
        ValueError: nothing else is trained, or the model is already in DistributedDataParallel.
    """
    layer = encoder_of(model).get_input_embeddings()
    embeddings = {id(parameter) for parameter in layer.parameters()}
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not trained & embeddings:
        return
    if trained <= embeddings:
        raise ValueError(
            "freeze_embeddings=True freezes the token embeddings, and nothing else of the model is trained. Take "
            "freeze_embeddings=False, or set requires_grad of what is to be trained."
        )
    if any(isinstance(module, DistributedDataParallel) for module in wrapper_chain(model)):
        raise ValueError(
            "freeze_embeddings=True freezes the token embeddings, for whose gradient DistributedDataParallel would "
            "wait. Build the loss before the model is wrapped, or take freeze_embeddings=False."
        )
    layer.requires_grad_(False)


def require_embeddings_as_input(encoder: PreTrainedModel, *, outputs: bool = False) -> None:
    """Refuse an encoder that does not accept embeddings in place of token ids.

    Args:
        encoder: the encoder.
        outputs: whether the embedding layer's output must be readable too.

    Raises:
        ValueError: the message says which encoders work.
    """
    ids = torch.ones((2, 8), dtype=torch.long, device=encoder.device)  # Funnel fails on shorter rows
    try:
        with ExitStack() as stack:
            stack.enter_context(probing(encoder, encoder.device))
            captured = stack.enter_context(embedding_outputs(encoder)) if outputs else []
            states = encoder(inputs_embeds=encoder.get_input_embeddings()(ids), attention_mask=torch.ones_like(ids))[0]
        shapes = [states.shape, *(output.shape for output in captured)]
    except Exception as error:  # whatever a family's code raises
        failure = f"{type(error).__name__}: {first_line(error)}"
    else:
        if len(shapes) > outputs and all(shape[:2] == ids.shape for shape in shapes):
            return
        failure = f"from {tuple(ids.shape)} embeddings it makes states of the shapes {[tuple(one) for one in shapes]}"
    readable = ", or does not give its embedding layer's output" if outputs else ""
    raise ValueError(
        f"{type(encoder).__name__} does not accept embeddings as input{readable}, as TwinsLoss needs ({failure}). Take "
        "an encoder such as BERT, RoBERTa, MPNet or Qwen, or another loss, such as SimCSELoss."
    )
