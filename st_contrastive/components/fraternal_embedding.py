"""Another language's tokenizer and embedding matrix, mapped into the encoder's space, and fusion with the encoder's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from st_contrastive._arguments import Count, checked
from st_contrastive.components.pretrained import fingerprint, load_embeddings, load_tokenizer
from st_contrastive.components.shared_tokens import Alignment, fit_affine, shared_tokens
from st_contrastive.encoder.model_facts import embedding_matrix, get_encoder, get_tokenizer, unwrap
from st_contrastive.encoder.requirements import require_vocabulary
from st_contrastive.encoder.tokenizers import keep_settings

#: Fills a row of token ids behind its last token.
NO_TOKEN = -1
_LONGEST = 128


class FraternalEmbedding(nn.Module):
    r"""BEL_F of Twins (Xiao, Li and Chen, 2023, eq. 2): the frozen embedding layer of another language's checkpoint.

    The paper does not say how vectors of another space, or of another width, are fused with the encoder's. Here an
    affine map transfers them, fitted once by least squares on the tokens in both vocabularies (names, digits,
    punctuation, word pieces, special tokens).

    A translation is tokenised once, when the training data are built, and stored in the label of its example: see
    :meth:`encode_labels`. Neither the model nor its tokenizer is changed.

    Args:
        tokenizer: of the other language.
        weight: its input embeddings, (vocabulary, w). They are copied and frozen.
        model: the SentenceTransformer to train.
        align: "shared_tokens" fits the map; "none" uses the vectors unchanged, if w is the encoder's width.
        max_length: maximum tokens of a translation, including special tokens. Each takes four bytes in every example.
            None takes ``model.max_seq_length``, at most 128. A loss also truncates to the model's own limit.

    Attributes:
        alignment: how well the map fits, an :class:`Alignment`; None with ``align="none"``.

    Example:
        >>> import torch
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import FraternalEmbedding
        >>> model = SentenceTransformer("all-MiniLM-L6-v2", device="cpu")
        >>> narrow = model.transformers_model.get_input_embeddings().weight.detach()[:, :128]
        >>> fraternal = FraternalEmbedding(model.tokenizer, narrow, model)  # in place of another language's
        >>> fraternal.alignment.shared_tokens > 20_000, fraternal.alignment.residual < 1
        (True, True)
        >>> fraternal(torch.tensor([[101, 102]])).shape
        torch.Size([1, 2, 384])
    """

    weight: Tensor
    projection: Tensor
    bias: Tensor

    @checked
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        weight: Tensor,
        model: nn.Module,
        *,
        align: Literal["shared_tokens", "none"] = "shared_tokens",
        max_length: Count | None = None,
    ) -> None:
        super().__init__()
        require_vocabulary(tokenizer, len(weight), "fraternal")
        embeddings = embedding_matrix(get_encoder(model))
        self.tokenizer, self.align, self.width = tokenizer, align, embeddings.shape[1]
        self.max_length = min(unwrap(model).max_seq_length or _LONGEST, _LONGEST) if max_length is None else max_length
        self.fingerprint = fingerprint(tokenizer)
        with keep_settings(tokenizer):
            special = len(tokenizer("")["input_ids"])
            mask = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        if self.max_length <= special:
            raise ValueError(
                f"max_length, or model.max_seq_length without it, is {self.max_length}, which the translation's "
                f"{special} special tokens fill: give {special + 1} or more."
            )
        self._trailing = len(list(takewhile(bool, reversed(mask))))  # special tokens behind a text
        frozen = weight.detach().to(embeddings.device, torch.float32).clone()
        # Not persistent, because the constructor gets it again.
        self.register_buffer("weight", frozen, persistent=False)
        self.alignment: Alignment | None = None
        if align == "shared_tokens":
            self._fit_map(model)
        elif weight.shape[1] != self.width or _scales_embeddings(get_encoder(model)):
            raise ValueError(
                f'align="none" needs vectors of the encoder\'s width {self.width}, got {weight.shape[1]}, and an '
                'encoder that does not scale its own. Use align="shared_tokens".'
            )

    def _fit_map(self, model: nn.Module) -> None:
        encoder = get_encoder(model)
        rows, device = embedding_matrix(encoder).shape[0], self.weight.device
        foreign_ids, native_ids = (ids.to(device) for ids in shared_tokens(self.tokenizer, get_tokenizer(model)))
        # The model's tokenizer may have tokens without a row in the matrix, such as one that was added by hand.
        foreign_ids, native_ids = foreign_ids[native_ids < rows], native_ids[native_ids < rows]
        needed = self.weight.shape[1] + 2
        if len(foreign_ids) < needed:
            raise ValueError(
                f"The tokenizers share {len(foreign_ids)} tokens, too few to fit a map of vectors "
                f"{self.weight.shape[1]} wide, which needs {needed}. Use a checkpoint with tokenizer files whose "
                'vocabulary overlaps the model\'s, or one of its width with align="none".'
            )
        with torch.no_grad():
            targets = encoder.get_input_embeddings()(native_ids)  # some families scale the matrix
        fitted, bias, self.alignment = fit_affine(self.weight[foreign_ids].cpu(), targets.cpu())
        # Persistent, because a resumed run no longer has the encoder that they were fitted to.
        self.register_buffer("projection", fitted.to(device))
        self.register_buffer("bias", bias.to(device))

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        model: nn.Module,
        *,
        align: Literal["shared_tokens", "none"] = "shared_tokens",
        max_length: int | None = None,
        **options: Any,
    ) -> FraternalEmbedding:
        """Take the tokenizer and the embedding matrix of a checkpoint, by folder or hub name.

        The weights must be safetensors, and no code of the checkpoint is run. ``options`` are transformers':
        ``revision``, ``subfolder``, ``token``, ``cache_dir``, ``local_files_only``.

        Raises:
            OSError: there is no such checkpoint, or it has no safetensors.
        """
        tokenizer = load_tokenizer(name_or_path, "fraternal checkpoint", **options)
        weight = load_embeddings(name_or_path, "fraternal checkpoint", **options)
        return cls(tokenizer, weight, model, align=align, max_length=max_length)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (N, L) to vectors in the encoder's space (N, L, d), without gradient."""
        with torch.no_grad():
            vectors = nn.functional.embedding(ids, self.weight)
            return vectors if self.align == "none" else vectors @ self.projection + self.bias

    def encode_labels(self, texts: Sequence[str]) -> Any:
        """Translations as an int32 array (N, 1 + max_length): the tokenizer's fingerprint, the token ids, then -1.

        The builders of ``st_contrastive.inputs`` put one row into the label of each example, so that the model's own
        tokenizer reads the sentence only. All rows have the same width, so that data sets can be concatenated.
        """
        with keep_settings(self.tokenizer):
            encoded = self.tokenizer(list(texts), truncation=True, max_length=self.max_length)["input_ids"]
        rows = np.full((len(encoded), 1 + self.max_length), NO_TOKEN, dtype=np.int32)
        rows[:, 0] = self.fingerprint
        for row, ids in zip(rows, encoded, strict=True):
            row[1 : 1 + len(ids)] = ids
        return rows

    def decode_labels(self, labels: Tensor | None, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, (N, L') each, from labels (N, 1 + L), truncated to ``limit`` tokens.

        Truncation removes the end of the sentence; the special tokens behind it stay.

        Raises:
            ValueError: the labels are not those of :meth:`encode_labels`, or another tokenizer made them.
        """
        if labels is None or labels.ndim != 2 or labels.is_floating_point():
            raise ValueError(
                f"The labels are not translations (shape {getattr(labels, 'shape', None)}). A loss with a fraternal "
                "embedding needs data from twins_dataset(sentences, translations=..., fraternal=...)."
            )
        labels = labels.to(self.weight.device)
        ids = labels[:, 1:]
        lengths = (ids != NO_TOKEN).sum(dim=1)
        is_foreign = (labels[:, 0] != self.fingerprint).any()
        # The only synchronisation with the device in a step, at its start.
        wrong, longest = torch.stack([is_foreign.to(lengths), lengths.max()]).tolist()
        if wrong:
            raise ValueError(
                "The translations were tokenised with a different tokenizer from fraternal's. Build the examples again "
                "with the loss's fraternal embedding."
            )
        if limit is not None and longest > limit:
            ids, longest = _truncated(ids, lengths, limit, min(self._trailing, limit)), limit
        ids = ids[:, :longest]
        return ids.clamp(min=0), (ids != NO_TOKEN).long()

    def extra_repr(self) -> str:
        vocabulary, width = self.weight.shape
        return (
            f"vocabulary={vocabulary}, width={width} -> {self.width}, align={self.align!r}, "
            f"tokenizer={self.fingerprint}"
        )


def _scales_embeddings(encoder: PreTrainedModel) -> bool:
    first = torch.zeros(1, dtype=torch.long, device=encoder.device)
    return not torch.equal(encoder.get_input_embeddings()(first), embedding_matrix(encoder)[:1])


def _truncated(ids: Tensor, lengths: Tensor, limit: int, trailing: int) -> Tensor:
    """The first ``limit`` columns. A longer row keeps its last ``trailing`` tokens, at the end."""
    positions = torch.arange(limit, device=ids.device).expand(ids.shape[0], limit)
    excess = (lengths - limit).clamp(min=0)[:, None]
    return ids.gather(1, torch.where(positions >= limit - trailing, positions + excess, positions))
