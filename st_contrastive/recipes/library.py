"""All recipes, by name."""

from __future__ import annotations

from collections.abc import Mapping

from st_contrastive.recipes.full import FULL
from st_contrastive.recipes.mini import MINIS
from st_contrastive.recipes.recipe import Recipe

#: Every recipe by its name.
RECIPES: Mapping[str, Recipe] = {one.name: one for one in (*FULL, *MINIS)}


def recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: there is none; the message lists those there are.

    Example:
        >>> recipe("infocse-bert-base").loss_arguments["mlm_weight"]
        1e-05
        >>> recipe("infocse-bert-base").loss["mlm_weight"].source
        'InfoCSE, section 5.4 and table 8'
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}.")
    return RECIPES[name]
