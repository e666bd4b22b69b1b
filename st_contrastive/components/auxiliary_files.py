"""A trained auxiliary network as files: safetensors beside a JSON configuration; and Condenser's, read."""

from __future__ import annotations

import json
import os
import pickle
import warnings
import zlib
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from st_contrastive._checks import first_line
from st_contrastive._files import complete_file
from st_contrastive.components.auxiliary_mlm import AuxiliaryMLM
from st_contrastive.components.fingerprint import fingerprint
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.encoder.layers import layers_of

CONFIG_NAME = "auxiliary_config.json"
WEIGHTS_NAME = "auxiliary.safetensors"
CONDENSER_NAME = "model.pt"
_FORMAT = 1
#: What of the configuration describes the network.
_TOLD = ("split_layer", "extra_layers", "tied_head", "head_source")


def save_auxiliary(
    auxiliary: AuxiliaryMLM, path: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase, base_name: str = ""
) -> None:
    """Write ``auxiliary_config.json`` and ``auxiliary.safetensors`` into the folder ``path``, made where needed.

    The folder may hold other files: the encoder that was trained beside it, for instance.

    Args:
        auxiliary: the network.
        path: folder.
        tokenizer: that of the encoder; its fingerprint goes into the configuration.
        base_name: name of the checkpoint that training started from.

    Raises:
        OSError: the folder can't be written; what was there is as it was.
    """
    folder = Path(path).expanduser()
    network = auxiliary.network.config.to_dict()
    network.pop("_name_or_path", None)
    if Path(base_name).is_dir():  # where it lies is nobody's business
        base_name = Path(base_name).name
    family, vocabulary, width = auxiliary.signature
    config = {
        "format": _FORMAT,
        "base_model_name": base_name,
        "model_type": family,
        "split_layer": auxiliary.split_layer,
        "extra_layers": auxiliary.extra_layers,
        "hidden_size": width,
        "vocab_size": vocabulary,
        "tokenizer_fingerprint": fingerprint(tokenizer),
        "tied_head": auxiliary.head.tied,
        "head_source": auxiliary.head.source,
        "network": network,
    }
    try:
        # Both are complete before either gets its name.
        with complete_file(folder / CONFIG_NAME) as config_file, complete_file(folder / WEIGHTS_NAME) as weights:
            save_model(auxiliary, str(weights))
            config["weights_crc32"] = _checksum(weights)
            config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise OSError(f"auxiliary {folder} can't be written: {reason}. Make room, or name another folder.") from error


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
    """The auxiliary network at ``path``, checked to go with the encoder.

    Args:
        path: folder or hub name with what :func:`save_auxiliary` wrote, or with a Condenser checkpoint's ``model.pt``;
            or that file. Condenser's holds the extra layers alone: the lower part is copied from ``encoder``, and the
            head is its checkpoint's. Of a ``model.pt`` tensors are read, never code.
        encoder: the encoder that it is to be trained beside.
        tokenizer: the encoder's.
        split_layer: how many frozen layers it must have; None takes what it has (Condenser: half the encoder's).
        extra_layers: how many trainable layers it must have; None takes what it has.
        tied_head: None keeps the head as it was saved (Condenser: a matrix of its own). False gives a tied one a
            matrix of its own, which starts as the one that it was tied to.
        lower_dropout: keep dropout on in the frozen part during training.

    Raises:
        OSError: there is nothing of the kind, or it is damaged.
        ValueError: it does not fit; the message names each property that differs.
    """
    if not str(path):
        raise ValueError("auxiliary is empty: name a folder, or leave it out for an untrained network.")
    path = Path(path).expanduser() if Path(path).expanduser().exists() else path
    if Path(path).name in (CONFIG_NAME, WEIGHTS_NAME) and Path(path).is_file():
        path = Path(path).parent
    config_file = None if Path(path).is_file() else _find(path, CONFIG_NAME)
    if config_file is not None:
        weights = _find(path, WEIGHTS_NAME)
        if weights is None:
            raise FileNotFoundError(f"auxiliary {path} holds {CONFIG_NAME} but no {WEIGHTS_NAME}.")
        config = _read_config(path, config_file)
        wanted = {"split_layer": split_layer, "extra_layers": extra_layers}
        _require_fit(path, config, encoder, tokenizer, wanted)
        if tied_head and not config["tied_head"]:
            raise ValueError(f"auxiliary {path} has a head with a matrix of its own: it can't be tied.")
        auxiliary = _load(path, config, weights, encoder, lower_dropout=lower_dropout)
        if tied_head is False and auxiliary.head.tied:
            auxiliary.head.untie(cast(Tensor, auxiliary.network.get_input_embeddings().weight))
        return auxiliary
    condenser = Path(path) if Path(path).is_file() else _find(path, CONDENSER_NAME)
    if condenser is None:
        raise FileNotFoundError(
            f"auxiliary {path} {'holds' if Path(path).is_dir() else 'is no folder here, and no known repository with'} "
            f"neither {CONFIG_NAME}, as AuxiliaryMLMPretrainingLoss(...).save_auxiliary(path) "
            f"writes it, nor Condenser's {CONDENSER_NAME}."
        )
    layers = _condenser_layers(condenser)
    if extra_layers is not None and extra_layers != len(layers):
        raise ValueError(
            f"auxiliary {condenser} does not fit: extra_layers is {len(layers)}, {extra_layers} are asked for."
        )
    auxiliary = AuxiliaryMLM.from_encoder(
        encoder,
        split_layer=split_layer,
        extra_layers=len(layers),
        tied_head=bool(tied_head),
        lower_dropout=lower_dropout,
    )
    for number, (layer, tensors) in enumerate(
        zip(layers_of(auxiliary.network)[auxiliary.split_layer :], layers, strict=True)
    ):
        try:
            layer.load_state_dict(tensors)
        except RuntimeError as error:
            details = " ".join(line.strip() for line in str(error).splitlines()[1:3])
            raise ValueError(
                f"auxiliary {condenser}: c_head.{number} is no layer of this encoder. {details}"
            ) from error
    return auxiliary


