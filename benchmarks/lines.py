"""Reads the result lines of STS runs, for the tables and the picture."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks import RESULTS

ROOT = Path(__file__).parents[1]
TESTS = ["sts12", "sts13", "sts16", "stsb"]
ENCODERS = {"all-MiniLM-L6-v2": "MiniLM", "all-mpnet-base-v2": "mpnet"}
BASELINE = "SimCSE without head"


def runs_of(file: str, table: str) -> pd.DataFrame:
    """One row a run: its encoder, name and seed, and the means over dev and the tests."""
    raw = pd.read_json(RESULTS / file, lines=True)
    raw = raw[raw["table"] == table].reset_index(drop=True)
    scores = pd.json_normalize(raw["scores"].tolist())
    runs = raw[[name for name in ("encoder", "row", "seed") if name in raw]].copy()
    runs["dev"], runs["tests"] = scores["dev"], scores[TESTS].mean(axis=1, skipna=False)
    return runs
