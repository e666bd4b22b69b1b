"""InfoCSE's first stage: encoder and auxiliary network learn masked-LM together."""

from __future__ import annotations

import copy
import os

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

    The encoder predicts the masked tokens from its last hidden states; the auxiliary network predicts them from the
    hidden states of the encoder's own lower layers and, in position 0, the full encoder's sentence vector. Both go
    through one masked-LM head, and nothing is detached. What the upper layers know about the sentence can reach the
    auxiliary network through that vector alone; the paper argues that a shallow network must therefore rely on it.

    Then ``save_auxiliary(path)``, ``model.save_pretrained(folder)``, and
    :class:`~st_contrastive.InfoCSELoss` with ``auxiliary=path``. Terms: ``mlm`` and ``auxiliary_mlm``.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module; its tokenizer has a mask token.
        mask_rate: share of the tokens that are chosen, of which 80 % become the mask token, 10 % a random one and 10 %
            stay, as in BERT. The default is BERT's, which the paper names for this stage (sections 2 and 3.1); it
            varies the rate of the joint stage alone (section 5.3).
        split_layer: after how many lower layers the auxiliary network branches off. None takes half of them.
        extra_layers: how many layers it has of its own. They start as copies of the encoder's uppermost. None takes
            two, as in the paper, or one where two would make the network as deep as the encoder.
        auxiliary_weight: w, above 0, of the auxiliary network's term. Section 3.1 has "the sum of the two MLM losses";
            section 4.2 names a "hyperparameter to balance the two MLM losses", and its text gives no value.
        tied_head: the head's decoder is the encoder's embedding matrix, as in BERT; False trains a matrix of its own.

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
    contrast_weights: dict[str, float] = {}

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
        # So that the mean is over the masked tokens of all devices.
        super().__init__(model, gather_across_devices=True)
        require_plain_tokens(model, "AuxiliaryMLMPretrainingLoss")
        encoder = get_encoder(model)
        self.masking = TokenCorruption.masking(get_tokenizer(model), mask_rate)
        # Its lower part is a place to keep what is saved: training uses the encoder's.
        self.network = AuxiliaryMLM.from_encoder(
            encoder, split_layer=split_layer, extra_layers=extra_layers, tied_head=tied_head
        )
        self.network.encoder_weights(encoder, lower=False)
        self._base_name = str(encoder.config._name_or_path or "")
        self.auxiliary_weight = auxiliary_weight

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        masked = batches[0].corrupt(self.masking)
        mlm, auxiliary_mlm = step.token_mean(self._masked_lm, batches[0], masked)
        return {"mlm": mlm, "auxiliary_mlm": self.auxiliary_weight * auxiliary_mlm}

    def _masked_lm(self, rows: TokenBatch, masked: CorruptedTokens) -> tuple[Tensor, ...]:
        """Summed cross-entropy of the masked tokens from the encoder and from the network, and their number."""
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
        """What no checkpoint holds: the network's frozen part, where training reads the encoder's own tensors."""
        frozen = [name for name, weight in self.network.named_parameters() if not weight.requires_grad]
        return [f"network.{name}" for name in frozen]

    def trained_auxiliary(self) -> AuxiliaryMLM:
        """A copy of the auxiliary network, its lower part as the encoder's is now."""
        network = copy.deepcopy(self.network)
        network.zero_grad(set_to_none=True)
        network.sync_frozen(get_encoder(self.model))
        network.head.source = "checkpoint"  # it has been trained
        return network

    def save_auxiliary(self, path: str | os.PathLike[str]) -> None:
        """Write the auxiliary network into a folder, for ``InfoCSELoss(model, auxiliary=path)``.

        The folder may be that of the saved model.
        """
        save_auxiliary(self.trained_auxiliary(), path, get_tokenizer(self.model), self._base_name)
