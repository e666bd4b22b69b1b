"""All recipes, by name.

The source of a number is a section or table of the paper, or a file of its authors' code. "Not verified" marks numbers
of papers whose text was not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from st_contrastive.recipes.baselines import BASELINES
from st_contrastive.recipes.conisi import CONISI
from st_contrastive.recipes.infocse import INFOCSE
from st_contrastive.recipes.mini import MINIS
from st_contrastive.recipes.recipe import Recipe
from st_contrastive.recipes.twins import TWINS

#: Every recipe by its name.
RECIPES: Mapping[str, Recipe] = {one.name: one for one in (*BASELINES, *CONISI, *TWINS, *INFOCSE, *MINIS)}


def recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: there is none; the message lists all names.

    Example:
        >>> recipe("infocse-bert-base").loss_arguments["mlm_weight"]
        1e-05
        >>> recipe("infocse-bert-base").loss["mlm_weight"].source
        'InfoCSE, section 5.4 and table 8'
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}.")
    return RECIPES[name]
