"""ConIsI's sentence pairs: a sentence with itself, and with a constructed one."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive._checks import require_choice, require_number
from st_contrastive.components import Content, PairComposer, TokenCorruption
from st_contrastive.encoder.model import embedding_matrix, encoder_of, learned_positions, tokenizer_of
from st_contrastive.encoder.rows import Rows


class Pairs(nn.Module):
    """Composes a batch's pairs from its token ids, on the device. Arguments as in ``ConIsILoss``."""

    def __init__(
        self,
        model: SentenceTransformer,
        strategy: str,
        replacement_rate: float,
        unreplaced: Literal["original", "mask"],
    ) -> None:
        super().__init__()
        require_choice("strategy", strategy, ("other", "subword", "given"))
        require_number("replacement_rate", replacement_rate, most=1)
        require_choice("unreplaced", unreplaced, ("original", "mask"))
        self.strategy = strategy
        tokenizer, encoder = tokenizer_of(model), encoder_of(model)
        types = getattr(encoder.config, "type_vocab_size", None)
        limit = learned_positions(encoder) or getattr(encoder.config, "max_position_embeddings", None)
        self.composer = PairComposer(tokenizer, limit if limit and limit > 0 else None, types=types)
        if strategy == "subword":
            vocabulary = embedding_matrix(encoder).shape[0]
            self.replacement = TokenCorruption.replacement(
                tokenizer, replacement_rate, unreplaced=unreplaced, vocabulary=vocabulary
            )
        #: Share of the last batch's rows whose constructed sentence was the sentence itself.
        self.fallbacks: Tensor | None = None

    def forward(self, columns: list[Rows], *, interacting: bool) -> tuple[Rows, Tensor | None]:
        """The pairs Y (sentence, sentence) of all N rows, and behind them, where they interact, the pairs Z (sentence,
        constructed); and which rows, (N,), can be told apart. A prompt comes before a pair, and not inside it."""
        if unknown := set(columns[0].texts) - {"input_ids", "attention_mask", "token_type_ids"} | set(
            columns[0].per_row
        ):
            raise ValueError(
                f"The batch holds {', '.join(sorted(unknown))}, which pairs of sentences can't be composed with. Leave "
                "it out of what the first module returns, or take SimCSELoss."
            )
        first, sentences = self.composer.content(columns[0].ids, columns[0].mask), self._content(columns[0])
        if not interacting:
            return replace(columns[0], texts=self.composer(first, sentences)), None
        sentences, constructed = self._constructed(columns, sentences)
        pairs = self.composer(first.followed_by(first), sentences.followed_by(constructed))
        with_itself, with_constructed = pairs["input_ids"].chunk(2)  # as they are after truncation
        return replace(columns[0], texts=pairs), (with_itself != with_constructed).any(dim=1)

    def _content(self, column: Rows) -> Content:
        """The sentences without special tokens and prompt."""
        return self.composer.content(column.ids, column.mask, column.prompt_length)

    def _constructed(self, columns: list[Rows], sentences: Content) -> tuple[Content, Content]:
        """The sentences and the constructed ones in equal widths."""
        rows, device = sentences.ids.shape[0], sentences.ids.device
        # A uniformly drawn k != i for each row i.
        shift = torch.randint(1, max(rows, 2), (rows,), device=device)
        others = sentences[(torch.arange(rows, device=device) + shift) % rows]
        constructed = others
        if self.strategy == "subword":
            corrupted = self.replacement(columns[0].ids, columns[0].mask)
            constructed = self.composer.content(corrupted.input_ids, columns[0].mask, columns[0].prompt_length)
        elif self.strategy == "given":
            constructed = self._content(columns[1])
        width = max(sentences.ids.shape[1], constructed.ids.shape[1])
        sentences, others, constructed = (part.padded(width) for part in (sentences, others, constructed))
        if self.strategy != "other":
            unchanged = constructed.equal_rows(sentences)
            constructed = Content(
                torch.where(unchanged[:, None], others.ids, constructed.ids),
                torch.where(unchanged, others.lengths, constructed.lengths),
            )
            self.fallbacks = unchanged.float().mean()
        return sentences, constructed
