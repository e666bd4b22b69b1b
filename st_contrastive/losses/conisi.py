"""ConIsI: contrast against the sentence paired with itself, and the interaction inside a pair."""

from __future__ import annotations

from typing import Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive._checks import require_count, require_number, warn
from st_contrastive.components.heads import InteractionHead
from st_contrastive.encoder.model import embedding_width, reads_first_token
from st_contrastive.encoder.rows import Rows
from st_contrastive.losses._pairs import Pairs
from st_contrastive.losses.base import TextLoss
from st_contrastive.objectives import interaction


class ConIsILoss(TextLoss):
    r"""ConIsI (Sun and Huang, CCL 2022): sentence pairs as positives, and an inter-sentence interaction loss.

    Each sentence x is encoded alone, paired with itself (Y), and paired with a constructed sentence c (Z). The loss is
    :math:`(1 - \lambda) L_{contrastive} + \lambda L_{interactive}` (eq. 10): InfoNCE of x against Y (eq. 3, 4), and
    softplus(r^Z - r^Y) (eq. 8, 9), r from a classifier on top of the contrastive head. Pairs are composed from the
    token ids on the device; Y and Z go through the encoder as one batch.

    A row whose constructed sentence is the sentence itself would be asked to tell a pair from itself. It takes another
    sentence of the batch instead, as strategy "other" does, and is left out of the term if that is the same sentence
    too. ``fallback_share`` is the share of such rows in the last batch.

    Terms: ``contrastive`` and, with ``interaction_weight`` above 0, ``interactive``, weighted.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module.
        temperature: tau. The paper has 0.05.
        strategy: how the constructed sentence c is made: "other" takes another sentence of the batch (ConIsI-s);
            "subword" chooses a share of the subwords and makes each a random one 80 % of the time (ConIsI-o1; see
            ``unreplaced``); "given" takes the second column (sentences with antonyms in ConIsI-o2).
        interaction_weight: lambda, the interactive term's share, 0 to 1. The paper: 0.8 for BERT-base, 0.1 for
            RoBERTa-base and BERT-large. At 0 the pairs Z are not encoded, and at 1 nothing is contrasted.
        replacement_rate: share of the subwords that strategy "subword" chooses. The paper does not give it.
        unreplaced: what becomes of the other 20 % of the subwords that strategy "subword" chooses. The paper masks the
            chosen ones, and replaces "the masked token with a random token 80% of the time, leaving the masked token
            unchanged 20% of the time" (section 3.2.1), which can be read in two ways: "original" keeps the subword,
            "mask" leaves the mask token in its place.
        interaction_dim: length of r, the classifier's output. None takes the embedding's width, as the paper declares
            it; 1 is the scalar reading.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import ConIsILoss
        >>> model = SentenceTransformer("all-MiniLM-L6-v2", device="cpu").train()
        >>> loss = ConIsILoss(model, strategy="other")
        >>> list(loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])]))
        ['contrastive', 'interactive']
    """

    cites = ("sun-huang-2022-conisi",)
    dropout_only = False  # the positive is the sentence paired with itself

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: float = 0.1,
        strategy: Literal["other", "subword", "given"] = "other",
        interaction_weight: float = 0.8,
        replacement_rate: float = 0.15,
        unreplaced: Literal["original", "mask"] = "original",
        interaction_dim: int | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__(
            model, temperature=temperature, gather_across_devices=gather_across_devices, mini_batch_size=mini_batch_size
        )
        require_number("interaction_weight", interaction_weight, most=1)
        if interaction_dim is not None:
            require_count("interaction_dim", interaction_dim)
        if interaction_weight > 0.1 and not reads_first_token(model):
            warn(
                f"interaction_weight={interaction_weight:g} is for the [CLS] vector of a language model. At 0.8, "
                "all-MiniLM-L6-v2 with its mean pooling ended worse than before training: take 0.1 there."
            )
        self.interaction_weight = interaction_weight
        self.pairs = Pairs(model, strategy, replacement_rate, unreplaced)
        if strategy == "given":
            self.columns = {2: "sentences and constructed sentences"}
        else:
            self.columns = {1: "sentences"}
            self.columns_hint = 'Constructed sentences as a second column need strategy="given".'
        width = embedding_width(model)
        self.predictor = InteractionHead(width)
        # r = W3 g(x) + b3 (eq. 6, 7)
        self.classifier = nn.Linear(width, interaction_dim or width) if interaction_weight > 0 else None
        self.finish_setup()

    @property
    def fallback_share(self) -> float | None:
        """Share of the last batch's rows whose constructed sentence was the sentence itself; None before any batch
        and for strategy "other"."""
        return None if self.pairs.fallbacks is None else float(self.pairs.fallbacks)

    def chance_levels(self, batch_size: int) -> dict[str, float]:
        """As in :class:`TextLoss`, times the term's weight."""
        weight = 1 - self.interaction_weight
        return {"contrastive": weight * self.chance_level(batch_size)} if weight > 0 else {}

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        rows = len(columns[0])
        pairs, distinct = self.pairs(columns, interacting=self.classifier is not None)
        # One call of the head: the rows of all views share their BatchNorm statistics.
        vectors = torch.cat([*self.encode(columns[0]), *self.encode(pairs)])
        x, y, *z = torch.split(self.apply_head(self.predictor, vectors), rows)
        terms = {}
        if self.interaction_weight < 1:
            terms["contrastive"] = (1 - self.interaction_weight) * self.info_nce(x, y)
        if self.classifier is not None:
            interactive = interaction(*self.classifier(torch.cat([y, *z])).chunk(2), valid=distinct)
            terms["interactive"] = self.interaction_weight * (self.share(distinct.sum()) * interactive)
        return terms
