"""DiffCSE: contrast beside the detection of replaced tokens."""

from __future__ import annotations

import os
from typing import Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedModel

from st_contrastive._arguments import Count, Positive, PositiveShare, Weight
from st_contrastive.components import MaskedLMHead, ReplacedTokenDetector
from st_contrastive.encoder.model_facts import embedding_width, get_encoder, get_tokenizer, token_width
from st_contrastive.encoder.requirements import require_plain_tokens, require_positions
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.step import Step


class DiffCSELoss(TextLoss):
    r"""DiffCSE (Chuang et al., NAACL 2022): :math:`L_{SimCSE} + \lambda L_{RTD}` (eq. 5).

    A frozen generator fills in masked tokens; a discriminator, given the sentence vector of the original, detects
    which tokens were replaced. Its gradient reaches the encoder through that vector alone. The discriminator, and
    by default the generator, are copies of the encoder with its adapters (LoRA), if any, merged. The discriminator
    reads the edited sentence once for each dropout view, each with its own edits and vector.

    As in the authors' code, the vector is what the head makes (the model's own pooling where there is no head, or one
    of another width), the chosen tokens are masked as in BERT (80 % become the mask token, 10 % a random one, 10 %
    stay), the likeliest tokens fill them in, and the generator's dropout is on. Differences from it, which are better:
    the generator changes the chosen tokens alone, and never to a special token; the detection loss leaves padding out.

    Terms: ``contrastive`` and, with ``rtd_weight`` above 0, ``rtd``.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module; its tokenizer has a mask token.
        generator: folder or hub name of a masked-LM checkpoint with the model's tokenizer (the authors take
            ``distilbert-base-uncased`` beside BERT), a masked-LM model, or a
            :class:`~st_contrastive.components.MaskedLMHead` that was trained on this encoder, or the folder of the
            auxiliary network that was. None takes a frozen copy of the encoder with its checkpoint's masked-LM head.
        temperature: tau, which the cosines are divided by.
        head: see :class:`TextLoss`; "projector" is the authors'.
        rtd_weight: lambda, the weight of the detection term.
        mask_rate: share of the tokens that the generator fills in.

    Raises:
        OSError: the generator does not exist.
    """

    cites = ("chuang-etal-2022-diffcse",)
    columns = {1: "sentences"}
    may_change = (*TextLoss.may_change, "generator")
    read_with = dict.fromkeys(("generator", "mask_rate"), "rtd_weight")

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        generator: str | os.PathLike[str] | PreTrainedModel | MaskedLMHead | None = None,
        temperature: Positive = 0.05,
        head: Literal["tanh", "projector"] | None = "projector",
        rtd_weight: Weight = 0.005,
        mask_rate: PositiveShare = 0.3,
        gather_across_devices: bool = False,
        mini_batch_size: Count | None = None,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            head=head,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
        )
        self.rtd_weight = rtd_weight
        self._reads_head = head is not None and embedding_width(model) == token_width(model)
        self.detector: ReplacedTokenDetector | None = None
        if rtd_weight > 0:
            require_plain_tokens(model, "DiffCSELoss")
            self.detector = ReplacedTokenDetector(
                get_encoder(model), get_tokenizer(model), generator=generator, mask_rate=mask_rate
            )
            require_positions(model, self.detector.generator)

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        batch = batches[0]
        if self.detector is None:
            return {"contrastive": step.info_nce(*step.apply_head(self.head, *step.encode(batch, batch)))}
        both = batch.followed_by(batch)  # view by view, as the vectors are
        to_fill = both.corrupt(self.detector.masking)
        first, second, *pooled = step.encode(batch, batch, pooled=not self._reads_head)
        contrasted = step.apply_head(self.head, first, second)
        (rtd,) = step.token_mean(self.detector.summed_losses, both, to_fill, torch.cat(pooled or contrasted))
        return {"contrastive": step.info_nce(*contrasted), "rtd": self.rtd_weight * rtd}
