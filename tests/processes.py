"""Python in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: ``python`` with these and a number runs a script in as many processes, at a port that is free.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def run_python(*arguments: object, cwd: Path | None = None, **environment: str) -> str:
    """What ``python *arguments`` prints, which must end well. It may take long: the machine may be busy."""
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
