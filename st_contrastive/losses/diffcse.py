"""DiffCSE: contrast, and detection of replaced tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping
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

    A frozen generator fills in masked tokens. A discriminator reads the edited sentence and the sentence vector of the
    original, and detects which tokens were replaced. Its gradient reaches the encoder only through that vector. The
    discriminator and, by default, the generator are copies of the encoder with merged adapters (LoRA).
    Each dropout view has separate edits and a separate vector.

    As in the authors' code, the vector is the head's output (or the output of the model's own Pooling, if there is no
    head or its width differs). The chosen tokens are masked as in BERT: 80 % become the mask token, 10 % a random
    token, and 10 % stay. The generator fills in its most likely tokens, with dropout on. This implementation improves
    on that code in two ways: the generator only changes the chosen tokens and never inserts a special token, and the
    detection loss ignores padding.

    Terms: ``contrastive`` and, with ``rtd_weight`` above 0, ``rtd``.

    Args:
        model: SentenceTransformer with a token-level Transformer as its first module. The tokenizer needs a mask token.
        generator: folder or hub name of a masked-LM checkpoint with the model's tokenizer (the authors use
            ``distilbert-base-uncased`` with BERT), or a masked-LM model. It can also be a
            :class:`~st_contrastive.components.MaskedLMHead`, or the folder of an auxiliary network, that was trained
            with this encoder. None uses a frozen copy of the encoder with the masked-LM head of its checkpoint.
        temperature: tau. Cosines are divided by it.
        head: see :class:`TextLoss`. The authors use "projector".
        rtd_weight: lambda, the weight of the detection term.
        mask_rate: share of the tokens that the generator fills in.

    Raises:
        OSError: the generator does not exist.
    """

    cites = ("chuang-etal-2022-diffcse",)
    columns = {1: "sentences"}
    may_change = (*TextLoss.may_change, "generator")
    only_used_with = dict.fromkeys(("generator", "mask_rate"), "rtd_weight")

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

    @property
    def term_weights(self) -> Mapping[str, float]:
        return {"rtd": self.rtd_weight}

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        batch = batches[0]
        if self.detector is None:
            return {"contrastive": step.info_nce(*step.apply_head(self.head, *step.encode(batch, batch)))}
        both = batch.followed_by(batch)  # all first views, then all second views
        to_fill = both.corrupt(self.detector.masking)
        if self._reads_head:
            vectors = contrasted = step.apply_head(self.head, *step.encode(batch, batch))
        else:
            encoded = step.encode_and_pool(batch, batch)
            contrasted, vectors = step.apply_head(self.head, *encoded.sentences), encoded.pooled
        (rtd,) = step.token_mean(self.detector.summed_losses, both, to_fill, torch.cat(vectors))
        return {"contrastive": step.info_nce(*contrasted), "rtd": rtd}
