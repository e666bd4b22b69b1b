"""Runs Python in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Arguments of ``python`` to run a script in several processes, whose number follows, at a free port.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def run_python(*arguments: object, cwd: Path | None = None, **environment: str) -> str:
    """Run ``python *arguments``, which must succeed, and return its output. The time limit suits a busy machine."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        cwd=cwd,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            **environment,
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