def _find(path: str | os.PathLike[str], name: str) -> Path | None:
    """A file of a folder or of a hub repository; None where it has no such file."""
    place = Path(path).expanduser()
    if place.is_dir():
        return place / name if (place / name).is_file() else None
    # Said before transformers takes it for the name of a repository.
    if place.is_absolute() or str(path).startswith((".", "~")) or len(place.parts) > 2 or place.suffix == ".pt":
        raise FileNotFoundError(f"auxiliary {path} does not exist: name a folder with {CONFIG_NAME}.")
    try:
        found = cached_file(str(path), name, _raise_exceptions_for_missing_entries=False)
    except OSError as error:
        first = str(error).strip().splitlines()[0]
        raise FileNotFoundError(f"auxiliary {path} is no folder, and can't be had from the hub: {first}") from error
    return None if found is None else Path(found)


def _read_config(path: Any, file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        missing = {"format", "model_type", "network", "weights_crc32", *_TOLD} - config.keys()
    except (ValueError, AttributeError, TypeError) as error:
        raise OSError(f"auxiliary {path}: {CONFIG_NAME} is damaged ({error}).") from error
    if missing:
        raise OSError(f"auxiliary {path}: {CONFIG_NAME} lacks {', '.join(sorted(missing))}.")
    if config["format"] != _FORMAT or isinstance(config["format"], bool):
        raise ValueError(
            f"auxiliary {path} has format {config['format']!r}, this version reads {_FORMAT}: take the version of "
            "st_contrastive that wrote it, or pre-train anew."
        )
    for name, kind in (
        ("split_layer", int),
        ("extra_layers", int),
        ("tied_head", bool),
        ("network", dict),
        ("weights_crc32", int),
    ):
        if type(config[name]) is not kind:
            raise OSError(f"auxiliary {path}: {CONFIG_NAME} is damaged ({name} is {config[name]!r:.80}).")
    return dict(config)


def _require_fit(
    path: Any,
    config: dict[str, Any],
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    wanted: dict[str, int | None],
) -> None:
    family, vocabulary, width = AuxiliaryMLM.signature_of(encoder)
    own = {
        "model_type": family,
        "hidden_size": width,
        "vocab_size": vocabulary,
        "tokenizer_fingerprint": fingerprint(tokenizer),
        **{name: value for name, value in wanted.items() if value is not None},
    }
    differing = [
        f"{name} is {config.get(name)!r}, {'asked for' if name in wanted else 'the model has'} {value!r}"
        for name, value in own.items()
        if config.get(name) != value
    ]
    saved, needed = (source.get("max_position_embeddings") for source in (config["network"], encoder.config.to_dict()))
    if isinstance(saved, int) and isinstance(needed, int) and saved < needed:
        differing.append(f"max_position_embeddings is {saved}, the model has {needed}")
    if differing:
        raise ValueError(
            f"auxiliary {path} (made from {config.get('base_model_name') or 'an unnamed encoder'}) does not fit: "
            f"{'; '.join(differing)}."
        )


def _load(
    path: Any, config: dict[str, Any], weights: Path, encoder: PreTrainedModel, *, lower_dropout: bool
) -> AuxiliaryMLM:
    if _checksum(weights) != config["weights_crc32"]:
        raise OSError(f"auxiliary {path}: {WEIGHTS_NAME} is damaged, or not the one that {CONFIG_NAME} was saved with.")
    try:
        shape: PretrainedConfig = type(AutoConfig.for_model(config["model_type"])).from_dict(config["network"])
        network = AutoModel.from_config(  # type: ignore[no-untyped-call]
            shape, attn_implementation=encoder.config._attn_implementation, trust_remote_code=False
        )
        if getattr(network, "pooler", None) is not None:
            network.pooler = None
        head = MaskedLMHead.from_config(shape, config["head_source"], tied=config["tied_head"])
        auxiliary = AuxiliaryMLM(network, head, config["split_layer"], lower_dropout=lower_dropout)
        auxiliary.to(dtype=encoder.dtype)
    except Exception as error:  # of a configuration that was changed anything may come
        first = str(error).strip().splitlines()
        raise OSError(
            f"auxiliary {path}: {CONFIG_NAME} is damaged ({type(error).__name__}: {first[0] if first else ''})."
        ) from error
    if auxiliary.extra_layers != config["extra_layers"]:
        raise OSError(
            f"auxiliary {path}: {CONFIG_NAME} names {config['extra_layers']} extra layers, its network has "
            f"{auxiliary.extra_layers}."
        )
    try:
        missing, unexpected = load_model(auxiliary, weights, strict=False)
    except (SafetensorError, RuntimeError) as error:
        first = str(error).strip().splitlines()
        raise OSError(f"auxiliary {path}: {WEIGHTS_NAME} can't be read ({' '.join(first[:2])}).") from error
    if missing or unexpected:
        said = ", ".join([f"no {name}" for name in sorted(missing)] + [f"unknown {name}" for name in unexpected][:3])
        raise OSError(f"auxiliary {path}: {WEIGHTS_NAME} does not go with {CONFIG_NAME}: {said[:300]}.")
    return auxiliary


def _checksum(file: Path) -> int:
    """CRC-32 of a file, which ties the weights to the configuration that was written with them."""
    value = 0
    with file.open("rb") as stream:
        while block := stream.read(2**24):
            value = zlib.crc32(block, value)
    return value


def _condenser_layers(file: Path) -> list[dict[str, Tensor]]:
    """The tensors of Condenser's ``c_head.0``, ``c_head.1``, ..."""
    try:
        with warnings.catch_warnings():  # about the pickle protocol of a file that is then refused
            warnings.simplefilter("ignore")
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(
            f"auxiliary {file} is not a file of tensors alone, as torch.save(model.state_dict(), file) writes it, and "
            "code of a file is never run."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"auxiliary {file} holds something else than named tensors.")
    layers: dict[int, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        stem, _, rest = str(key).partition(".")
        number, _, name = rest.partition(".")
        if stem == "c_head" and number.isdigit():
            layers.setdefault(int(number), {})[name] = tensor
    if not layers or sorted(layers) != list(range(len(layers))):
        raise ValueError(
            f"auxiliary {file} holds no tensors c_head.0.*, c_head.1.*, ... as Condenser's {CONDENSER_NAME} does; it "
            f"has {', '.join(list(state)[:3]) or 'none'}."
        )
    return [layers[number] for number in sorted(layers)]
