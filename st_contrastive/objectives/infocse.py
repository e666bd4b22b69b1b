"""InfoCSE's own term: masked-LM cross-entropy."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from st_contrastive.objectives.contrast import full_precision

#: Label of a position that is not predicted, as in transformers and PyTorch.
IGNORED = -100
#: Logits computed at a time: 256 MiB in float32, or 2,200 masked positions under BERT's vocabulary. Most batches fit,
#: and larger ones do not need more memory.
MOST_LOGITS = 2**26


def masked_lm(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Mean masked-LM cross-entropy of the masked positions, as in InfoCSE (Wu et al., EMNLP Findings 2022).

    .. math::
        \ell = \frac{1}{|\mathcal{M}|} \sum_{i \in \mathcal{M}} -\log p(x_i \mid \tilde{x}, h)

    Args:
        logits: (..., V). To save work, pass the masked positions only, (M, V).
        labels: (...), the original token ids; -100 marks a position that is not counted.

    Returns:
        0-d tensor, at least float32; 0 if nothing is masked.

    Raises:
        ValueError: the shapes do not fit.

    Example:
        >>> import torch
        >>> round(masked_lm(torch.zeros(3, 8), torch.tensor([1, 5, -100])).item(), 4)  # log 8
        2.0794
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"labels must have the shape of logits without the vocabulary, {tuple(logits.shape[:-1])}, "
            f"got {tuple(labels.shape)}."
        )
    flat, targets = full_precision(logits).reshape(-1, logits.shape[-1]), labels.reshape(-1)
    total = F.cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


def masked_lm_in_chunks(
    hidden: Tensor,
    labels: Tensor,
    project: Callable[[Tensor], Tensor],
    *,
    vocabulary: int,
    most_logits: int = MOST_LOGITS,
) -> Tensor:
    """:func:`masked_lm` of ``project(hidden)``, with at most ``most_logits`` logits in memory at a time.

    Logits are the largest tensors of a masked-LM step: 1,500 masked positions under a vocabulary of 30,000 take 180 MB
    in float32, and as much again for their gradient. Above the limit they are computed in chunks of positions, and
    recomputed in the backward pass.

    Args:
        hidden: (M, d), last hidden states of the masked positions.
        labels: (M,), their original token ids.
        project: (m, d) to (m, V), the masked-LM head.
        vocabulary: V.
        most_logits: numbers, not bytes; a chunk has at least one position.

    Returns:
        0-d tensor, at least float32; 0 if nothing is masked.

    Example:
        >>> import torch
        >>> hidden, labels, head = torch.randn(9, 4), torch.arange(9), torch.nn.Linear(4, 16)
        >>> whole = masked_lm(head(hidden), labels)
        >>> parts = masked_lm_in_chunks(hidden, labels, head, vocabulary=16, most_logits=48)
        >>> torch.allclose(whole, parts)
        True
    """
    size = max(1, most_logits // vocabulary)
    if len(labels) <= size:
        return masked_lm(project(hidden), labels)

    def sum_of_chunk(hidden: Tensor, labels: Tensor) -> Tensor:
        return masked_lm(project(hidden), labels) * (labels != IGNORED).sum()

    total = hidden.new_zeros((), dtype=full_precision(hidden[:0]).dtype)
    for chunk, targets in zip(torch.split(hidden, size), torch.split(labels, size), strict=True):
        total = total + checkpoint(sum_of_chunk, chunk, targets, use_reentrant=False, preserve_rng_state=False)
    return total / (labels != IGNORED).sum().clamp(min=1)
