"""Twins: contrast with identical and fraternal twins, a margin between the two, and a queue of past negatives."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._arguments import Count, CountOrZero, Momentum, Positive, Share, Weight
from st_contrastive._checks import require_weights, warn
from st_contrastive.components import FraternalEmbedding, MomentumEncoder, NegativeQueue
from st_contrastive.encoder.layers import get_layers
from st_contrastive.encoder.model_facts import (
    embedding_width,
    frozen_embeddings,
    get_encoder,
    get_tokenizer,
    is_causal,
    token_width,
    unwrap,
    weights_dtype,
)
from st_contrastive.encoder.partial import capture_states
from st_contrastive.encoder.passes import Encoded, pool, run_model
from st_contrastive.encoder.requirements import require_embeddings_as_input, require_plain_tokens
from st_contrastive.encoder.token_batch import TokenBatch, pad_to_width
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.step import Step
from st_contrastive.objectives import fused_embeddings, info_nce_of_cosines, twins_margin
from st_contrastive.objectives.contrast import cosine_blocks, pairwise_cos_sim

PoolingMode: TypeAlias = Literal["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]


class TwinVectors(NamedTuple):
    """The vectors of each view of a batch; None if no term needs them.

    Attributes:
        anchor: h, the sentence vectors (N, d) of the sentences.
        identical: h+, (N, d), under another dropout mask.
        fraternal: h-, (N, d), fused with the translations.
        anchor_input: emb of eq. 8, (N, w), the mean of the tokens' vectors where the margin is measured.
        identical_input: emb+, (N, w).
        fraternal_input: emb-, (N, w).
    """

    anchor: Tensor
    identical: Tensor | None = None
    fraternal: Tensor | None = None
    anchor_input: Tensor | None = None
    identical_input: Tensor | None = None
    fraternal_input: Tensor | None = None


class TwinsLoss(TextLoss):
    r"""Twins, or IFCL (Xiao, Li and Chen, 2023, arXiv 2307.10932): two kinds of positives, a margin and a queue.

    Three views of each sentence go through the encoder in one forward pass: the anchor h, its identical twin h+ under
    another dropout mask, and its fraternal twin h-. For h-, the encoder reads :math:`\epsilon y + (1 - \epsilon) y^-`
    (eq. 3). Here y are the token embeddings of the sentence, and y^- are the token embeddings of its translation from
    the other language's embedding layer BEL_F (eq. 2). They are fused position by position, before the encoder adds
    positions, LayerNorm and dropout. The loss is the sum of three terms (eq. 9):

    - ``identical``: InfoNCE of h against h+, with the anchors of past batches as further negatives. The weights p of
      these decrease with age (eq. 4 and 6).
    - ``fraternal``: InfoNCE of h against h- (eq. 7).
    - ``twins``: :math:`|e^{sim(h,h^+)} - e^{sim(h,h^-)} - M|` with the margin
      :math:`M = e^{sim(emb,emb^+)} - e^{sim(emb,emb^-)}` (eq. 8). The embeddings emb are averaged over the tokens. M
      has no gradient.

    With one column there is no fraternal twin. The loss is then the paper's ablation "w/o FI, TL", and it warns once.

    Args:
        model: SentenceTransformer with a token-level Transformer as its first module.
        fraternal: the other language's tokenizer and frozen embedding layer, a :class:`FraternalEmbedding`. The
            builders then store the translations in the labels of the examples. None uses the encoder's tokenizer and
            embedding layer for the second column too. Use None if the encoder knows both languages.
        temperature: tau. Cosines are divided by it.
        fusion_rate: epsilon of eq. 3, the sentence's share of the fused embedding, 0 to 1. At 1 the translation is
            ignored, at 0 the sentence is ignored. This default and the next two are ours. The paper refers to
            supplementary materials for the fusion rate and the queue's length, which we do not have. Its text does not
            state the forgetting rate.
        queue_batches: k of section 3.2, the number of past batches in the queue. With gradient accumulation, each
            accumulated batch counts. The evaluation loss includes the queue's negatives, so it rises while the queue
            fills.
        forgetting_rate: the paper's lambda (eq. 4), the weight that a past batch loses with each step. It must be less
            than 1 / queue_batches.
        identical_weight: weight of the ``identical`` term. There is no queue without this term.
        fraternal_weight: weight of the ``fraternal`` term.
        twins_weight: weight of the ``twins`` term. 0 is "w/o TL" (Table 4 and Fig. 4b), and with ``queue_batches=0`` it
            is "w/o TL, HQ" (Table 2).
        train_pooling: pooling of the vectors that are trained. None uses the model's sentence embeddings. The paper
            trains "cls" and evaluates the mean of the last layer. The first token of a causal decoder only sees
            itself, so use None, "mean" or "lasttoken" there.
        margin_from: where the margin M is measured. "tokens" uses the means of the token embeddings that enter the
            encoder ("the embeddings y after data augmentations"), so sim(emb, emb+) is 1. "embeddings" uses the means
            of the embedding module's output in the same pass, after positions, LayerNorm and dropout. This pass does
            not use ``torch.compile``.
        freeze_embeddings: give the encoder's token embeddings no gradient, "the embedding layer without trainable
            parameters" (eq. 1). This only holds for the passes of this loss: another loss on the same model trains
            them.
        unpaired_tokens: the result at positions where only one of the two sentences has a token. "full" is this
            token's embedding. "weighted" multiplies it by its share, epsilon or 1 - epsilon, which is eq. 3 with zero
            for the missing token.
        key_momentum: momentum of a MoCo encoder, at least 0 and below 1. The queue then keeps the vectors of this
            encoder instead of the anchors. None keeps the anchors. The paper's comparison ("MoCo w/ ME", Fig. 4c)
            replaces the whole queue mechanism including forgetting: use ``key_momentum=0.995`` with
            ``forgetting_rate=0``. The paper does not state the momentum; 0.995 is ESimCSE's and 0.999 MoCo's. The
            positive is the trained encoder's h+ (eq. 6) in either case.

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
    terms_depend_on_columns = columns_of_one_kind = True
    contrasted_terms = ("identical", "fraternal")
    only_used_with = {"forgetting_rate": "queue_batches", "margin_from": "twins_weight"}

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        fraternal: FraternalEmbedding | None = None,
        temperature: Positive = 0.05,
        fusion_rate: Share = 0.8,
        queue_batches: CountOrZero = 3,
        forgetting_rate: Share = 0.25,
        identical_weight: Weight = 1.0,
        fraternal_weight: Weight = 1.0,
        twins_weight: Weight = 1.0,
        train_pooling: PoolingMode | None = None,
        margin_from: Literal["tokens", "embeddings"] = "tokens",
        freeze_embeddings: bool = True,
        unpaired_tokens: Literal["full", "weighted"] = "full",
        key_momentum: Momentum | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: Count | None = None,
    ) -> None:
        super().__init__(
            model, temperature=temperature, gather_across_devices=gather_across_devices, mini_batch_size=mini_batch_size
        )
        if queue_batches and forgetting_rate >= 1 / queue_batches:
            raise ValueError(
                f"forgetting_rate must be less than 1 / queue_batches = {1 / queue_batches:.4g}, so that the oldest "
                f"batch keeps a positive weight; got {forgetting_rate!r}. Set both, such as "
                f"forgetting_rate={0.75 / queue_batches:.2g}."
            )
        require_weights(identical_weight=identical_weight, fraternal_weight=fraternal_weight, twins_weight=twins_weight)
        self.identical_weight, self.fraternal_weight = identical_weight, fraternal_weight
        self.twins_weight, self.fusion_rate = twins_weight, fusion_rate
        self.train_pooling, self.margin_from, self.unpaired_tokens = train_pooling, margin_from, unpaired_tokens
        self.freeze_embeddings, self.fraternal, self.reads_labels = freeze_embeddings, fraternal, fraternal is not None
        self._require_translatable(model)
        width = embedding_width(model) if train_pooling is None else token_width(model)
        self.queue: NegativeQueue | None = None
        if queue_batches > 0 and identical_weight > 0:
            self.queue = NegativeQueue(
                width, batches=queue_batches, forgetting_rate=forgetting_rate, dtype=weights_dtype(model)
            )
        self.momentum_encoder: MomentumEncoder | None = None
        if key_momentum is not None:
            if self.queue is None:
                raise ValueError(
                    "key_momentum is for the encoder of the queue's keys. It needs queue_batches of at least 1 and "
                    f"identical_weight above 0; got {queue_batches} and {identical_weight:g}."
                )
            self.momentum_encoder = MomentumEncoder(list(unwrap(model)), key_momentum)
        if train_pooling == "cls" and is_causal(model):
            warn(
                "TwinsLoss trains the vector of the first token (train_pooling='cls'). In a decoder this token sees no "
                "other token, so sentences with the same first token get the same vector. Use "
                "train_pooling='lasttoken' or 'mean'."
            )

    @property
    def term_weights(self) -> Mapping[str, float]:
        weights = self.identical_weight, self.fraternal_weight, self.twins_weight
        return dict(zip(("identical", "fraternal", "twins"), weights, strict=True))

    @property
    def _uses_translations(self) -> bool:
        return self.fraternal_weight > 0 or self.twins_weight > 0

    @property
    def _uses_identical_twin(self) -> bool:
        return self.identical_weight > 0 or self.twins_weight > 0

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        sentence, translation = batches[0], None
        if self._uses_translations:
            translation = self._translations(step, batches, labels)
            if translation is None:
                self.warn_once(
                    "TwinsLoss received one column. Without translations there is no fraternal twin, so it only trains "
                    "on identical twins and the queue. Use (sentence, translation) columns for the whole loss."
                )
        views = step.in_chunks(self.encode_twins, sentence, *([] if translation is None else [translation]))
        terms = self.compare_twins(step, views)
        if self.queue is not None and step.is_learning:
            self.queue.enqueue(step.gather(self._next_keys(step, sentence, views.anchor)))
        return terms

    def compare_twins(self, step: Step, views: TwinVectors) -> dict[str, Tensor]:
        """The unweighted terms by name. One normalisation and one matrix product give all cosines."""
        identical, fraternal = (
            None if view is None else step.gather(view) for view in (views.identical, views.fraternal)
        )
        queued, queue_weights = (None, None) if self.queue is None else self.queue.keys_and_weights()
        # (N, P) with the twins of all P gathered rows, (N, P), (N, K) with the queue
        to_identical, to_fraternal, to_queued = cosine_blocks(views.anchor, identical, fraternal, queued)
        first_row, temperature = step.first_row, self.temperature
        terms = {}
        if to_identical is not None and self.identical_weight > 0:
            candidates = to_identical if to_queued is None else torch.cat([to_identical, to_queued], dim=1)
            terms["identical"] = info_nce_of_cosines(
                candidates, temperature=temperature, weights=queue_weights, offset=first_row
            )
        if to_fraternal is not None and self.fraternal_weight > 0:
            terms["fraternal"] = info_nce_of_cosines(to_fraternal, temperature=temperature, offset=first_row)
        if to_identical is not None and to_fraternal is not None and self.twins_weight > 0:
            pairs = to_identical.diagonal(first_row), to_fraternal.diagonal(first_row)  # (N,) each
            terms["twins"] = twins_margin(*pairs, *self._input_cosines(views))
        return {name: step.correct_for_uneven_rows(term) for name, term in terms.items()}

    @torch.no_grad()
    def _input_cosines(self, views: TwinVectors) -> tuple[Tensor | float, Tensor]:
        """sim(emb, emb+) and sim(emb, emb-) of eq. 8.

        The first is 1 with ``margin_from="tokens"``, because the identical twin has the tokens of the anchor.
        """
        anchor, identical, fraternal = views.anchor_input, views.identical_input, views.fraternal_input
        assert anchor is not None
        assert fraternal is not None
        to_identical = 1.0 if identical is None else pairwise_cos_sim(anchor, identical)
        return to_identical, pairwise_cos_sim(anchor, fraternal)

    def encode_twins(self, sentence: TokenBatch, translation: TokenBatch | None = None) -> TwinVectors:
        """The vectors of the views that the terms need, from one forward pass."""
        if translation is None:
            with frozen_embeddings(self.model) if self.freeze_embeddings else nullcontext():
                h, h_plus = self._trained_vectors(run_model(self.model, [sentence, sentence]))
            return TwinVectors(anchor=h, identical=h_plus)
        anchor, fused = self.fuse_batches(sentence, translation)
        batches = [anchor, anchor, fused] if self._uses_identical_twin else [anchor, fused]
        reads_states = self.twins_weight > 0 and self.margin_from == "embeddings"
        capturing = capture_states(get_encoder(self.model), 0) if reads_states else nullcontext(list[Tensor]())
        with capturing as states:
            encoded = run_model(self.model, batches, eager=reads_states)
        h, *identical, h_minus = self._trained_vectors(encoded)
        views = TwinVectors(anchor=h, identical=identical[0] if identical else None, fraternal=h_minus)
        if self.twins_weight == 0:
            return views
        if reads_states:
            emb, emb_plus, emb_minus = self._input_means(states, encoded)
            return views._replace(anchor_input=emb, identical_input=emb_plus, fraternal_input=emb_minus)
        tokens = [batch.token_tensors["inputs_embeds"] for batch in (anchor, fused)]
        emb, emb_minus = self._input_means(tokens, [encoded[0], encoded[-1]])
        return views._replace(anchor_input=emb, fraternal_input=emb_minus)

    def _input_means(self, vectors: list[Tensor], encoded: list[Encoded]) -> tuple[Tensor, ...]:
        """The mean token vector (N, w) of each view, from one tensor (N, L, w) per view or one tensor for all views."""
        mask = torch.cat([view.mask for view in encoded])
        whole = replace(encoded[0], tokens=torch.cat(vectors).detach(), mask=mask)
        return pool(self.model, whole, "mean").chunk(len(encoded))

    def fuse_batches(self, sentence: TokenBatch, translation: TokenBatch) -> tuple[TokenBatch, TokenBatch]:
        """The anchor and its fraternal twin as ``inputs_embeds`` of one width."""
        embed = get_encoder(self.model).get_input_embeddings()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze_embeddings):
            y = embed(sentence.ids)
            y_minus = (embed if self.fraternal is None else self.fraternal)(translation.ids).to(y.dtype)
        width = max(y.shape[1], y_minus.shape[1])
        texts = {key: pad_to_width(value, width) for key, value in sentence.token_tensors.items() if key != "input_ids"}
        y = pad_to_width(y, width)
        fused, mask = fused_embeddings(
            y,
            texts["attention_mask"],
            pad_to_width(y_minus, width),
            pad_to_width(translation.mask, width),
            epsilon=self.fusion_rate,
            full_where_unpaired=self.unpaired_tokens == "full",
        )
        return (
            replace(sentence, token_tensors={**texts, "inputs_embeds": y}),
            replace(sentence, token_tensors={**texts, "inputs_embeds": fused, "attention_mask": mask}),
        )

    def _trained_vectors(self, views: list[Encoded]) -> list[Tensor]:
        """The vectors (N, d) of each view that are trained."""
        if self.train_pooling is None:
            return [view.sentences for view in views]
        return [pool(self.model, view, self.train_pooling) for view in views]

    @torch.no_grad()
    def _next_keys(self, step: Step, sentence: TokenBatch, anchor: Tensor) -> Tensor:
        """This batch's vectors (N, d) for the queue. A momentum encoder is updated before it encodes them."""
        encoder = self.momentum_encoder
        if encoder is None:
            return anchor.detach()
        encoder.update(list(unwrap(self.model)))
        keys: Tensor
        (keys,) = step.in_chunks(lambda rows: tuple(self._trained_vectors([encoder(rows)])), sentence)
        return keys

    def _translations(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> TokenBatch | None:
        """The translations from the labels or the second column, or None without translations."""
        prompts = {str(column.batch_info.get("prompt_length")) for column in batches}
        if self.fraternal is not None:
            prompts.add("None")  # translations in the labels have no prompt
        if len(prompts) > 1:
            raise ValueError(
                "The prompts of the sentences and of the translations differ in length, so their tokens would not be "
                'fused at the same positions. Use one prompt for both columns, or none with prompts="". Translations '
                "in the labels, for a fraternal embedding, have no prompt."
            )
        if self.fraternal is not None:
            limit = step.max_length or unwrap(self.model).max_seq_length
            ids, mask = self.fraternal.decode_labels(labels, limit)
            return TokenBatch({"input_ids": ids, "attention_mask": mask})
        if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
            raise ValueError(
                "The labels hold translations for a fraternal embedding, but TwinsLoss has fraternal=None. Pass the "
                "fraternal embedding with which the examples were built."
            )
        if len(batches) == 1:
            return None
        sentence, translation = batches
        if step.is_first:
            self._warn_if_equal(sentence, translation)
        return translation

    def _warn_if_equal(self, sentence: TokenBatch, translation: TokenBatch) -> None:
        """Warn if the second column repeats the first one, as in ``InputExample(texts=[s, s])``."""
        width = max(sentence.width, translation.width)
        ids = [pad_to_width(rows.ids * (rows.mask != 0), width) for rows in (sentence, translation)]
        equal = float((ids[0] == ids[1]).all(dim=1).float().mean())
        if equal > 0.5:
            warn(
                f"In {equal:.0%} of a batch the second column equals the first one, and TwinsLoss uses it as the "
                "translation: a sentence is then its own fraternal twin. Use translations, or one column to train on "
                "identical twins only."
            )

    def _require_translatable(self, model: SentenceTransformer) -> None:
        """Refuse an encoder with which the terms can't be computed, and set the columns that the loss accepts."""
        if self.fraternal is not None:
            self.columns = {1: "sentences, with translations in the labels"}
            self.columns_hint = (
                "The model's own tokenizer would read plain (sentence, translation) pairs. Build the data with "
                "twins_dataset(sentences, translations=..., fraternal=...)."
            )
        elif self.identical_weight == 0:
            self.columns = {2: "sentences and translations"}
            self.columns_hint = "One column is only enough for the identical term, but identical_weight is 0."
        if self.train_pooling is not None or self._uses_translations:
            require_plain_tokens(model, "TwinsLoss with train_pooling or translations")
        if self._uses_translations:
            require_embeddings_as_input(get_encoder(model))
        if self.margin_from == "embeddings" and self.twins_weight > 0:
            get_layers(get_encoder(model))  # refuses an encoder in which M can't be measured

    def can_be_truncated(self) -> bool:
        # train_pooling reads token vectors, which MatryoshkaLoss does not truncate.
        return self.train_pooling is None and super().can_be_truncated()

    def chance_levels(self, batch_size: int) -> dict[str, float]:
        """As in :class:`DescribedLoss`. Only the identical term has the queue's negatives."""
        levels = super().chance_levels(batch_size)
        if "fraternal" in levels:
            levels["fraternal"] = self.fraternal_weight * self.chance_level(batch_size, queue=False)
        return levels

    def encode_views(
        self, columns: list[dict[str, Any]], labels: Tensor | None = None, *, pooling: str | None = None
    ) -> list[Tensor]:
        """Vectors (N, d) of the anchor, the identical twin and, with translations, the fraternal twin.

        Each view has a separate forward pass, in the model's current mode.

        Args:
            columns: as for :meth:`forward`.
            labels: as for :meth:`forward`.
            pooling: None uses the model's sentence embeddings.
        """
        padding = get_tokenizer(self.model).pad_token_id or 0
        texts = [TokenBatch.of(column, pad_token_id=padding) for column in columns]
        translation = self._translations(Step(self.model), texts, labels)
        views = [texts[0], texts[0]]
        if translation is not None:
            anchor, fused = self.fuse_batches(texts[0], translation)
            views = [anchor, anchor, fused]
        encoded = [run_model(self.model, [view])[0] for view in views]
        return [view.sentences if pooling is None else pool(self.model, view, pooling) for view in encoded]
