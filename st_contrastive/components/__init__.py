"""Modules with parameters or memory, which the losses connect to the objectives."""

from st_contrastive.components.auxiliary_files import load_auxiliary, save_auxiliary
from st_contrastive.components.auxiliary_mlm import AuxiliaryMLM
from st_contrastive.components.fraternal_embedding import FraternalEmbedding
from st_contrastive.components.heads import PredictionHead, Projector, TanhHead
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.components.momentum_encoder import MomentumEncoder
from st_contrastive.components.pair_composer import Content, PairComposer
from st_contrastive.components.queues import NegativeQueue
from st_contrastive.components.replaced_tokens import ReplacedTokenDetector
from st_contrastive.components.shared_tokens import Alignment
from st_contrastive.components.token_corruption import TokenCorruption
from st_contrastive.components.token_repetition import TokenRepetition

__all__ = [
    "Alignment", "AuxiliaryMLM", "Content", "FraternalEmbedding", "MaskedLMHead", "MomentumEncoder", "NegativeQueue",
    "PairComposer", "PredictionHead", "Projector", "ReplacedTokenDetector", "TanhHead", "TokenCorruption",
    "TokenRepetition", "load_auxiliary", "save_auxiliary",
]  # fmt: skip
