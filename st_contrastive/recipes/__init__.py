"""Recipes: settings of the papers, each with its source, and small ones for a laptop; and the runs that use them."""

from st_contrastive.recipes.build import build_trainer, trainer
from st_contrastive.recipes.data import read_texts
from st_contrastive.recipes.plan import RUN, TRAINING, RunPlan, loss_arguments, setting_types
from st_contrastive.recipes.recipe import Recipe, dump, load, names, parse
from st_contrastive.recipes.result import Run
from st_contrastive.recipes.run import run, run_plan
from st_contrastive.recipes.starting_model import has_pooling, load_model

__all__ = [
    "RUN", "TRAINING", "Recipe", "Run", "RunPlan", "build_trainer", "dump", "has_pooling", "load", "load_model",
    "loss_arguments", "names", "parse", "read_texts", "run", "run_plan", "setting_types", "trainer",
]  # fmt: skip
