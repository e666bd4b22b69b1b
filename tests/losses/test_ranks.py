from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import foreign


def test_two_ranks_give_the_gradient_of_one(checkpoint, sentences, tmp_path):
    """2 ranks x 4 sentences against 1 x 8, in the gradient of every parameter; queues are equal.

    For the losses without BatchNorm, whose statistics are each rank's own.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [
        str(Path(__file__).with_name("rank.py")),
        str(checkpoint("bert")),
        str(foreign.checkpoint(tmp_path)),
        *sentences[:8],
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for case in ("simcse", "twins", "twins-german", "infocse"):
        assert done.stdout.count(f"{case} agrees") == 2
