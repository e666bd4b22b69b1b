"""What InfoCSE and DiffCSE share: terms that are conditioned on the sentence vectors of the two views."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from st_contrastive._checks import require_choice
from st_contrastive.components import Projector, ReplacedTokenDetector, TanhHead
from st_contrastive.encoder import (
    Encoded,
    Rows,
    embedding_width,
    pool_as_model,
    position_table,
    require_plain_tokens,
    token_width,
)
from st_contrastive.losses.base import ContrastiveLoss
from st_contrastive.objectives import replaced_tokens

_HEADS: dict[str, type[nn.Module]] = {"projector": Projector, "tanh": TanhHead}


@dataclass(frozen=True)
class Views:
    """Both dropout views: what is contrasted (2N, d'), and the vectors that the networks are given (2N, d)."""

    contrasted: Tensor
    given: Tensor


class ConditionedLoss(ContrastiveLoss):
    """SimCSE under a training-only head, beside networks that are conditioned on the sentence vector.

    Arguments as in :class:`~st_contrastive.losses.InfoCSELoss`.
    """

    columns = {1: "sentences"}

    def __init__(
        self,
        model: Any,
        *,
        temperature: float,
        head: str | None,
        vector: str,
        weighting: str,
        contrastive_weight: float,
        gather_across_devices: bool,
        mini_batch_size: int | None,
        log_terms: bool,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
            log_terms=log_terms,
        )
        require_plain_tokens(model, type(self).__name__)
        require_choice("head", head, (*_HEADS, None))
        require_choice("weighting", weighting, ("loss", "gradient"))
        width = embedding_width(model)
        if vector == "head" and (head is None or width != token_width(model)):
            raise ValueError(
                "vector='head' gives the networks what the head makes: it needs head='projector' or 'tanh' and an "
                f"embedding as wide as the token vectors ({token_width(model)}), got head={head!r} and {width}. "
                "Take vector='encoder'."
            )
        self.vector, self.weighting, self.contrastive_weight = vector, weighting, contrastive_weight
        self.head: nn.Module | None = None if head is None else _HEADS[head](width)

    def _limit_to_positions(self, detector: ReplacedTokenDetector) -> None:
        """Refuse texts for which the generator has no positions: it may have fewer than the encoder."""
        limits = (self._positions, position_table(detector.generator))
        self._positions = min((limit for limit in limits if limit is not None), default=None)

    def _views(self, column: Rows) -> Views:
        """The two dropout views of a batch."""
        found = self.by_rows(self._encode, column)
        return self._projected(torch.cat(found[:2]), torch.cat(found[2:]) if found[2:] else None)

    def _encode(self, column: Rows) -> tuple[Tensor, ...]:
        encoded = self.encode([column, column])
        return (*(view.sentences for view in encoded), *self._pooled(encoded))

    def _pooled(self, encoded: list[Encoded]) -> tuple[Tensor, ...]:
        """The vectors that the networks are given, unless they are the head's."""
        return () if self.vector == "head" else tuple(pool_as_model(self.model, view) for view in encoded)

    def _projected(self, sentences: Tensor, given: Tensor | None) -> Views:
        contrasted = sentences if self.head is None else self.apply_head(self.head, sentences)
        return Views(contrasted, contrasted if given is None else given)

    def _contrastive(self, views: Views) -> Tensor:
        return self.contrast(*views.contrasted.chunk(2))

    def _weighted(self, weight: float, term: Tensor) -> Tensor:
        """The term as it enters the loss. With "gradient", its gradient into the encoder is scaled already."""
        return term if self.weighting == "gradient" else weight * term

    def _scale(self, weight: float) -> float:
        return weight if self.weighting == "gradient" else 1.0

    def _rtd(self, detector: ReplacedTokenDetector, masked: Rows, views: Views, scale: float) -> Tensor:
        """Replaced-token detection in the masked copies of both views."""

        def detect(rows: Rows) -> tuple[Tensor, ...]:
            vectors = cast(Tensor, rows.vectors)
            logits, replaced = detector(rows.texts, vectors, masked=rows.masked, gradient_scale=scale)
            counted = (rows.mask != 0).sum()
            return replaced_tokens(logits, replaced, rows.mask) * counted, counted

        return self.mean_of(self.by_groups(detect, replace(masked, vectors=views.given)))
