"""The recipes at the papers' scale.

A source names the section or table of the paper, or the file of the authors' code. Where it says "not
verified", the number is the one that is known of a paper whose text we have not read.
"""

from __future__ import annotations

from st_contrastive.recipes.baselines import BASELINES
from st_contrastive.recipes.conisi import CONISI
from st_contrastive.recipes.infocse import INFOCSE
from st_contrastive.recipes.twins import TWINS

FULL = (*BASELINES, *CONISI, *TWINS, *INFOCSE)
