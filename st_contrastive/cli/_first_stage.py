"""InfoCSE's first stage, which a recipe of both runs before the second, or finds beside the output."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from st_contrastive.cli._arguments import UserError
from st_contrastive.recipes import Recipe, recipe

#: What a first stage depends on, beside its own settings.
_OF_STAGE1 = ("model", "pooling", "data", "limit", "seed", "bf16", "warmup", "group_by_length")


def _same(folder: Path, args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Raises UserError where the first stage in the folder was made otherwise."""
    from st_contrastive.cli._record import as_recorded, digests, read

    options = {**{key: getattr(args, key) for key in _OF_STAGE1}, **settings}
    try:
        record = read(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"Stage 1: {error} Name another --output, or give the folder as --model and as --auxiliary."
        ) from error
    recorded, wanted = record["options"], as_recorded(options)
    then, now = record.get("files", {}), digests(args, ["data", "model"])
    for file in now.keys() & then.keys():  # the names may be the same, and what they name not
        if now[file] != then[file]:
            recorded, wanted = (
                {**part, file: f"of SHA-256 {digest[file][:12]}"} for part, digest in ((recorded, then), (wanted, now))
            )
    changed = [name for name in options if recorded.get(name) != wanted.get(name)]
    if changed:
        told = ", ".join(f"{name} {recorded.get(name)!r}, not {wanted.get(name)!r}" for name in changed)
        raise UserError(
            f"The stage 1 in {folder} was made with {told}. Move it away, name another --output, or take it as it is "
            f"with --model {folder} --auxiliary {folder}."
        )


def settings_of(args: argparse.Namespace, chosen: Recipe) -> dict[str, Any]:
    """The first stage's: the recipe's, but for what was given, which the second stage has from there too."""
    settings = {name: setting.value for name, setting in (chosen.stage1 or {}).items()}
    return settings | {
        name: getattr(args, name) for name in ("batch_size", "max_length", "warmup") if name in args.given
    }


def first_stage(args: argparse.Namespace, settings: dict[str, Any], options: dict[str, Any]) -> str:
    """InfoCSE's first stage on the same sentences, beside the output; one that is there is taken.

    The folder then holds what the second stage starts from: the encoder and the auxiliary network.

    Args:
        args: the second stage's.
        settings: the first's own, as :func:`settings_of` has them.
        options: arguments of the second stage's loss.
    """
    from st_contrastive.cli import pretrain

    folder = f"{args.output.rstrip('/')}-stage1"
    arguments = recipe(args.recipe).stage1_loss_arguments
    # The network's shape, which both stages share.
    arguments |= {name: options[name] for name in ("split_layer", "extra_layers") if name in options}
    settings = {**settings, "loss_arg": [f"{name}={value}" for name, value in arguments.items()]}
    if Path(folder, "modules.json").is_file():
        _same(Path(folder), args, settings)
        print(f"Stage 1 is there: taking the encoder and the auxiliary network in {folder}.")
        return folder
    checkpoints = f"{args.checkpoints.rstrip('/')}-stage1" if args.checkpoints else None
    told: dict[str, Any] = {"output": folder, "checkpoints": checkpoints, "overwrite": False, "max_steps": None}
    print(f"Stage 1, to {folder}:")
    pretrain.run(argparse.Namespace(**{**vars(args), **told, **settings}))
    return folder
