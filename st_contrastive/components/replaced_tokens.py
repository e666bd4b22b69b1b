"""The detector of DiffCSE, which reads a sentence vector to find the tokens that a generator replaced."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from st_contrastive._checks import warn
from st_contrastive.components.auxiliary_files import CONFIG_NAME, load_auxiliary
from st_contrastive.components.heads import new_linear
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.components.pretrained import load_masked_lm, load_tokenizer, vocabulary_checksum
from st_contrastive.components.token_corruption import TokenCorruption
from st_contrastive.encoder.copies import copy_encoder
from st_contrastive.encoder.partial import PartialEncoder, select_arguments
from st_contrastive.encoder.requirements import trial_pass
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch
from st_contrastive.objectives.contrast import at_least_float32


class ReplacedTokenDetector(nn.Module):
    """A frozen generator fills in masked tokens, and a discriminator finds the replaced tokens (Chuang et al., 2022).

    The discriminator is a trained copy of the encoder. The sentence vector replaces its embedding at position 0. The
    better this vector describes the original sentence, the easier it is to find the edits. The gradient reaches the
    encoder only through this vector. The encoder is not changed.

    If ``generator`` is a head, or the folder of an auxiliary network with a head, the generator is a frozen copy of the
    encoder with this head. None uses the head of the encoder's checkpoint. ``DiffCSELoss`` explains the arguments.

    Raises:
        OSError: the generator can't be loaded.
        ValueError: the generator is not a masked-LM model, or has another vocabulary.
    """

    def __init__(
        self,
        encoder: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        generator: str | os.PathLike[str] | PreTrainedModel | MaskedLMHead | None = None,
        mask_rate: float = 0.3,
    ) -> None:
        super().__init__()
        self.masking = TokenCorruption.masking(tokenizer, mask_rate)
        if isinstance(generator, (str, os.PathLike)):
            if (Path(generator).expanduser() / CONFIG_NAME).is_file():
                generator = load_auxiliary(generator, encoder, tokenizer).head
            else:
                generator = _load_generator(generator, tokenizer)
        if isinstance(generator, PreTrainedModel):
            decoder = generator.get_output_embeddings()  # type: ignore[no-untyped-call]
            if decoder is None or generator.config.vocab_size != encoder.config.vocab_size:
                raise ValueError(
                    f"generator must be a masked-LM model with the encoder's {encoder.config.vocab_size} tokens. Got "
                    f"{type(generator).__name__} with {generator.config.vocab_size}."
                )
            generator = copy.deepcopy(generator)
            network = cast(PreTrainedModel, generator.base_model)
            head = MaskedLMHead(generator, "checkpoint", tied=False)
        else:
            network = copy_encoder(encoder)
            head = MaskedLMHead.for_encoder(encoder, tied=None) if generator is None else copy.deepcopy(generator)
            if head.source == "new":
                warn(
                    "The encoder's checkpoint has no masked-LM head, so its copy fills in tokens at random. Set "
                    "generator to a masked-LM checkpoint with the same tokenizer, or to a folder that save_auxiliary "
                    "has written."
                )
        self.generator, self.generator_head = network.requires_grad_(False), head.requires_grad_(False)
        discriminator = copy_encoder(encoder).requires_grad_(True)
        self.discriminator = PartialEncoder(discriminator, 0, "a detector of replaced tokens")
        self.classifier = new_linear(discriminator.config.hidden_size, 2, dtype=discriminator.dtype)
        self.to(discriminator.device)  # a loaded generator is on the CPU
        self.eval()
        ids = torch.tensor([[1, 2]], device=discriminator.device)
        with trial_pass(network, "a generator for this head"):
            self._fill({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids.new_zeros(1))
        self.train(True)

    def forward(self, texts: dict[str, Any], vectors: Tensor, masked: CorruptedTokens) -> tuple[Tensor, Tensor]:
        """Scores (N, L, 2) of "original" and "replaced", and a bool tensor (N, L) that is True for replaced tokens.

        Args:
            texts: the encoder's input.
            vectors: sentence vectors (N, d).
            masked: the output of :attr:`masking`.
        """
        edited = self.replace(texts, masked)
        states = self.discriminator({**texts, "input_ids": edited}, vectors)
        return self.classifier(states), edited != texts["input_ids"]

    def summed_losses(self, rows: TokenBatch, masked: CorruptedTokens, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy of finding replaced tokens (eq. 3 and 4), and the number of tokens without padding."""
        scores, replaced = self(rows.token_tensors, vectors, masked)
        attended = (rows.mask != 0).flatten()
        losses = F.cross_entropy(at_least_float32(scores).flatten(0, 1), replaced.flatten().long(), reduction="none")
        return (losses * attended).sum(), attended.sum()

    @torch.no_grad()
    def replace(self, texts: dict[str, Any], masked: CorruptedTokens) -> Tensor:
        """Replace masked tokens by the likeliest tokens, but never by special ones. Returns token ids (N, L).

        In training the generator has dropout.
        """
        positions = masked.positions()
        logits = self._fill({**texts, "input_ids": masked.input_ids}, positions)
        special = self.masking.special
        logits = logits[:, : len(special)].masked_fill(special[: logits.shape[1]], -torch.inf)
        ids = cast(Tensor, texts["input_ids"])
        return ids.flatten().index_copy(0, positions, logits.argmax(dim=1)).view_as(ids)

    def _fill(self, texts: dict[str, Any], positions: Tensor) -> Tensor:
        """The generator's logits at the masked positions, (M, V)."""
        hidden = self.generator(**select_arguments(self.generator, texts), return_dict=True).last_hidden_state
        return cast(Tensor, self.generator_head(hidden.flatten(0, 1)[positions], self.generator)).float()


def _load_generator(name: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    model, vocabulary = load_masked_lm(name, "generator"), load_tokenizer(name, "generator")
    if model is None or vocabulary_checksum(vocabulary) != vocabulary_checksum(tokenizer):
        raise ValueError(
            f"generator {name} must be a checkpoint with a masked-LM head and the model's tokenizer "
            f"({type(tokenizer).__name__}, {len(tokenizer)} tokens). It has {'no' if model is None else 'a'} head and "
            f"{type(vocabulary).__name__} with {len(vocabulary)} tokens."
        )
    return model
