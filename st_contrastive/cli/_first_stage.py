"""InfoCSE's first stage: a recipe of both stages runs it before the second, or finds it beside the output."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from st_contrastive.cli._arguments import UserError
from st_contrastive.recipes import Recipe, recipe

#: Options that the first stage shares with the second.
_SHARED = ("model", "pooling", "data", "limit", "seed", "bf16", "warmup", "group_by_length")


def settings_of(args: argparse.Namespace, chosen: Recipe) -> dict[str, Any]:
    """The recipe's settings of the first stage, with the options that were given in their place."""
    settings = {name: setting.value for name, setting in (chosen.stage1 or {}).items()}
    return settings | {
        name: getattr(args, name) for name in ("batch_size", "max_length", "warmup") if name in args.given
    }


def beside(folder: str) -> str:
    """The first stage's folder beside one of the second's, also where that is the working directory."""
    if Path(folder).name in ("", ".."):
        folder = os.path.abspath(folder)
    return f"{Path(folder)}-stage1"


def first_stage(args: argparse.Namespace, settings: dict[str, Any], options: dict[str, Any]) -> str:
    """Run the first stage on the same sentences, unless its output is there already; returns the output's folder.

    The folder holds what the second stage starts from: the encoder and the auxiliary network.

    Args:
        args: options of the second stage.
        settings: options of the first stage, from :func:`settings_of`.
        options: arguments of the second stage's loss.
    """
    from st_contrastive.cli import pretrain

    folder = beside(args.output)
    arguments = recipe(args.recipe).stage1_loss_arguments
    # Both stages share the network's shape.
    arguments |= {name: options[name] for name in ("split_layer", "extra_layers") if name in options}
    settings = {**settings, "loss_arg": [f"{name}={value}" for name, value in arguments.items()]}
    if Path(folder, "modules.json").is_file():
        _check_same(Path(folder), args, settings)
        print(f"Stage 1 has been run: using the encoder and the auxiliary network in {folder}.")
        return folder
    checkpoints = beside(args.checkpoints) if args.checkpoints else None
    own = {"output": folder, "checkpoints": checkpoints, "overwrite": False, "max_steps": None, "keep": 1.0}
    print(f"Stage 1, to {folder}:")
    if pretrain.run(argparse.Namespace(**{**vars(args), **own, **settings})):
        raise UserError(f"Stage 1 diverged. Delete {folder}, and use a lower learning rate.")
    return folder


def _check_same(folder: Path, args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Raise a UserError if the first stage in the folder was run with other options or files."""
    from st_contrastive.cli._record import as_recorded, digests, read

    options = {**{key: getattr(args, key) for key in _SHARED}, **settings}
    try:
        record = read(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"Stage 1: {error} Name another --output, or give the folder as --model and as --auxiliary."
        ) from error
    then, now = dict(record["options"]), as_recorded(options)
    old, new = record.get("files", {}), digests(args, ["data", "model"])
    for file in new.keys() & old.keys():  # files of the same name may differ
        if new[file] != old[file]:
            then[file], now[file] = (f"of SHA-256 {digest[file][:12]}" for digest in (old, new))
    changed = [name for name in options if then.get(name) != now.get(name)]
    if changed:
        text = ", ".join(f"{name} {then.get(name)!r}, not {now.get(name)!r}" for name in changed)
        raise UserError(
            f"The stage 1 in {folder} was made with {text}. Move it away, name another --output, or take it as it is "
            f"with --model {folder} --auxiliary {folder}."
        )
