"""Trains with what a loss owns: clipped in one norm with the encoder, saved, and restored."""

from st_contrastive.training.loss_state import LossStateError, load_loss_state, save_loss_state
from st_contrastive.training.mixing import interpolate_weights
from st_contrastive.training.trainer import ContrastiveTrainer

__all__ = ["ContrastiveTrainer", "LossStateError", "interpolate_weights", "load_loss_state", "save_loss_state"]
