"""The registry loads no large package, and this package loads nothing in addition to sentence-transformers."""

from __future__ import annotations

from tests.processes import run_python

SCRIPT = """
import sys

import st_contrastive.methods as methods
heavy = {"torch", "sentence_transformers", "transformers", "datasets", "numpy"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
assert methods.METHODS["twins"].loss == "TwinsLoss"

from sentence_transformers import SentenceTransformerTrainer, losses
before = set(sys.modules)
import st_contrastive
methods.METHODS["twins"].loss_class
from st_contrastive import *
from st_contrastive import training
added = {name.partition(".")[0] for name in set(sys.modules) - before}
assert added - {"annotated_types"} == {"st_contrastive"}, added  # annotated_types is one small file
"""


def test_imports_load_no_further_packages():
    run_python("-W", "ignore", "-c", SCRIPT)
