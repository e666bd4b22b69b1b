"""Trained auxiliary networks as files: safetensors with a JSON configuration, or a Condenser checkpoint to read."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from st_contrastive._checks import first_line
from st_contrastive._files import complete_file, is_path
from st_contrastive.components.auxiliary_mlm import AuxiliaryMLM
from st_contrastive.components.fingerprint import fingerprint
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.encoder.layers import layers_of

CONFIG_NAME = "auxiliary_config.json"
WEIGHTS_NAME = "auxiliary.safetensors"
CONDENSER_NAME = "model.pt"


def save_auxiliary(
    auxiliary: AuxiliaryMLM, path: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase, base_name: str = ""
) -> None:
    """Write ``auxiliary_config.json`` and ``auxiliary.safetensors`` into a folder, which may hold other files.

    Args:
        auxiliary: the network.
        path: folder; it is made if needed.
        tokenizer: the encoder's; its fingerprint goes into the configuration.
        base_name: name of the checkpoint that training started from.
    """
    folder = Path(path).expanduser()
    network = auxiliary.network.config.to_dict()
    network.pop("_name_or_path", None)
    config = {
        # Keep the paths of this machine out of the file.
        "base_model_name": Path(base_name).name if Path(base_name).is_dir() else base_name,
        **_identity(auxiliary.network, tokenizer),
        "split_layer": auxiliary.split_layer,
        "extra_layers": auxiliary.extra_layers,
        "tied_head": auxiliary.head.tied,
        "head_source": auxiliary.head.source,
        "network": network,
    }
    with complete_file(folder / CONFIG_NAME) as config_file, complete_file(folder / WEIGHTS_NAME) as weights:
        save_model(auxiliary, str(weights))
        config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_auxiliary(
    path: str | os.PathLike[str],
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    split_layer: int | None = None,
    extra_layers: int | None = None,
    tied_head: bool | None = None,
    lower_dropout: bool = False,
) -> AuxiliaryMLM:
    """Load an auxiliary network, and check that it fits the encoder.

    Args:
        path: folder or hub name of a network that :func:`save_auxiliary` wrote, or of a Condenser checkpoint with its
            ``model.pt``; or that file. Condenser's file holds the extra layers only: the lower part is copied from
            ``encoder``, and the head is that of the encoder's checkpoint. Only tensors are read from it; its code is
            never run.
        encoder: the encoder that is trained with the network.
        tokenizer: the encoder's.
        split_layer: the number of frozen layers that it must have. None accepts any (Condenser: half the encoder's).
        extra_layers: the number of trainable layers that it must have. None accepts any.
        tied_head: None keeps the head as it was saved (Condenser: with a separate matrix). False gives a tied head a
            separate matrix, which starts as a copy of the embedding matrix.
        lower_dropout: keep dropout on in the frozen part during training.

    Raises:
        OSError: there is no such network, or it is damaged.
        ValueError: it does not fit; the message names each property that differs.
    """
    if not str(path):
        raise ValueError("auxiliary is empty: name a folder, or leave it out for an untrained network.")
    place = Path(path).expanduser()
    if config_file := _find(place, path, CONFIG_NAME):
        auxiliary = _load(
            path, config_file, encoder, tokenizer, {"split_layer": split_layer, "extra_layers": extra_layers}
        )
        if tied_head and not auxiliary.head.tied:
            raise ValueError(f"auxiliary {path} has a head with a separate matrix: it can't be tied.")
        if tied_head is False and auxiliary.head.tied:
            auxiliary.head.untie(cast(Tensor, auxiliary.network.get_input_embeddings().weight))
        auxiliary.lower_dropout = lower_dropout
        return auxiliary
    condenser = place if place.is_file() else _find(place, path, CONDENSER_NAME)
    if condenser is None:
        raise FileNotFoundError(
            f"auxiliary {path} holds neither {CONFIG_NAME}, which stage 1 writes "
            f"(AuxiliaryMLMPretrainingLoss(...).save_auxiliary), nor Condenser's {CONDENSER_NAME}."
        )
    layers = _condenser_layers(condenser)
    if extra_layers not in (None, len(layers)):
        raise ValueError(
            f"auxiliary {condenser} does not fit: extra_layers is {len(layers)}, asked for {extra_layers}. Leave "
            "extra_layers out."
        )
    auxiliary = AuxiliaryMLM.from_encoder(
        encoder,
        split_layer=split_layer,
        extra_layers=len(layers),
        tied_head=bool(tied_head),
        lower_dropout=lower_dropout,
    )
    for number, tensors in enumerate(layers):
        try:
            layers_of(auxiliary.network)[auxiliary.split_layer + number].load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(
                f"auxiliary {condenser}: c_head.{number} does not fit a layer of this encoder: {first_line(error)}"
            ) from error
    return auxiliary


def _find(place: Path, path: str | os.PathLike[str], name: str) -> Path | None:
    """A file in a folder or hub repository, or None if it has no such file."""
    if place.exists():
        return place / name if (place / name).is_file() else None
    # Checked before transformers takes the path for the name of a repository.
    if is_path(path) or place.suffix == ".pt":
        raise FileNotFoundError(f"auxiliary {path} does not exist: name a folder with {CONFIG_NAME}.")
    try:
        file = cached_file(str(path), name, _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        raise FileNotFoundError(
            f"auxiliary {path} is not a folder, and can't be loaded from the hub: {first_line(error)}"
        ) from error
    return None if file is None else Path(file)


def _identity(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the network must have in common with the encoder that it is trained with."""
    family, vocabulary, width = AuxiliaryMLM.signature_of(encoder)
    names = ("model_type", "hidden_size", "vocab_size", "tokenizer_fingerprint")
    return dict(zip(names, (family, width, vocabulary, fingerprint(tokenizer)), strict=True))


def _load(
    path: Any,
    config_file: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    asked: dict[str, int | None],
) -> AuxiliaryMLM:
    weights = _find(Path(path).expanduser(), path, WEIGHTS_NAME)
    if weights is None:
        raise FileNotFoundError(f"auxiliary {path} holds {CONFIG_NAME} but no {WEIGHTS_NAME}.")
    try:
        config: dict[str, Any] = json.loads(config_file.read_text(encoding="utf-8"))
        differing = [
            f"{name} is {config[name]!r}, {'asked for' if name in asked else 'the model has'} {value!r}"
            for name, value in {**_identity(encoder, tokenizer), **asked}.items()
            if config[name] != value and value is not None
        ]
        shape = type(AutoConfig.for_model(config["model_type"])).from_dict(config["network"])
        positions = getattr(shape, "max_position_embeddings", None), encoder.config.max_position_embeddings
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(f"auxiliary {path}: {CONFIG_NAME} is damaged ({type(error).__name__}: {error}).") from error
    if positions[0] is not None and positions[0] < positions[1]:
        differing.append(f"max_position_embeddings is {positions[0]}, the model has {positions[1]}")
    if differing:
        raise ValueError(
            f"auxiliary {path} (made from {config.get('base_model_name') or 'an unnamed encoder'}) does not fit: "
            f"{'; '.join(differing)}. Use the encoder that it was trained with, and leave split_layer and extra_layers "
            "out."
        )
    network = AutoModel.from_config(  # type: ignore[no-untyped-call]
        shape, attn_implementation=encoder.config._attn_implementation, trust_remote_code=False
    )
    if getattr(network, "pooler", None) is not None:
        network.pooler = None
    head = MaskedLMHead.from_config(shape, config["head_source"], tied=config["tied_head"])
    auxiliary = AuxiliaryMLM(network, head, config["split_layer"]).to(dtype=encoder.dtype)
    try:
        load_model(auxiliary, weights)
    except (SafetensorError, RuntimeError) as error:
        raise OSError(f"auxiliary {path}: {WEIGHTS_NAME} is damaged ({first_line(error):.300}).") from error
    return auxiliary


def _condenser_layers(file: Path) -> list[dict[str, Tensor]]:
    """The tensors of Condenser's ``c_head.0``, ``c_head.1``, ..."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f"auxiliary {file} is not a file of tensors only, as torch.save(model.state_dict(), file) writes it, and "
            "code in a file is never run."
        ) from error
    layers: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items() if isinstance(state, dict) else ():
        match str(key).split(".", 2):
            case ["c_head", number, name]:
                layers.setdefault(number, {})[name] = tensor
    names = [str(number) for number in range(len(layers))]
    if not layers or set(names) != set(layers):
        raise ValueError(
            f"auxiliary {file} holds no tensors c_head.0.*, c_head.1.*, ... as Condenser's {CONDENSER_NAME} does."
        )
    return [layers[name] for name in names]
