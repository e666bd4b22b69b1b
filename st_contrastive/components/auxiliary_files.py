"""Saves and loads auxiliary networks: weights as safetensors and a configuration as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from st_contrastive._checks import first_line
from st_contrastive._files import checkpoint_name, complete_file
from st_contrastive.components.auxiliary_mlm import AuxiliaryMLM, require_fit
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.components.pretrained import vocabulary_checksum
from st_contrastive.encoder.model_facts import embedding_matrix

CONFIG_NAME = "auxiliary_config.json"
WEIGHTS_NAME = "auxiliary.safetensors"


def save_auxiliary(
    auxiliary: AuxiliaryMLM, path: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase, base_name: str = ""
) -> None:
    """Write ``auxiliary.safetensors`` and then ``auxiliary_config.json`` into a folder, which may hold other files.

    ``tokenizer`` is the encoder's. ``base_name`` is the name of the checkpoint that training started from.
    """
    folder = Path(path).expanduser()
    network = auxiliary.encoder.config.to_dict()
    network.pop("_name_or_path", None)
    config = {
        # Keep the paths of this machine out of the file.
        "base_model_name": Path(base_name).name if Path(base_name).is_dir() else base_name,
        **{name: value for name, value in auxiliary.properties.items() if name != "lower_dropout"},
        "tokenizer_fingerprint": vocabulary_checksum(tokenizer),
        "head_source": auxiliary.head.source,
        "network": network,
    }
    # Nothing loads without the configuration. It is written last, and an old one is removed before new weights appear.
    with complete_file(folder / CONFIG_NAME) as config_file, complete_file(folder / WEIGHTS_NAME) as weights:
        save_model(auxiliary, str(weights))
        config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (folder / CONFIG_NAME).unlink(missing_ok=True)


def load_auxiliary(
    path: str | os.PathLike[str],
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    tied_head: bool | None = None,
    lower_dropout: bool = False,
) -> AuxiliaryMLM:
    """Load an auxiliary network that :func:`save_auxiliary` wrote, from a folder or the hub.

    Args:
        path: folder or hub name.
        encoder: the encoder that the network must fit.
        tokenizer: the encoder's tokenizer.
        tied_head: None keeps the head as it was saved. False gives a tied head its own matrix, which starts as a copy
            of the embedding matrix.
        lower_dropout: keep dropout active in the frozen part during training.

    Raises:
        OSError: there is no such network, or it is damaged.
        ValueError: the network does not fit. The message names each property that differs.
    """
    folder = checkpoint_name(path, "auxiliary")
    try:
        config_file, weights = (cast(str, cached_file(folder, name)) for name in (CONFIG_NAME, WEIGHTS_NAME))
    except OSError as error:
        raise OSError(
            f"auxiliary {path} can't be loaded: {first_line(error)} Name a folder that "
            "AuxiliaryMLMPretrainingLoss(...).save_auxiliary has written."
        ) from error
    # A head that was saved with its own matrix can't become tied; the reverse is possible.
    head_and_tokens = {"tokenizer_fingerprint": vocabulary_checksum(tokenizer), "tied_head": tied_head or None}
    wanted = {**AuxiliaryMLM.get_signature(encoder), **head_and_tokens}
    with _damaged_file_error(path):
        config: dict[str, Any] = json.loads(Path(config_file).read_text(encoding="utf-8"))
        properties = {name: config[name] for name in wanted}
    origin = config["base_model_name"] or "an unnamed encoder"
    require_fit(f"auxiliary {path} (trained with {origin})", properties, wanted)
    shape = type(AutoConfig.for_model(config["model_type"])).from_dict(config["network"])
    network = AutoModel.from_config(  # type: ignore[no-untyped-call]
        shape, attn_implementation=encoder.config._attn_implementation, trust_remote_code=False
    )
    if getattr(network, "pooler", None) is not None:
        network.pooler = None
    head = MaskedLMHead.from_config(shape, config["head_source"], tied=config["tied_head"])
    auxiliary = AuxiliaryMLM(network, head, config["split_layer"], lower_dropout=lower_dropout)
    auxiliary.to(dtype=encoder.dtype)
    with _damaged_file_error(path):
        load_model(auxiliary, weights)
    if tied_head is False and auxiliary.head.tied:
        auxiliary.head.untie(embedding_matrix(auxiliary.encoder))
    return auxiliary


@contextmanager
def _damaged_file_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of a parser into an OSError that names the folder."""
    try:
        yield
    except (LookupError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise OSError(
            f"auxiliary {path} is damaged: {first_line(error):.300}. Save it again with save_auxiliary."
        ) from error
