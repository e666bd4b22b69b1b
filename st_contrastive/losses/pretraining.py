"""InfoCSE's first stage: the encoder and the auxiliary network learn masked-LM together."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._arguments import Count, Positive, PositiveShare
from st_contrastive.components import AuxiliaryMLM, TokenCorruption, save_auxiliary
from st_contrastive.encoder.model_facts import get_encoder, get_tokenizer
from st_contrastive.encoder.partial import capture_states
from st_contrastive.encoder.passes import pool_as_model, run_model
from st_contrastive.encoder.requirements import require_plain_tokens
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.step import Step


class AuxiliaryMLMPretrainingLoss(TextLoss):
    r"""Stage 1 of InfoCSE (Wu et al., Findings of EMNLP 2022): :math:`L_{MLM} + w\, L_{aux}` (eq. 5 and 6).

    The encoder predicts the masked tokens from its last hidden states. The auxiliary network predicts them from the
    hidden states of the encoder's lower layers, with the full encoder's sentence vector at position 0. Both share one
    masked-LM head, and all gradients flow into the encoder. The upper layers can pass information about the sentence
    only through that vector. The paper argues that a shallow network must therefore rely on it.

    After training, call ``save_auxiliary(path)`` and ``model.save_pretrained(folder)``, and train
    :class:`~st_contrastive.InfoCSELoss` with ``auxiliary=path``. Terms: ``mlm`` and ``auxiliary_mlm``.

    Args:
        model: SentenceTransformer with a token-level Transformer as its first module. The tokenizer needs a mask token.
        mask_rate: share of the tokens that are chosen. Of these, 80 % become the mask token, 10 % a random token and
            10 % stay, as in BERT. The default is BERT's, which the paper names for this stage (sections 2 and 3.1). The
            paper only varies the rate of the joint stage (section 5.3).
        split_layer: number of lower encoder layers after which the auxiliary network branches off: "a lower six
            layers" of twelve in the paper. None uses half of the encoder's layers.
        extra_layers: how many layers the network adds: "an additional two layers" in the paper. They start as copies
            of the encoder's uppermost layers. None adds two, or one if two would make the network as deep as the
            encoder.
        auxiliary_weight: w, above 0, the weight of the auxiliary network's term. The pre-training loss is "the sum of
            the two MLM losses" (section 3.1). Section 4.2 mentions a "hyperparameter to balance the two MLM losses",
            whose value our copy of the paper lacks.
        tied_head: use the encoder's embedding matrix as the head's decoder, as in BERT. False trains a separate matrix.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import AuxiliaryMLMPretrainingLoss
        >>> model = SentenceTransformer("all-MiniLM-L6-v2", device="cpu").train()
        >>> loss = AuxiliaryMLMPretrainingLoss(model)
        >>> list(loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])]))
        ['mlm', 'auxiliary_mlm']
    """

    cites = ("wu-etal-2022-infocse",)
    columns = {1: "sentences"}
    dropout_only = False
    contrasted_terms = ()

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        mask_rate: PositiveShare = 0.15,
        split_layer: Count | None = None,
        extra_layers: Count | None = None,
        auxiliary_weight: Positive = 1.0,
        tied_head: bool = True,
    ) -> None:
        # The mean is over the masked tokens of all devices.
        super().__init__(model, gather_across_devices=True)
        require_plain_tokens(model, "AuxiliaryMLMPretrainingLoss")
        encoder = get_encoder(model)
        self.masking = TokenCorruption.masking(get_tokenizer(model), mask_rate)
        # Training uses the encoder's lower layers. The network's copy of them is only updated to be saved.
        self.network = AuxiliaryMLM.from_encoder(
            encoder, split_layer=split_layer, extra_layers=extra_layers, tied_head=tied_head
        )
        self.network.encoder_weights(encoder, lower=False)
        self._base_name = str(encoder.config.name_or_path or "")
        self.auxiliary_weight = auxiliary_weight

    @property
    def term_weights(self) -> Mapping[str, float]:
        return {"auxiliary_mlm": self.auxiliary_weight}

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        masked = batches[0].corrupt(self.masking)
        mlm, auxiliary_mlm = step.token_mean(self._masked_lm, batches[0], masked)
        return {"mlm": mlm, "auxiliary_mlm": auxiliary_mlm}

    def _masked_lm(self, rows: TokenBatch, masked: CorruptedTokens) -> tuple[Tensor, ...]:
        """Summed cross-entropy of the masked tokens from the encoder and from the network, and the number of tokens."""
        encoder, network = get_encoder(self.model), self.network
        masked_rows = rows.with_ids(masked.input_ids)
        with capture_states(encoder, network.split_layer) as captured:
            encoded = run_model(self.model, [masked_rows], eager=True)[0]
        lower, vector = captured[0], pool_as_model(self.model, encoded)  # (N, L, d) and (N, d)
        states = torch.cat([vector.to(lower.dtype)[:, None], lower[:, 1:]], dim=1)
        upper = network.forward_upper(states, masked_rows.token_tensors, network.encoder_weights(encoder, lower=False))
        return network.head.summed_losses(encoder, rows, masked, encoded.tokens, upper)

    @property
    def derived_tensors(self) -> list[str]:
        """Names of the tensors that no checkpoint contains, because training uses the encoder's tensors instead."""
        frozen = [name for name, weight in self.network.named_parameters() if not weight.requires_grad]
        return [f"network.{name}" for name in frozen]

    def trained_auxiliary(self) -> AuxiliaryMLM:
        """A copy of the auxiliary network with the encoder's current lower layers."""
        network = copy.deepcopy(self.network)
        network.zero_grad(set_to_none=True)
        network.sync_frozen(get_encoder(self.model))
        network.head.source = "checkpoint"  # it has been trained
        return network

    def save_auxiliary(self, path: str | os.PathLike[str]) -> None:
        """Save the auxiliary network in a folder for ``InfoCSELoss(model, auxiliary=path)``.

        The model may be saved in the same folder.
        """
        save_auxiliary(self.trained_auxiliary(), path, get_tokenizer(self.model), self._base_name)
