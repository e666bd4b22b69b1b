"""Settings of the papers, each number with its source, and settings of the same methods for a laptop."""

from st_contrastive.recipes.library import RECIPES, recipe
from st_contrastive.recipes.recipe import Difference, Recipe, Setting

__all__ = ["RECIPES", "Difference", "Recipe", "Setting", "recipe"]
