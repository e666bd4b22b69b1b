"""The papers' settings by name, each number with where it is from; and the same methods at the scale of a laptop."""

from st_contrastive.recipes.library import RECIPES, recipe
from st_contrastive.recipes.recipe import Difference, Recipe, Setting

__all__ = ["RECIPES", "Difference", "Recipe", "Setting", "recipe"]
