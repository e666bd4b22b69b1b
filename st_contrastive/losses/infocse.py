"""InfoCSE: SimCSE with an auxiliary masked-LM network that reads the sentence vector."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedModel

from st_contrastive._arguments import Count, Positive, PositiveShare, Weight
from st_contrastive._checks import require_weights, warn
from st_contrastive.components import AuxiliaryMLM, MaskedLMHead, ReplacedTokenDetector, TokenCorruption, load_auxiliary
from st_contrastive.components.auxiliary_mlm import require_fit
from st_contrastive.encoder.model_facts import get_encoder, get_tokenizer
from st_contrastive.encoder.requirements import require_plain_tokens, require_positions
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.step import Step


class InfoCSELoss(TextLoss):
    r"""InfoCSE (Wu et al., Findings of EMNLP 2022): :math:`L_{SimCSE} + \lambda L_{MLM}` (eq. 7).

    The auxiliary network reads a masked copy of the sentence through frozen lower layers, with the full encoder's
    sentence vector instead of its [CLS] state. A few trainable layers (two in the paper) and a masked-LM head predict
    the masked tokens. With ``detach``, the gradient only reaches the encoder through the sentence vector. This is the
    [CLS] vector if the model pools [CLS], and otherwise the output of the model's own Pooling. The defaults follow the
    authors' code where the paper's text differs from it, except for ``head``.

    Terms: ``contrastive`` (SimCSE's) and, with their weights above 0, ``mlm`` and ``rtd``.

    Args:
        model: SentenceTransformer with a token-level Transformer as its first module. The tokenizer needs a mask token.
        auxiliary: a trained network, as in the paper: the folder that
            :meth:`~st_contrastive.AuxiliaryMLMPretrainingLoss.save_auxiliary` wrote, or an
            :class:`~st_contrastive.components.AuxiliaryMLM`, which is not copied. None builds an untrained network from
            the encoder's lower half and uppermost layers ("w/o pre-training", Table 4), with the masked-LM head of the
            checkpoint if it has one.
        temperature: tau. Cosines are divided by it. The default is the authors'.
        head: see :class:`TextLoss`. The paper's text has "a pooler layer" (section 2), which is SimCSE's "tanh". The
            authors' code uses "projector".
        mlm_weight: lambda of eq. 7, the weight of the masked-LM term. At 0 there is no auxiliary network ("w/o MLM"),
            and the loss is ``SimCSELoss``. At 1e-5 most gradients of the network are smaller than Adam's epsilon, as in
            the authors' code. In float16 nearly all of them vanish without a loss scale, and 5 % vanish under
            GradScaler's initial scale, 2^16.
        mask_rate: share of the tokens that are chosen. Of these, 80 % become the mask token, 10 % a random token and
            10 % stay, as in BERT and the authors' code. Section 2 of the paper only uses the mask token.
        split_layer: how many lower layers the auxiliary network copies and freezes, six of twelve in the paper. None
            uses half of the encoder's layers, or the number in ``auxiliary``.
        extra_layers: how many trainable layers the network adds: "an additional two layers" in the paper. None uses
            the number in ``auxiliary``. Without ``auxiliary`` it adds two, or one if two would make the network as deep
            as the encoder.
        masked_views: "both" masks each dropout view separately and predicts it from its own sentence vector (the
            authors' code). "first" masks one copy (the paper's text).
        contrastive_weight: weight of the contrastive term. 0 keeps only the auxiliary terms ("w/o contrastive").
        detach: keep the masked-LM gradient out of the lower layers. False runs the masked text through the encoder's
            lower layers with gradient, which is our reading of "w/o gradient detach" (Table 6). Section 5.2 can also be
            read as training the network's separate copy of these layers. False does not work with adapters such as
            LoRA.
        tied_head: use the embedding matrix of the auxiliary network's frozen copy as the masked-LM head's decoder.
            False trains a separate matrix, as in the authors' code. A saved network starts with its saved matrix.
        lower_dropout: keep dropout on in the frozen layers, as the authors do for large encoders.
        rtd_weight: weight of DiffCSE's replaced-token detection, which section 6.3 adds to the masked-LM term. DiffCSE
            uses 0.005. InfoCSE's paper does not state a weight.
        generator: fills in tokens for ``rtd_weight``, as in :class:`DiffCSELoss`. None uses a frozen copy of the
            encoder with the masked-LM head of ``auxiliary`` or of the checkpoint.

    Raises:
        OSError: ``auxiliary`` does not exist, or is damaged.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import InfoCSELoss
        >>> model = SentenceTransformer("all-MiniLM-L6-v2", device="cpu").train()
        >>> loss = InfoCSELoss(model)
        >>> list(loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])]))
        ['contrastive', 'mlm']
    """

    cites = ("wu-etal-2022-infocse",)
    columns = {1: "sentences"}
    may_change = (*TextLoss.may_change, "auxiliary", "generator")
    only_used_with = {
        "generator": "rtd_weight",
        **dict.fromkeys(
            "auxiliary mask_rate split_layer extra_layers masked_views detach tied_head lower_dropout".split(),
            "mlm_weight",
        ),
    }

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        auxiliary: str | os.PathLike[str] | AuxiliaryMLM | None = None,
        temperature: Positive = 0.05,
        head: Literal["tanh", "projector"] | None = "tanh",
        mlm_weight: Weight = 1e-5,
        mask_rate: PositiveShare = 0.4,
        split_layer: Count | None = None,
        extra_layers: Count | None = None,
        masked_views: Literal["both", "first"] = "both",
        contrastive_weight: Weight = 1.0,
        detach: bool = True,
        tied_head: bool = False,
        lower_dropout: bool = False,
        rtd_weight: Weight = 0.0,
        generator: str | os.PathLike[str] | PreTrainedModel | MaskedLMHead | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: Count | None = None,
    ) -> None:
        require_weights(mlm_weight=mlm_weight, contrastive_weight=contrastive_weight, rtd_weight=rtd_weight)
        super().__init__(
            model,
            temperature=temperature,
            head=head if contrastive_weight > 0 else None,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
        )
        self.mlm_weight, self.contrastive_weight, self.rtd_weight = mlm_weight, contrastive_weight, rtd_weight
        self.contrasted_terms = ("contrastive",) if contrastive_weight > 0 else ()
        self.masked_views, self.detach = masked_views, detach
        self.auxiliary: AuxiliaryMLM | None = None
        self.detector: ReplacedTokenDetector | None = None
        encoder, tokenizer = get_encoder(model), get_tokenizer(model)
        if mlm_weight > 0:
            require_plain_tokens(model, "InfoCSELoss")
            self.masking = TokenCorruption.masking(tokenizer, mask_rate)
            depths: dict[str, Any] = {"split_layer": split_layer, "extra_layers": extra_layers}
            options = {"tied_head": tied_head, "lower_dropout": lower_dropout}
            if auxiliary is None:
                auxiliary = AuxiliaryMLM.from_encoder(encoder, **depths, **options)
                if auxiliary.head.source == "new":
                    warn(
                        "The encoder's checkpoint has no masked-LM head and auxiliary is None, so InfoCSELoss starts "
                        "with an untrained network. Train one with AuxiliaryMLMPretrainingLoss or a recipe's stage1."
                    )
            elif not isinstance(auxiliary, AuxiliaryMLM):
                auxiliary = load_auxiliary(auxiliary, encoder, tokenizer, **options)
            self.auxiliary = auxiliary
            wanted = {name: value or None for name, value in {**depths, **options}.items()}
            require_fit("auxiliary", auxiliary.properties, {**AuxiliaryMLM.get_signature(encoder), **wanted})
            if not detach:
                auxiliary.encoder_weights(encoder, lower=True)  # refuses adapters
        if rtd_weight > 0:
            require_plain_tokens(model, "rtd_weight")
            if generator is None and self.auxiliary is not None:
                generator = self.auxiliary.head
            self.detector = ReplacedTokenDetector(encoder, tokenizer, generator=generator)
            require_positions(model, self.detector.generator)

    @property
    def term_weights(self) -> Mapping[str, float]:
        return {"contrastive": self.contrastive_weight, "mlm": self.mlm_weight, "rtd": self.rtd_weight}

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        both = batches[0].followed_by(batches[0])  # all first views, then all second views
        views = 1 if self.masked_views == "first" else 2
        to_mask = batches[0] if views == 1 else both
        # Random tokens are drawn before any forward pass.
        masked = None if self.auxiliary is None else to_mask.corrupt(self.masking)
        to_fill = None if self.detector is None else both.corrupt(self.detector.masking)
        encoded = step.encode_and_pool(batches[0], batches[0])
        terms = {}
        if self.contrastive_weight > 0:
            terms["contrastive"] = step.info_nce(*step.apply_head(self.head, *encoded.sentences))
        if masked is not None:
            vectors = torch.cat(encoded.pooled[:views])
            (terms["mlm"],) = step.token_mean(self._masked_lm, to_mask, masked, vectors)
        if self.detector is not None and to_fill is not None:
            vectors = torch.cat(encoded.pooled)
            (terms["rtd"],) = step.token_mean(self.detector.summed_losses, both, to_fill, vectors)
        return terms

    def _masked_lm(self, rows: TokenBatch, masked: CorruptedTokens, vectors: Tensor) -> tuple[Tensor, ...]:
        """Summed cross-entropy of the masked tokens, predicted with the sentence vectors, and the number of tokens."""
        assert self.auxiliary is not None
        weights = None if self.detach else self.auxiliary.encoder_weights(get_encoder(self.model), lower=True)
        states = self.auxiliary(rows.with_ids(masked.input_ids).token_tensors, vectors, weights)  # (N, L, d)
        return self.auxiliary.head.summed_losses(self.auxiliary.encoder, rows, masked, states)
