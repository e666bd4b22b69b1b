"""Measurements; README.md says which modules are commands."""

from pathlib import Path

import torch

#: The folder of the result lines.
RESULTS = Path(__file__).parent / "results"


def device_name() -> str:
    """Of the GPU that is taken where there is one, or "cpu"."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
