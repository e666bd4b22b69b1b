"""Several processes against one, on CPUs: torchrun starts ``rank.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import foreign
from tests.training.rank import ALONE, GATHERING, TRAINED

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("rank.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.fixture(scope="module")
def run(checkpoint, tmp_path_factory):
    """``run(launcher, mode)``: what the first rank printed."""
    folder = tmp_path_factory.mktemp("ranks")
    german = foreign.checkpoint(folder)

    def run(launcher, mode, runs="runs"):
        command = [*launcher, str(SCRIPT), mode, str(checkpoint("bert")), str(german), str(folder / runs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "all done" in done.stdout
        return done.stdout

    return run


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_several_ranks_give_the_gradient_of_one(run, ranks):
    """Equal and unequal shares of a batch, with queue and BatchNorm, in float64 and float32."""
    printed = run([*TORCHRUN, str(ranks)], "gradients")
    for case in GATHERING:
        assert printed.count(f"{case} equal torch.float64 agrees: encoder") == 1
        assert printed.count(f"{case} uneven torch.float64 agrees: encoder") == 1
        assert printed.count(f"{case} equal torch.float32 agrees: encoder") == 1
    assert printed.count("owned") == 3 * sum("twins" not in case for case in GATHERING)


def test_every_loss_on_two_ranks_and_on_one_after(run):
    """A step changes something, the ranks don't drift, and a resumed run equals the whole; then one process goes on."""
    printed = run([*TORCHRUN, "2"], "train")
    for line in (*(f"{case}: no drift, resumed to the bit" for case in TRAINED), "fit: no drift", "refused"):
        assert line in printed
    assert "mini-batches: the gradient of the whole batch" in printed
    assert run([sys.executable], "alone").count("resumed alone") == len(ALONE)
