"""Settings of the papers as data, each with its source, and small ones for a laptop; and runs of them."""

from st_contrastive.recipes._build import loss_arguments, read_texts, trainer
from st_contrastive.recipes._model import load_model
from st_contrastive.recipes._recipe import Recipe, dump, load, names, parse
from st_contrastive.recipes._run import Run, run

__all__ = [
    "Recipe", "Run", "dump", "load", "load_model", "loss_arguments", "names", "parse", "read_texts", "run", "trainer",
]  # fmt: skip
