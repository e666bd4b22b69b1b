"""The translations of TwinsLoss: from a second column or the labels, and fused with the sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._checks import warn
from st_contrastive.components import FraternalEmbedding
from st_contrastive.components.fraternal_embedding import fused_embeddings
from st_contrastive.encoder.model import embedding_matrix, encoder_of, unwrap
from st_contrastive.encoder.rows import Rows

if TYPE_CHECKING:
    from st_contrastive.losses.twins import TwinsLoss


def require_width(fraternal: FraternalEmbedding, model: SentenceTransformer) -> None:
    """Refuse a fraternal embedding that was made for another model.

    Raises:
        ValueError: its vectors are not as wide as the encoder's embeddings.
    """
    width = embedding_matrix(encoder_of(model)).shape[1]
    if fraternal.width != width:
        raise ValueError(
            f"fraternal maps into embeddings {fraternal.width} wide, the encoder's are {width}: it was made for "
            "another model. Make it with this one."
        )


def fused_rows(loss: TwinsLoss, sentence: Rows, translation: Rows) -> tuple[Rows, Rows]:
    """The anchor and its fraternal twin as ``inputs_embeds`` of one width."""
    embed = encoder_of(loss.model).get_input_embeddings()
    y = embed(sentence.ids)
    y_f = (embed if loss.fraternal is None else loss.fraternal)(translation.ids).to(y.dtype)
    width = max(y.shape[1], y_f.shape[1])
    y, y_f = (F.pad(part, (0, 0, 0, width - part.shape[1])) for part in (y, y_f))
    texts = {
        key: F.pad(value, (0, 0) * (value.ndim - 2) + (0, width - value.shape[1]))
        for key, value in sentence.texts.items()
        if key != "input_ids"
    }
    fused, mask = fused_embeddings(
        y,
        texts["attention_mask"],
        y_f,
        F.pad(translation.mask, (0, width - translation.width)),
        share=loss.fusion_rate,
        full_where_unpaired=loss.unpaired_tokens == "full",
    )
    return (
        replace(sentence, texts={**texts, "inputs_embeds": y}),
        replace(sentence, texts={**texts, "inputs_embeds": fused, "attention_mask": mask}),
    )


def translations_of(loss: TwinsLoss, columns: list[Rows], labels: Tensor | None) -> Rows | None:
    """The translations, from the labels or the second column; None where there are none."""
    if loss.fraternal is not None:
        if "prompt_length" in columns[0].constants:
            raise ValueError(
                "The sentences have a prompt and the translations in the labels have none, so that their tokens "
                "would not be fused at the same positions. Train without the prompt, or give (sentence, "
                "translation) columns and no fraternal."
            )
        labels = torch.empty(0) if labels is None else labels  # read() refuses it and names the remedy
        limit = unwrap(loss.model).max_seq_length
        ids, mask = loss.fraternal.read(labels.to(loss.fraternal.weight.device), limit)
        return Rows({"input_ids": ids, "attention_mask": mask})
    if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
        raise ValueError(
            "The examples carry translations for a fraternal embedding, and the loss has none. Give TwinsLoss the "
            "one that they were built with, as fraternal=..."
        )
    if len(columns) == 1:
        return None
    if len({str(column.constants.get("prompt_length")) for column in columns}) > 1:
        raise ValueError(
            "The prompts of the two columns differ in length, so that the tokens of a sentence and its translation "
            "would not be fused at the same positions. Give both columns one prompt, or none."
        )
    _compare_columns(loss, *columns)
    return columns[1]


def _compare_columns(loss: TwinsLoss, sentence: Rows, translation: Rows) -> None:
    """Warn once where the second column is the first one again, as in ``InputExample(texts=[s, s])``."""
    if loss.compared_columns or not loss.is_learning:
        return
    loss.compared_columns = True
    width = max(sentence.width, translation.width)
    ids = [F.pad(rows.ids * (rows.mask != 0), (0, width - rows.width)) for rows in (sentence, translation)]
    equal = float((ids[0] == ids[1]).all(dim=1).float().mean())
    if equal > 0.5:
        warn(
            f"In {equal:.0%} of a batch the second column equals the first, and TwinsLoss takes it for the "
            "translation: a sentence is then its own fraternal twin. Give one column for identical twins alone, or "
            "translations."
        )
