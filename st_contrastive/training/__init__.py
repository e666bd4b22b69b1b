"""Trains with what a loss owns: saved and resumed, the same on all ranks, clipped in one norm with the encoder.

Also chooses the weights that are kept: those of the best evaluation, or a mixture with those before training.
"""

from st_contrastive.training.callback import LossStateCallback
from st_contrastive.training.keep_best import KeepBest
from st_contrastive.training.length_batches import LengthBatchSampler
from st_contrastive.training.loss_state import LossStateError, load_loss_state, save_loss_state
from st_contrastive.training.mixing import ShareChoice, choose_share, mix_weights
from st_contrastive.training.trained_head import with_trained_head
from st_contrastive.training.trainer import ContrastiveTrainer

__all__ = [
    "ContrastiveTrainer",
    "KeepBest",
    "LengthBatchSampler",
    "LossStateCallback",
    "LossStateError",
    "ShareChoice",
    "choose_share",
    "load_loss_state",
    "mix_weights",
    "save_loss_state",
    "with_trained_head",
]
