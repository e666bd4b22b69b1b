"""Imports point one way: which package may import which, read off the source."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import st_contrastive

ROOT = Path(st_contrastive.__file__).parent
#: In addition to itself.
MAY_IMPORT = {
    "_arguments": "",
    "_checks": "",
    "_file_kinds": "_files",
    "_files": "",
    "_random": "",
    "_tokenizers": "",
    "distributed": "",
    "poolings": "",
    "methods": "poolings",
    "settings": "methods poolings _arguments",
    "objectives": "",
    "encoder": "_checks",
    "components": "encoder objectives _arguments _checks _files _tokenizers",
    "losses": "components objectives encoder distributed _arguments _checks _random",
    "augmentations": "_arguments",
    "inputs": "_arguments _checks _file_kinds _files _tokenizers",
    "training": "losses components encoder inputs distributed _arguments _checks _files",
    "evaluation": "inputs objectives _arguments _checks _files _random",
    "recipes": "__version__ methods poolings settings encoder inputs augmentations components evaluation training "
    "_arguments _checks _file_kinds _files",
    "cli": "__version__ encoder inputs evaluation recipes methods poolings settings distributed _checks _files",
}
SEMI_PRIVATE = ("sentence_transformers.base.losses", "sentence_transformers.util")
NO_SENTENCE_TRANSFORMERS = ("objectives", "components", "augmentations")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from st_contrastive import distributed` names the module in its second half.
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
                assert parts[1] in [room(path), *MAY_IMPORT[room(path)].split()], f"{path} imports {name}"
            if room(path) in NO_SENTENCE_TRANSFORMERS:
                assert parts[0] != "sentence_transformers", f"{path} imports {name}"
            if room(path) != "encoder":
                assert not name.startswith(SEMI_PRIVATE), f"{path} imports {name}: only encoder/ may"
    assert checked > 30


def test_methods_do_not_import_each_other():
    for folder in ("objectives", "losses"):
        names = {"simcse", "conisi", "twins", "infocse", "diffcse", "momentum", "pretraining"}
        for path in (ROOT / folder).glob("*.py"):
            if path.stem in names:
                siblings = {f"st_contrastive.{folder}.{other}" for other in names - {path.stem}}
                assert not any(name.startswith(tuple(siblings)) for name in imports(path)), path


def test_no_room_imports_a_private_module_of_another_room():
    for path in ROOT.rglob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            is_private = parts[0] == "st_contrastive" and len(parts) > 2 and parts[2].startswith("_")
            assert not is_private or parts[1] == room(path), f"{path} imports {name}"


def test_files_of_different_rooms_have_different_names():
    names = Counter(path.name.lstrip("_") for path in ROOT.glob("*/*.py") if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []
