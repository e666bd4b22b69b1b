"""Settings of the papers as data, each with its source, and small ones for a laptop; and runs of them."""

from st_contrastive.recipes._build import trainer
from st_contrastive.recipes._data import read_texts
from st_contrastive.recipes._model import has_pooling, load_model
from st_contrastive.recipes._recipe import Recipe, dump, load, names, parse
from st_contrastive.recipes._run import Run, run
from st_contrastive.recipes._settings import TRAINING, loss_arguments

__all__ = [
    "TRAINING", "Recipe", "Run", "dump", "has_pooling", "load", "load_model", "loss_arguments", "names",
    "parse", "read_texts", "run", "trainer",
]  # fmt: skip
