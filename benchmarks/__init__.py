"""Measurements; each module is a command, ``python -m benchmarks.NAME --help``."""

from pathlib import Path

#: The folder of the result lines.
RESULTS = Path(__file__).parent / "results"
