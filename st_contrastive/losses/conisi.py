"""ConIsI: contrast against the sentence paired with itself, and the interaction inside a pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._arguments import Count, Positive, Share
from st_contrastive._checks import warn
from st_contrastive.components import Content, PairComposer, TokenCorruption
from st_contrastive.components.heads import PredictionHead, new_linear
from st_contrastive.encoder.model_facts import (
    embedding_width,
    get_encoder,
    get_tokenizer,
    learned_positions,
    reads_first_token,
    weights_dtype,
)
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.step import Step
from st_contrastive.objectives import interaction


class ConIsILoss(TextLoss):
    r"""ConIsI (Sun and Huang, CCL 2022): sentence pairs as positives, and an inter-sentence interaction loss.

    Each sentence x is encoded alone, paired with itself (Y), and paired with a constructed sentence c (Z). The loss is
    :math:`(1 - \lambda) L_{contrastive} + \lambda L_{interactive}` (eq. 10): InfoNCE of x against Y (eq. 3, 4), and
    softplus(r^Z - r^Y) (eq. 8, 9), r from a classifier on top of the contrastive head. Pairs are composed from the
    token ids on the device; Y and Z go through the encoder as one batch.

    A row whose constructed sentence is the sentence itself would be asked to tell a pair from itself. It takes another
    sentence of the batch instead, as strategy "other" does, and is left out of the term if that is the same sentence
    too.

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
    columns_of_one_kind = True
    read_with = {
        **dict.fromkeys(("replacement_rate", "unreplaced"), "strategy=subword"),
        **dict.fromkeys(("strategy", "interaction_dim"), "interaction_weight"),
    }
    dropout_only = False  # the positive is the sentence paired with itself

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: Positive = 0.1,
        strategy: Literal["other", "subword", "given"] = "other",
        interaction_weight: Share = 0.8,
        replacement_rate: Share = 0.15,
        unreplaced: Literal["original", "mask"] = "original",
        interaction_dim: Count | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: Count | None = None,
    ) -> None:
        super().__init__(
            model, temperature=temperature, gather_across_devices=gather_across_devices, mini_batch_size=mini_batch_size
        )
        if interaction_weight > 0.1 and not reads_first_token(model):
            warn(
                f"interaction_weight={interaction_weight:g} is for the [CLS] vector of a language model. At 0.8, "
                "all-MiniLM-L6-v2 with its mean pooling ended worse than before training: take 0.1 there."
            )
        self.interaction_weight, self.strategy = interaction_weight, strategy
        self.contrast_weights = {"contrastive": 1 - interaction_weight}
        tokenizer, encoder = get_tokenizer(model), get_encoder(model)
        limit = learned_positions(encoder) or getattr(encoder.config, "max_position_embeddings", None)
        types = getattr(encoder.config, "type_vocab_size", None)
        self.composer = PairComposer(tokenizer, limit if limit and limit > 0 else None, types=types)
        if strategy == "subword":
            self.replacement = TokenCorruption.replacement(tokenizer, replacement_rate, unreplaced)
        if strategy == "given":
            self.columns = {2: "sentences and constructed sentences"}
            self.columns_hint = "conisi_dataset makes the second column; in a recipe, antonyms does."
        else:
            self.columns = {1: "sentences"}
            self.columns_hint = 'Constructed sentences as a second column need strategy="given".'
        width, dtype = embedding_width(model), weights_dtype(model)
        self.predictor = PredictionHead(width, dtype)
        self.classifier = None
        if interaction_weight > 0:  # r = W3 g(x) + b3 (eq. 6, 7)
            self.classifier = new_linear(width, interaction_dim or width, dtype=dtype)

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        pairs, distinct = self.compose_pairs(batches)
        (vectors,) = step.apply_head(self.predictor, torch.cat([*step.encode(batches[0]), *step.encode(pairs)]))
        x, y, *z = vectors.chunk(2 if self.classifier is None else 3)  # (N, d) each
        terms = {}
        if self.interaction_weight < 1:
            terms["contrastive"] = (1 - self.interaction_weight) * step.info_nce(x, y)
        if self.classifier is not None:
            interactive = interaction(*self.classifier(torch.cat([y, *z])).chunk(2), valid=distinct, reduction="sum")
            terms["interactive"] = self.interaction_weight * interactive / step.mean_count(distinct.sum())
        return terms

    def compose_pairs(self, batches: list[TokenBatch]) -> tuple[TokenBatch, Tensor]:
        """The pairs Y (sentence, sentence) of all N rows and, behind them, where they interact, the pairs Z (sentence,
        constructed); and which rows, (N,), can be told apart. A prompt comes before a pair, and not inside it."""
        batch, compose = batches[0], self.composer
        if unknown := set(batch.token_tensors) - {"input_ids", "attention_mask", "token_type_ids"} | set(batch.per_row):
            raise ValueError(
                f"The batch holds {', '.join(sorted(unknown))}, which pairs of sentences can't be composed with. Leave "
                "it out of what the first module returns, or take SimCSELoss."
            )
        prompted = compose.content(batch.ids, batch.mask)
        sentences = compose.content(batch.ids, batch.mask, batch.prompt_length)
        if self.classifier is None:
            return replace(batch, token_tensors=compose(prompted, sentences)), batch.mask.new_empty(0)
        seconds = sentences.followed_by(self._constructed(batches, sentences))
        pairs = compose(prompted.followed_by(prompted), seconds)
        with_itself, with_constructed = pairs["input_ids"].chunk(2)  # as they are after truncation
        return replace(batch, token_tensors=pairs), (with_itself != with_constructed).any(dim=1)

    def _constructed(self, batches: list[TokenBatch], sentences: Content) -> Content:
        """The constructed sentences. One that is the sentence itself becomes another of the batch."""
        rows, device = sentences.ids.shape[0], sentences.ids.device
        # A uniformly drawn k != i for each row i.
        shift = torch.randint(1, max(rows, 2), (rows,), device=device)
        others = sentences[(torch.arange(rows, device=device) + shift) % rows]
        if self.strategy == "other":
            return others
        source = batches[-1]
        ids = source.ids if self.strategy == "given" else self.replacement(source.ids, source.mask).input_ids
        constructed = self.composer.content(ids, source.mask, source.prompt_length)
        return constructed.unless_equal(sentences, others)
