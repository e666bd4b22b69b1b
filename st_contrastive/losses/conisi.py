"""ConIsI: contrast with the sentence paired with itself, and interaction between the two sentences of a pair."""

from __future__ import annotations

from collections.abc import Mapping
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

    Each sentence x is encoded on its own, paired with itself (Y), and paired with a constructed sentence c (Z). The
    loss is :math:`(1 - \lambda) L_{contrastive} + \lambda L_{interactive}` (eq. 10):

    - ``contrastive`` is InfoNCE of x against Y (eq. 3 and 4). The vectors are outputs of the CL head g,
      :math:`g(h_{[CLS]}) = \mathrm{ELU}(\mathrm{BN}(W_1 h_{[CLS]} + b_1))` (eq. 2).
    - ``interactive`` is softplus(r^Z - r^Y) (eq. 8 and 9), only with ``interaction_weight`` above 0. r is the output of
      the interaction classifier f, :math:`r = f(h_{[CLS]}) = W_3\, g(h_{[CLS]}) + b_3` (eq. 6 and 7). The first layer
      of f shares all parameters with g.

    Pairs are composed from the token ids on the device. Y and Z go through the encoder as one batch.

    If the constructed sentence of a row is the sentence itself, Y and Z are the same pair. The row then uses another
    sentence of the batch, as strategy "other" does, and the term ignores the row if that sentence is the same too.

    Args:
        model: SentenceTransformer with a token-level Transformer as its first module.
        temperature: tau. The paper uses 0.05.
        strategy: how c is constructed. "other" uses another sentence of the batch (ConIsI-s). "subword" chooses a share
            of the subwords and replaces 80 % of these with random subwords (ConIsI-o1; see ``unreplaced``). "given"
            uses the second column (sentences with antonyms in ConIsI-o2).
        interaction_weight: lambda of eq. 10, the weight of the interactive term, 0 to 1. The paper uses 0.8 for
            BERT-base and 0.1 for RoBERTa-base and BERT-large. At 0 the pairs Z are not encoded. At 1 there is no
            contrastive term.
        replacement_rate: share of the subwords that strategy "subword" chooses. The paper does not state it.
        unreplaced: what happens to the other 20 % of the subwords that strategy "subword" chooses. The paper masks the
            chosen ones, and replaces "the masked token with a random token 80% of the time, leaving the masked token
            unchanged 20% of the time" (section 3.2.1). This can be read in two ways: "original" keeps the subword,
            "mask" keeps the mask token.
        interaction_dim: width of r. None is the embedding's width, as in the paper. 1 makes r a number, as eq. 8
            requires.

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
    only_used_with = {
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
                f"interaction_weight={interaction_weight:g} is meant for the [CLS] vector of a language model. "
                "Training with 0.8 made all-MiniLM-L6-v2, which has mean pooling, worse. Use 0.1 for such a model."
            )
        self.interaction_weight, self.strategy = interaction_weight, strategy
        tokenizer, encoder = get_tokenizer(model), get_encoder(model)
        limit = learned_positions(encoder) or getattr(encoder.config, "max_position_embeddings", None)
        types = getattr(encoder.config, "type_vocab_size", None)
        self.composer = PairComposer(tokenizer, limit if limit and limit > 0 else None, types=types)
        if strategy == "subword":
            self.replacement = TokenCorruption.replacement(tokenizer, replacement_rate, unreplaced)
        if strategy == "given":
            self.columns = {2: "sentences and constructed sentences"}
            self.columns_hint = "Build the second column with conisi_dataset, or with antonyms in a recipe."
        else:
            self.columns = {1: "sentences"}
            self.columns_hint = 'A second column of constructed sentences needs strategy="given".'
        width, dtype = embedding_width(model), weights_dtype(model)
        self.predictor = PredictionHead(width, dtype)  # g of eq. 2
        self.classifier = None
        if interaction_weight > 0:  # f of eq. 7 without g: W3 and b3
            self.classifier = new_linear(width, interaction_dim or width, dtype=dtype)

    @property
    def term_weights(self) -> Mapping[str, float]:
        return {"contrastive": 1 - self.interaction_weight, "interactive": self.interaction_weight}

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        pairs, distinct = self.compose_pairs(batches)
        (vectors,) = step.apply_head(self.predictor, torch.cat([*step.encode(batches[0]), *step.encode(pairs)]))
        x, y, *z = vectors.chunk(2 if self.classifier is None else 3)  # (N, d) each
        terms = {}
        if self.interaction_weight < 1:
            terms["contrastive"] = step.info_nce(x, y)
        if self.classifier is not None:
            interactive = interaction(*self.classifier(torch.cat([y, *z])).chunk(2), valid=distinct, reduction="sum")
            terms["interactive"] = interactive / step.mean_count(distinct.sum())
        return terms

    def compose_pairs(self, batches: list[TokenBatch]) -> tuple[TokenBatch, Tensor]:
        """The pairs of all N rows, and a mask (N,) of the rows with two different pairs.

        The pairs are Y (sentence, sentence) and, if there is an interactive term, Z (sentence, constructed) after them.
        A prompt comes before a pair and not inside it.
        """
        batch, compose = batches[0], self.composer
        if unknown := set(batch.token_tensors) - {"input_ids", "attention_mask", "token_type_ids"} | set(batch.per_row):
            raise ValueError(
                f"The batch has {', '.join(sorted(unknown))}, and ConIsILoss can't compose sentence pairs with these "
                "inputs. Remove them from the output of the first module's preprocess, or use SimCSELoss."
            )
        prompted = compose.content(batch.ids, batch.mask)
        sentences = compose.content(batch.ids, batch.mask, batch.prompt_length)
        if self.classifier is None:
            return replace(batch, token_tensors=compose(prompted, sentences)), batch.mask.new_empty(0)
        seconds = sentences.followed_by(self._constructed(batches, sentences))
        pairs = compose(prompted.followed_by(prompted), seconds)
        with_itself, with_constructed = pairs["input_ids"].chunk(2)  # after truncation
        return replace(batch, token_tensors=pairs), (with_itself != with_constructed).any(dim=1)

    def _constructed(self, batches: list[TokenBatch], sentences: Content) -> Content:
        """The constructed sentences. If one equals its sentence, another sentence of the batch replaces it."""
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
