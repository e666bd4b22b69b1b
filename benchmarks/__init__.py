"""Measurements; README.md says which modules are commands."""

import subprocess
import sys
from pathlib import Path

import torch

#: The folder of the result lines.
RESULTS = Path(__file__).parent / "results"


def device_name() -> str:
    """The name of the GPU that is used, or "cpu"."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def provenance() -> dict[str, str]:
    """Where a result line comes from: device, version of torch, commit and command."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS)
    command = " ".join([f"python -m benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    return {"device": device_name(), "torch": torch.__version__, "commit": head.stdout.strip(), "command": command}
