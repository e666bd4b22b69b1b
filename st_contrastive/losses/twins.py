"""Twins: identical and fraternal twins, a margin between them, and a queue of past negatives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._checks import (
    require_choice,
    require_count,
    require_flag,
    require_forgetting_rate,
    require_instance,
    require_number,
    require_weights,
    warn,
)
from st_contrastive.components import FraternalEmbedding, MomentumEncoder, NegativeQueue
from st_contrastive.encoder.layers import capturing_states, layers_of
from st_contrastive.encoder.model import (
    POOLING_MODES,
    embedding_width,
    encoder_of,
    is_causal,
    token_width,
    unwrap,
)
from st_contrastive.encoder.passes import Encoded, forward_modules, forward_views, pool
from st_contrastive.encoder.requirements import (
    freeze_token_embeddings,
    require_embeddings_as_input,
    require_plain_tokens,
)
from st_contrastive.encoder.rows import Rows
from st_contrastive.losses._translations import fused_rows, require_width, translations_of
from st_contrastive.losses.base import TextLoss
from st_contrastive.objectives import twins_margin


@dataclass(frozen=True)
class Views:
    """Vectors (N, d) of the views that the terms need, and the mean embeddings of each that the margin is made of."""

    anchor: Tensor
    identical: Tensor | None = None
    fraternal: Tensor | None = None
    inputs: tuple[Tensor, ...] = ()


class TwinsLoss(TextLoss):
    r"""Twins, or IFCL (Xiao, Li and Chen, 2023, arXiv 2307.10932): two kinds of positives, a margin and a queue.

    Three views in one forward pass: the anchor h, its identical twin h+ (another dropout mask), and its fraternal twin
    h-, the encoder fed with :math:`\epsilon y + (1 - \epsilon) y_F` of the sentence's and its translation's token
    embeddings (eq. 3), fused position by position before the encoder adds positions, LayerNorm and dropout. The loss is
    the sum of three terms (eq. 9):

    - ``identical``: InfoNCE of h against h+, with the anchors of the last batches as further negatives, each weighted
      by how long ago it was seen (eq. 4, 6);
    - ``fraternal``: InfoNCE of h against h- (eq. 7);
    - ``twins``: :math:`|e^{sim(h,h^+)} - e^{sim(h,h^-)} - M|` (eq. 8), with the margin
      :math:`M = e^{sim(emb,emb^+)} - e^{sim(emb,emb^-)}` of the embeddings, averaged over the tokens, without gradient.

    With one column there is no fraternal twin: the loss is the paper's ablation "w/o FI, TL", and says so once.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module.
        fraternal: the other language's tokenizer and embedding layer, a :class:`FraternalEmbedding`, frozen. The
            translations then come in the labels of the examples that the builders make. None takes the encoder's own
            tokenizer and embedding layer for the second column too, for an encoder that covers both languages.
        temperature: tau, which the cosines are divided by.
        fusion_rate: epsilon, the sentence's share of the fused embedding, 0 to 1. At 1 the translation is ignored,
            at 0 the sentence is. This default and the next two are ours: the paper leaves the fusion rate and the
            queue's length to supplementary materials, which we do not have, and names no forgetting rate.
        queue_batches: k, how many past batches are kept; 0 keeps none. Under gradient accumulation, each of a step's
            batches counts. An evaluation loss has the queue's negatives too, and so grows while the queue fills.
        forgetting_rate: weight that a past batch loses with each step; less than 1 / queue_batches.
        identical_weight: weight of the ``identical`` term; without it no queue is kept.
        fraternal_weight: weight of the ``fraternal`` term.
        twins_weight: weight of the ``twins`` term. 0 is "w/o TL" (Table 4 and Fig. 4b), with ``queue_batches=0`` "w/o
            TL, HQ" (Table 2).
        train_pooling: pooling of the vectors that are trained; None takes the model's own sentence embeddings. The
            paper trains on "cls" and evaluates the mean of the last layer. Under a causal decoder, whose first token
            sees nothing but itself, take None, "mean" or "lasttoken".
        margin_from: where the margin M is measured. "tokens": the means of the token embeddings y that enter the
            encoder ("the embeddings y after data augmentations"), so that sim(emb, emb+) is 1. "embeddings": the means
            of the embedding module's output in the same pass, with positions, LayerNorm and dropout; ``torch.compile``
            is not used for this pass.
        freeze_embeddings: freeze the encoder's token embeddings, "the embedding layer without trainable parameters"
            (eq. 1): ``requires_grad`` of the model's layer is False from then on.
        unpaired_tokens: where one sentence alone has a token, take its embedding "full", or "weighted" by its share,
            epsilon or 1 - epsilon, which is eq. 3 with zero for the other.
        key_momentum: momentum of an encoder (MoCo's) whose vectors the queue keeps in place of the anchors, at least 0
            and below 1; None keeps the anchors. The paper's comparison ("MoCo w/ ME", Fig. 4c) replaces the whole queue
            mechanism, forgetting included: ``key_momentum=0.995`` with ``forgetting_rate=0`` (0.995 is ESimCSE's, 0.999
            MoCo's; the paper names none). The positive is h+ of the trained encoder in both (eq. 6).

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import TwinsLoss
        >>> model = SentenceTransformer("all-MiniLM-L6-v2", device="cpu").train()
        >>> loss = TwinsLoss(model, queue_batches=2, forgetting_rate=0.3)
        >>> english = model.preprocess(["A cat sleeps.", "It rains in Oslo."])
        >>> german = model.preprocess(["Eine Katze schläft.", "In Oslo regnet es."])
        >>> list(loss([english, german])), len(loss.queue)
        (['identical', 'fraternal', 'twins'], 2)
    """

    cites = ("xiao-etal-2023-twins",)
    columns = {1: "sentences", 2: "sentences and translations"}

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        fraternal: FraternalEmbedding | None = None,
        temperature: float = 0.05,
        fusion_rate: float = 0.8,
        queue_batches: int = 3,
        forgetting_rate: float = 0.25,
        identical_weight: float = 1.0,
        fraternal_weight: float = 1.0,
        twins_weight: float = 1.0,
        train_pooling: str | None = None,
        margin_from: Literal["tokens", "embeddings"] = "tokens",
        freeze_embeddings: bool = True,
        unpaired_tokens: Literal["full", "weighted"] = "full",
        key_momentum: float | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__(
            model, temperature=temperature, gather_across_devices=gather_across_devices, mini_batch_size=mini_batch_size
        )
        require_number("fusion_rate", fusion_rate, most=1)
        require_count("queue_batches", queue_batches, least=0)
        require_forgetting_rate(forgetting_rate, queue_batches)
        require_weights(identical_weight=identical_weight, fraternal_weight=fraternal_weight, twins_weight=twins_weight)
        require_choice("train_pooling", train_pooling, (*POOLING_MODES, None))
        require_choice("margin_from", margin_from, ("tokens", "embeddings"))
        require_flag("freeze_embeddings", freeze_embeddings)
        require_choice("unpaired_tokens", unpaired_tokens, ("full", "weighted"))
        has_queue = queue_batches > 0 and identical_weight > 0
        if key_momentum is not None:
            require_number("key_momentum", key_momentum, below=1)
            if not has_queue:
                raise ValueError(
                    "key_momentum makes the queue's keys: it needs queue_batches of at least 1, and identical_weight "
                    f"above 0; got {queue_batches} and {identical_weight:g}."
                )
        require_instance("fraternal", fraternal, FraternalEmbedding)
        self.identical_weight, self.fraternal_weight = identical_weight, fraternal_weight
        self.twins_weight, self.fusion_rate = twins_weight, fusion_rate
        self.train_pooling, self.margin_from, self.unpaired_tokens = train_pooling, margin_from, unpaired_tokens
        self.fraternal = fraternal
        if fraternal is not None:
            require_width(fraternal, model)
            self.columns = {1: "sentences, the translations in their labels"}
            self.columns_hint = (
                "Plain (sentence, translation) pairs would be read by the model's own tokenizer. Build the data with "
                "twins_examples(sentences, translations=..., fraternal=...) or twins_dataset."
            )
        if train_pooling is not None or self._uses_translations:
            require_plain_tokens(model, "TwinsLoss with train_pooling or translations")
        if self._uses_translations:
            require_embeddings_as_input(encoder_of(model))
        if margin_from == "embeddings" and twins_weight > 0:
            layers_of(encoder_of(model))  # where it is measured
        width = embedding_width(model) if train_pooling is None else token_width(model)
        self.queue = None
        if has_queue:
            self.queue = NegativeQueue(width, batches=queue_batches, forgetting_rate=forgetting_rate)
        self.momentum_encoder = None
        if key_momentum is not None:
            self.momentum_encoder = MomentumEncoder(list(unwrap(model)), key_momentum)
        if train_pooling == "cls" and is_causal(model):
            warn(
                "TwinsLoss trains the first token's vector (train_pooling='cls'), and in a decoder that token sees no "
                "other: sentences that begin alike get one vector. Take train_pooling='lasttoken' or 'mean'."
            )
        self.compared_columns = False
        self.finish_setup()
        if freeze_embeddings:  # last: a constructor that fails leaves the model as it is
            freeze_token_embeddings(model)

    @property
    def _uses_translations(self) -> bool:
        return self.fraternal_weight > 0 or self.twins_weight > 0

    @property
    def _uses_identical_twin(self) -> bool:
        return self.identical_weight > 0 or self.twins_weight > 0

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        translation = translations_of(self, columns, labels) if self._uses_translations else None
        views = self._views(columns[0], translation)
        terms = {}
        if views.identical is not None and self.identical_weight > 0:
            negatives = () if self.queue is None else self.queue.entries()
            terms["identical"] = self.identical_weight * self.info_nce(views.anchor, views.identical, *negatives)
        if views.fraternal is not None and self.fraternal_weight > 0:
            terms["fraternal"] = self.fraternal_weight * self.info_nce(views.anchor, views.fraternal)
        if views.identical is not None and views.fraternal is not None and self.twins_weight > 0:
            margin = twins_margin(views.anchor, views.identical, views.fraternal, *views.inputs)
            terms["twins"] = self.twins_weight * self.row_counts.share * margin
        if self.queue is not None and self.is_learning:
            self.queue.push(self.gather(self._keys(columns[0], views.anchor))[0])
        return terms

    def _views(self, sentence: Rows, translation: Rows | None) -> Views:
        if translation is None:
            self._check_missing_translations()
            anchor, *twins = self.by_rows(self._encode, sentence)
            return Views(anchor, identical=twins[0])
        anchor, *twins = self.by_rows(self._encode, sentence, translation)
        identical = twins.pop(0) if self._uses_identical_twin else None
        return Views(anchor, identical, fraternal=twins[0], inputs=tuple(twins[1:]))

    def _encode(self, sentence: Rows, translation: Rows | None = None) -> tuple[Tensor, ...]:
        """Vectors of the views that the terms need; with the Twins loss, then the mean embeddings that M is made of."""
        if translation is None:
            return self._pooled(self.forward_views(sentence, sentence))
        anchor, fused = fused_rows(self, sentence, translation)
        views = [anchor, anchor, fused] if self._uses_identical_twin else [anchor, fused]
        if self.twins_weight == 0:
            return self._pooled(self.forward_views(*views))
        if self.margin_from == "tokens":
            encoded = self.forward_views(*views)
            inputs = [view.texts["inputs_embeds"].detach() for view in views]
        else:
            with capturing_states(encoder_of(self.model), 0) as captured:
                encoded = self.forward_views(*views, hooked=True)
            inputs = list(torch.cat(captured).detach().chunk(len(views)))
        means = (
            pool(self.model, replace(view, tokens=tokens), "mean") for view, tokens in zip(encoded, inputs, strict=True)
        )
        return (*self._pooled(encoded), *means)

    def _pooled(self, encoded: list[Encoded]) -> tuple[Tensor, ...]:
        mode = self.train_pooling
        return tuple(view.sentences if mode is None else pool(self.model, view, mode) for view in encoded)

    @torch.no_grad()
    def _keys(self, sentence: Rows, anchor: Tensor) -> Tensor:
        """The vectors that the queue keeps of a batch."""
        if self.momentum_encoder is None:
            return anchor.detach()
        self.momentum_encoder.update(list(unwrap(self.model)))
        copies = self.momentum_encoder.copies
        return self.by_rows(lambda rows: self._pooled([forward_modules(copies, rows)]), sentence)[0]

    def _check_missing_translations(self) -> None:
        """Warn once that the fraternal twin's terms are missing, where they were asked for; refuse if none is left."""
        if self.identical_weight == 0:
            raise ValueError(
                "TwinsLoss was given one column, which serves the identical term only, and identical_weight is 0. Give "
                "(sentence, translation) columns, or identical_weight above 0."
            )
        if self._uses_translations:
            self.warn_once(
                "TwinsLoss was given one column: without translations there is no fraternal twin. It trains on "
                "identical twins and the queue only. Give (sentence, translation) columns for the whole loss."
            )

    def chance_levels(self, batch_size: int) -> dict[str, float]:
        """As in :class:`TextLoss`, of both contrasted terms, times their weights; the queue is the identical term's."""
        levels = {
            "identical": self.identical_weight * self.chance_level(batch_size),
            "fraternal": self.fraternal_weight * self.chance_level(batch_size, queue=False),
        }
        return {name: level for name, level in levels.items() if level > 0}

    def encode_views(
        self, columns: list[dict[str, Any]], labels: Tensor | None = None, *, pooling: str | None = None
    ) -> list[Tensor]:
        """Vectors (N, d) of anchor, identical and, where there are translations, fraternal twin, each in a pass of its
        own, in the model's present mode. Arguments as for ``forward``; without ``pooling`` they are the model's own.
        """
        texts = [Rows.of(column) for column in columns]
        translation = translations_of(self, texts, labels)
        views = [texts[0], texts[0]]
        if translation is not None:
            anchor, fused = fused_rows(self, texts[0], translation)
            views = [anchor, anchor, fused]
        encoded = [forward_views(self.model, [view])[0] for view in views]
        return [view.sentences if pooling is None else pool(self.model, view, pooling) for view in encoded]
