"""Private names of the libraries that the package uses: all of them are listed here, and must still exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

import st_contrastive

ROOT = Path(st_contrastive.__file__).parent
TRAINER = "transformers.trainer:Trainer"
SENTENCE_TRAINER = "sentence_transformers.base.trainer:BaseTrainer"
CONFIG = "transformers.configuration_utils:PreTrainedConfig"

#: Each private name, and the module, class or function that defines it.
NAMES = {
    # Names without an underscore that the libraries do not document.
    "merge_feature_batches": "sentence_transformers.base.losses.merged_forward",
    "accum_loss_components": SENTENCE_TRAINER,
    # ContrastiveTrainer overrides these.
    "_save_checkpoint": TRAINER,
    "_get_output_dir": TRAINER,
    "_load_from_checkpoint": SENTENCE_TRAINER,
    # The sums since the last log, which a resumed run continues.
    "_tr_loss": TRAINER,
    "_total_loss_scalar": TRAINER,
    "_globalstep_last_logged": TRAINER,
    # Whether accelerate has wrapped the forward of a model in the run's precision.
    "_original_forward": "accelerate.accelerator:Accelerator",
    "_n_gpu": "transformers.training_args:TrainingArguments",
    "_attn_implementation": CONFIG,
    "_name_or_path": CONFIG,
    "_output_capturing_hooks_installed": "transformers.utils.output_capturing",
    "_hf_peft_config_loaded": "transformers.integrations.peft:PeftAdapterMixin",
    "_raise_exceptions_for_missing_entries": "transformers.utils.hub:cached_files",
    "_raise_exceptions_for_gated_repo": "transformers.utils.hub:cached_files",
    "_raise_exceptions_for_connection_errors": "transformers.utils.hub:cached_files",
    "_BatchNorm": "torch.nn.modules.batchnorm",
    "_modules": "torch.nn:Module",
    "_load_from_state_dict": "torch.nn:Module",
    "_compiled_call_impl": "torch.nn:Module",
    "_orig_mod": "torch._dynamo.eval_frame:OptimizedModule",
    "_SubParsersAction": "argparse",
}


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


@cache
def names_in(source: str, *, strings: bool = True) -> set[str]:
    """The names in a source: of variables, attributes, functions, arguments and imports; and strings that are names,
    or those alone that getattr and hasattr are given."""
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        names = [getattr(node, field, None) for field in ("id", "attr", "name", "arg")]
        if strings:
            names.append(getattr(node, "value", None))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            names += [getattr(argument, "value", None) for argument in node.args]
        found |= {name for name in names if isinstance(name, str) and name.isidentifier()}
    return found


@cache
def defined_in(source: str) -> set[str]:
    """The names that a source defines itself; an attribute only where it is assigned to ``self``."""
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") == "st_contrastive":
            found |= {alias.name for alias in node.names}  # its private modules
    return found


@lru_cache(maxsize=1)
def package() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


def owner_of(place: str) -> Any:
    module, _, name = place.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, name) if name else owner


@pytest.mark.parametrize("name", NAMES)
def test_the_library_still_has(name):
    owner = owner_of(NAMES[name])
    users = [str(path.relative_to(ROOT)) for path, source in package().items() if name in names_in(source)]
    assert users, f"{name} is listed here, but the package no longer uses it: remove it from the list"
    assert name in names_in(inspect.getsource(owner)), f"{NAMES[name]} has no {name} any more; {users} use it"


def test_every_private_name_that_is_used_is_listed():
    sources = package()
    own = set().union(*map(defined_in, sources.values())) | {path.stem for path in sources}
    for path, source in sources.items():
        unlisted = {name for name in names_in(source, strings=False) if is_private(name)} - own - NAMES.keys()
        assert not unlisted, f"{path} uses {sorted(unlisted)} of another library: list it here"
