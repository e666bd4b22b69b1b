"""Private names of the libraries that the package uses: all of them are listed here, and must still exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
from torch import nn

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
    "_push_from_checkpoint": TRAINER,
    # ContrastiveTrainer calls these, to end a run that was interrupted after its last checkpoint.
    "_load_from_checkpoint": SENTENCE_TRAINER,
    "_load_best_model": SENTENCE_TRAINER,
    # The sums since the last log, which a resumed run continues.
    "_tr_loss": TRAINER,
    "_total_loss_scalar": TRAINER,
    "_globalstep_last_logged": TRAINER,
    # The step at which a run was resumed.
    "_initial_global_step": TRAINER,
    "_attn_implementation": CONFIG,
    "_name_or_path": CONFIG,
    "_output_capturing_hooks_installed": "transformers.utils.output_capturing",
    "_hf_peft_config_loaded": "transformers.integrations.peft:PeftAdapterMixin",
    "_raise_exceptions_for_missing_entries": "transformers.utils.hub:cached_files",
    "_raise_exceptions_for_gated_repo": "transformers.utils.hub:cached_files",
    "_raise_exceptions_for_connection_errors": "transformers.utils.hub:cached_files",
    "_flatten_position_offset": "sentence_transformers.base.modules:Transformer",
    "_model_card_text": "sentence_transformers.base.model:BaseModel",
    "_BatchNorm": "torch.nn.modules.batchnorm",
    "_modules": "torch.nn:Module",
    "_forward_hooks": "torch.nn:Module",
    "_forward_pre_hooks": "torch.nn:Module",
    "_load_from_state_dict": "torch.nn:Module",
    "_compiled_call_impl": "torch.nn:Module",
    "_orig_mod": "torch._dynamo.eval_frame:OptimizedModule",
    "_checkpoint_wrapped_module": "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "_ArgumentGroup": "argparse",
    "_SubParsersAction": "argparse",
}
#: Strings that look like private names, and are keys, file names or parts of names.
STRINGS = {
    "_arguments", "_checkpoint_in_work", "_dataset", "_examples", "_hooks", "_id", "_ids",
    "_max_grad_norm_after_averaging", "_to_", "_types",
}  # fmt: skip


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


@cache
def names_in(source: str) -> set[str]:
    """All names in a source: of variables, attributes, functions, arguments and imports, and strings that are names."""
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        for field in ("id", "attr", "name", "arg", "value"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name.isidentifier():
                found.add(name)
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


def foreign_bases() -> Iterator[tuple[type, type]]:
    """Each class of the package with each base from a library."""
    for path in package():
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if parts[-1] in ("__main__", "_score_saved"):  # these run when they are imported
            continue
        module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
        for _, owner in inspect.getmembers(module, inspect.isclass):
            if owner.__module__ == module.__name__:
                for base in owner.__mro__[1:]:
                    library = base.__module__.partition(".")[0]
                    if library in ("transformers", "sentence_transformers", "torch") and base.__module__ != "torch._C":
                        yield owner, base


@pytest.mark.parametrize("name", NAMES)
def test_the_library_still_has(name):
    owner = owner_of(NAMES[name])
    users = [str(path.relative_to(ROOT)) for path, source in package().items() if name in names_in(source)]
    assert users, f"{name} is listed here, but the package no longer uses it: remove it from the list"
    assert name in names_in(inspect.getsource(owner)), f"{NAMES[name]} has no {name} any more; {users} use it"


def test_a_name_that_is_gone_is_noticed():
    assert "_never_there" not in names_in(inspect.getsource(nn.Module))
    assert names_in('"""_text"""\nx._read = f(_given=a["_key"])  # _comment') >= {"_read", "_given", "_key"}
    assert "_comment" not in names_in("x = 1  # _comment")


def test_every_private_name_that_is_used_is_listed():
    sources = package()
    own = set().union(*map(defined_in, sources.values())) | {path.stem for path in sources} | STRINGS
    for path, source in sources.items():
        unlisted = {name for name in names_in(source) if is_private(name)} - own - NAMES.keys()
        assert not unlisted, f"{path} uses {sorted(unlisted)} of another library: list it here"


def test_private_names_of_a_base_are_not_taken_by_accident():
    """A subclass that defines a private name of its base overrides it, knowingly or not."""
    checked = set()
    for owner, base in foreign_bases():
        taken = {name for name in defined_in(inspect.getsource(owner)) if is_private(name)}
        taken &= defined_in(inspect.getsource(base))
        checked.add(owner)
        assert taken <= NAMES.keys(), (
            f"{owner.__qualname__} defines {sorted(taken - NAMES.keys())} of {base.__qualname__}"
        )
    assert len(checked) > 20
