"""The fraternal embedding of Twins: token embeddings of another language, mapped into the encoder's space."""

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
from st_contrastive._tokenizers import keep_settings
from st_contrastive.components.pretrained import load_embeddings, load_tokenizer, vocabulary_checksum
from st_contrastive.components.shared_tokens import Alignment, fit_affine, shared_tokens
from st_contrastive.encoder.model_facts import embedding_matrix, get_encoder, get_tokenizer, unwrap
from st_contrastive.encoder.requirements import require_vocabulary

#: Padding of rows of token ids in labels.
NO_TOKEN = -1
_LONGEST = 128


class FraternalEmbedding(nn.Module):
    r"""BEL_F of Twins (Xiao, Li and Chen, 2023, eq. 2): the frozen embedding layer of another language's checkpoint.

    The paper does not say how vectors of another space or width are fused with the encoder's. Here an affine map
    transfers them into the encoder's space. It is fitted once, by least squares on the tokens that both vocabularies
    share: names, digits, punctuation, word pieces and special tokens.

    A translation is tokenized once, when the training data are built, and stored in the label of its example (see
    :meth:`encode_labels`). Neither the model nor its tokenizer is changed.

    Args:
        tokenizer: tokenizer of the other language.
        weight: input embeddings (vocabulary, w) of the other language. They are copied and frozen.
        model: the SentenceTransformer to train.
        align: "shared_tokens" fits the map; "none" uses the vectors unchanged and needs the encoder's width as w.
        max_length: maximum number of tokens of a translation, including special tokens. Each example stores four bytes
            per token. None is ``model.max_seq_length``, but at most 128. A loss also truncates to the model's limit.

    Attributes:
        alignment: the quality of the map, an :class:`Alignment`; None with ``align="none"``.

    Example:
        >>> import torch
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import FraternalEmbedding
        >>> model = SentenceTransformer("all-MiniLM-L6-v2", device="cpu")
        >>> narrow = model.transformers_model.get_input_embeddings().weight.detach()[:, :128]
        >>> fraternal = FraternalEmbedding(model.tokenizer, narrow, model)  # usually another language's
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
        self.vocabulary_checksum = vocabulary_checksum(tokenizer)
        with keep_settings(tokenizer):
            special = len(tokenizer("")["input_ids"])
            mask = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        if self.max_length <= special:
            raise ValueError(
                f"max_length (by default model.max_seq_length) is {self.max_length}, but a translation has {special} "
                f"special tokens. Set it to {special + 1} or more."
            )
        self._trailing = len(list(takewhile(bool, reversed(mask))))  # number of special tokens after a text
        frozen = weight.detach().to(embeddings.device, torch.float32).clone()
        # Not persistent, because the constructor gets the matrix again.
        self.register_buffer("weight", frozen, persistent=False)
        self.alignment: Alignment | None = None
        if align == "shared_tokens":
            self._fit_map(model)
        elif weight.shape[1] != self.width or _scales_embeddings(get_encoder(model)):
            raise ValueError(
                f'align="none" needs vectors of the encoder\'s width {self.width}, got {weight.shape[1]}, and an '
                'encoder that does not scale its embeddings. Use align="shared_tokens".'
            )

    def _fit_map(self, model: nn.Module) -> None:
        encoder = get_encoder(model)
        rows, device = embedding_matrix(encoder).shape[0], self.weight.device
        foreign_ids, native_ids = (ids.to(device) for ids in shared_tokens(self.tokenizer, get_tokenizer(model)))
        # A token that a user added to the model's tokenizer may have no row in the matrix.
        foreign_ids, native_ids = foreign_ids[native_ids < rows], native_ids[native_ids < rows]
        needed = self.weight.shape[1] + 2
        if len(foreign_ids) < needed:
            raise ValueError(
                f"The tokenizers share {len(foreign_ids)} tokens, too few to fit a map of {self.weight.shape[1]}-wide "
                f"vectors, which needs {needed}. Use a checkpoint with tokenizer files whose vocabulary overlaps the "
                "model's, or one of the encoder's width with align=\"none\"."
            )
        with torch.no_grad():
            targets = encoder.get_input_embeddings()(native_ids)  # some families scale the matrix's rows
        fitted, bias, self.alignment = fit_affine(self.weight[foreign_ids].cpu(), targets.cpu())
        # Persistent, because a resumed run no longer has the encoder that the map was fitted to.
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
        """Load the tokenizer and the embedding matrix of a checkpoint by its folder or hub name.

        The weights must be in safetensors, and code in the checkpoint is not run. ``options`` go to transformers:
        ``revision``, ``subfolder``, ``token``, ``cache_dir``, ``local_files_only``.

        Raises:
            OSError: there is no such checkpoint, or it has no safetensors.
        """
        tokenizer = load_tokenizer(name_or_path, "fraternal checkpoint", **options)
        weight = load_embeddings(name_or_path, "fraternal checkpoint", **options)
        return cls(tokenizer, weight, model, align=align, max_length=max_length)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed token ids (N, L) as vectors in the encoder's space (N, L, d), without gradient."""
        with torch.no_grad():
            vectors = nn.functional.embedding(ids, self.weight)
            return vectors if self.align == "none" else vectors @ self.projection + self.bias

    def encode_labels(self, texts: Sequence[str]) -> Any:
        """Encode translations as an int32 array (N, 1 + max_length): the tokenizer's fingerprint, token ids, then -1.

        The builders of ``st_contrastive.inputs`` store one row as the label of each example, because the model's
        tokenizer must only read the sentence. All rows have one width, because data sets are concatenated.
        """
        with keep_settings(self.tokenizer):
            encoded = self.tokenizer(list(texts), truncation=True, max_length=self.max_length)["input_ids"]
        rows = np.full((len(encoded), 1 + self.max_length), NO_TOKEN, dtype=np.int32)
        rows[:, 0] = self.vocabulary_checksum
        for row, ids in zip(rows, encoded, strict=True):
            row[1 : 1 + len(ids)] = ids
        return rows

    def decode_labels(self, labels: Tensor | None, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Read token ids and attention mask (N, L') from labels (N, 1 + L).

        Rows are truncated to ``limit`` tokens. Truncation drops the end of the text and keeps the special tokens.

        Raises:
            ValueError: the labels are not from :meth:`encode_labels`, or they are from another tokenizer.
        """
        if labels is None or labels.ndim != 2 or labels.is_floating_point():
            raise ValueError(
                f"The labels are not translations (shape {getattr(labels, 'shape', None)}). A loss with a fraternal "
                "embedding needs data from twins_dataset(sentences, translations=..., fraternal=...)."
            )
        labels = labels.to(self.weight.device)
        ids = labels[:, 1:]
        lengths = (ids != NO_TOKEN).sum(dim=1)
        is_foreign = (labels[:, 0] != self.vocabulary_checksum).any()
        # The only synchronisation with the device in a step is here, at its start.
        wrong, longest = torch.stack([is_foreign.to(lengths), lengths.max()]).tolist()
        if wrong:
            raise ValueError(
                "The translations were tokenized by another tokenizer than fraternal's. Build the examples again with "
                "the loss's fraternal embedding."
            )
        if limit is not None and longest > limit:
            ids, longest = _truncated(ids, lengths, limit, min(self._trailing, limit)), limit
        ids = ids[:, :longest]
        return ids.clamp(min=0), (ids != NO_TOKEN).long()

    def extra_repr(self) -> str:
        vocabulary, width = self.weight.shape
        return (
            f"vocabulary={vocabulary}, width={width} -> {self.width}, align={self.align!r}, "
            f"tokenizer={self.vocabulary_checksum}"
        )


def _scales_embeddings(encoder: PreTrainedModel) -> bool:
    """Whether the encoder's embedding layer returns other vectors than its matrix holds."""
    first = torch.zeros(1, dtype=torch.long, device=encoder.device)
    return not torch.equal(encoder.get_input_embeddings()(first), embedding_matrix(encoder)[:1])


def _truncated(ids: Tensor, lengths: Tensor, limit: int, trailing: int) -> Tensor:
    """Truncate rows to ``limit`` columns. A row that was longer keeps its last ``trailing`` tokens at the end."""
    positions = torch.arange(limit, device=ids.device).expand(ids.shape[0], limit)
    excess = (lengths - limit).clamp(min=0)[:, None]
    return ids.gather(1, torch.where(positions >= limit - trailing, positions + excess, positions))
