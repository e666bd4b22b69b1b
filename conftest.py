"""Doctests and tests read the miniature WordNet of tests/, whatever the machine has."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nltk
import pytest

from tests.miniature_wordnet import write_database


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--write-table`` writes what tests find: of tests/test_encoders.py into docs/encoders.md, of
    tests/contracts/test_devices.py into docs/synchronisations.md."""
    parser.addoption("--write-table", action="store_true", help="write the tables that tests compare with")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything asks for WordNet."""
    from st_contrastive.augmentations import wordnet

    folder = tempfile.TemporaryDirectory(prefix="miniature-wordnet-")
    config.add_cleanup(folder.cleanup)
    nltk.data.path[:] = [folder.name]
    os.environ["WNSEARCHDIR"] = str(write_database(Path(folder.name, "database")))
    wordnet()
