"""Shared by InfoCSE and DiffCSE: a network that gets the sentence vector detects replaced tokens."""

from __future__ import annotations

from torch import Tensor

from st_contrastive.components import ReplacedTokenDetector
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch
from st_contrastive.losses.step import Step
from st_contrastive.objectives import replaced_tokens


def replaced_token_detection(
    step: Step, detector: ReplacedTokenDetector, batch: TokenBatch, masked: CorruptedTokens, vectors: Tensor
) -> Tensor:
    """Mean cross-entropy of which tokens the generator replaced, over the attended positions."""

    def detect(rows: TokenBatch, masked: CorruptedTokens, vectors: Tensor) -> tuple[Tensor, Tensor]:
        logits, replaced = detector(rows.token_tensors, vectors, masked)
        return replaced_tokens(logits, replaced, rows.mask, reduction="sum"), (rows.mask != 0).sum()

    return step.token_mean(detect, batch, masked, vectors)[0]
