"""Training that clips, saves and restores the loss's parameters and buffers together with the encoder's."""

from st_contrastive.training.loss_state import LossStateError, load_loss_state, save_loss_state
from st_contrastive.training.mixing import interpolate_weights
from st_contrastive.training.trainer import ContrastiveTrainer

__all__ = ["ContrastiveTrainer", "LossStateError", "interpolate_weights", "load_loss_state", "save_loss_state"]
