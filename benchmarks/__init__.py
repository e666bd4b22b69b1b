"""Measurements; README.md says which modules are commands."""

from pathlib import Path

#: The folder of the result lines.
RESULTS = Path(__file__).parent / "results"
