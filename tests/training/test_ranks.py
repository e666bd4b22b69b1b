"""Several processes against one, on CPUs: torchrun starts ``rank.py``."""

from __future__ import annotations

import pytest

from tests import foreign
from tests.processes import TORCHRUN, run_python
from tests.training import rank
from tests.training.rank import ALONE, GATHERING, TRAINED

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def run(checkpoint, tmp_path_factory):
    """``run(launcher, mode)``: what the first rank printed."""
    folder = tmp_path_factory.mktemp("ranks")
    german = foreign.checkpoint(folder)

    def run(launcher, mode):
        printed = run_python(*launcher, rank.__file__, mode, checkpoint("bert"), german, folder / "runs")
        assert "all done" in printed
        return printed

    return run


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_several_ranks_give_the_gradient_of_one(run, ranks):
    """Equal and unequal shares of a batch, with queue and BatchNorm, in float64 and float32."""
    printed = run([*TORCHRUN, ranks], "gradients")
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
    assert run([], "alone").count("resumed alone") == len(ALONE)
