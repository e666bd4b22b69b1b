"""docs/defaults.md names every argument that changes an objective, with the default that the code has."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

import st_contrastive
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
