"""The rooms' doors open one way: who may import whom, read off the source."""

from __future__ import annotations

import ast
from pathlib import Path

import st_contrastive

ROOT = Path(st_contrastive.__file__).parent
MAY_IMPORT = {
    "objectives": {"objectives"},
    "components": {"components", "_device"},
    "losses": {
        "losses",
        "components",
        "objectives",
        "_device",
        "_host",
        "_ranks",
        "_recomputed",
        "_run",
        "_surroundings",
    },
    "augmentations": {"augmentations"},
    "inputs": {"inputs", "augmentations"},
    "evaluation": {"evaluation", "objectives"},
    "cli": {"cli", "losses", "inputs", "evaluation", "components", "augmentations", "recipes", "training", "_host"},
    "_device": set(),
    "_flat": set(),
    "_host": {"_flat", "_recomputed"},
    "_ranks": {"_device"},
    "_recomputed": set(),
    "_run": set(),
    "_surroundings": {"_host"},
    "recipes": {"recipes"},
    "training": {"training", "losses", "components", "_host", "_ranks", "_run"},
}
HOST_ONLY = ("sentence_transformers.base.losses", "sentence_transformers.util")
NO_HOST = ("objectives", "components", "augmentations")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from st_contrastive import _host` names a room in its second half.
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_rooms_import_only_what_they_may():
    checked = 0
    for path in sorted(ROOT.rglob("*.py")):
        if room(path) not in MAY_IMPORT:
            assert path.name in ("__init__.py", "__main__.py"), f"{path} is in no room"
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "st_contrastive" and len(parts) > 1:
                checked += 1
                assert parts[1] in MAY_IMPORT[room(path)], f"{path} imports {name}"
            if room(path) in NO_HOST:
                assert parts[0] != "sentence_transformers", f"{path} imports {name}"
            if room(path) != "_host":
                assert not name.startswith(HOST_ONLY), f"{path} imports {name}: only _host.py may"
    assert checked > 30


def test_methods_do_not_import_each_other():
    for folder in ("objectives", "losses", "inputs"):
        names = {"simcse", "conisi", "twins", "infocse"}
        for path in (ROOT / folder).glob("*.py"):
            if path.stem in names:
                siblings = {f"st_contrastive.{folder}.{other}" for other in names - {path.stem}}
                assert not any(name.startswith(tuple(siblings)) for name in imports(path)), path
