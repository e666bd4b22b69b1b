"""What importing the package loads beside sentence-transformers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import json, sys
import sentence_transformers
from sentence_transformers import SentenceTransformerTrainer, losses
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize(
    "statement", ["import st_contrastive", "from st_contrastive import *; from st_contrastive import training"]
)
def test_import_loads_no_other_package(statement):
    probe = [sys.executable, "-W", "ignore", "-c", PROBE.format(statement=statement)]
    done = subprocess.run(probe, capture_output=True, text=True, check=True)
    added = json.loads(done.stdout.splitlines()[-1])
    assert {name.partition(".")[0] for name in added} == {"st_contrastive"}
