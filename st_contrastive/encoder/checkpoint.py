"""What the checkpoint of an encoder was, where it was no sentence encoder: sentence-transformers converts others."""

from __future__ import annotations

import json

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.util import load_file_path

_KINDS = {"CrossEncoder": "a re-ranker", "SparseEncoder": "a sparse encoder"}
_TOKEN_VECTORS = "a model with a vector for each token"


def foreign_kind(model: SentenceTransformer) -> str | None:
    """What the model's checkpoint is other than a sentence encoder, such as "a re-ranker (CrossEncoder)", or None.

    Its weights are then those of another task, under a pooling that they never saw.
    """
    if not isinstance(model[0], Transformer):
        return None
    config = model[0].model.config
    for name in config.architectures or ():
        if name.endswith("ForSequenceClassification"):
            return f"a re-ranker or classifier ({name})"
        if "ColBERT" in name:
            return f"{_TOKEN_VECTORS} ({name})"
    if not config.name_or_path:
        return None
    saved = load_file_path(config.name_or_path, "config_sentence_transformers.json", local_files_only=True)
    if saved is None:
        return None
    with open(saved, encoding="utf-8") as file:
        kind = json.load(file).get("model_type", "SentenceTransformer")
    return None if kind == "SentenceTransformer" else f"{_KINDS.get(kind, _TOKEN_VECTORS)} ({kind})"


def random_weights(model: SentenceTransformer) -> list[str]:
    """The names of the weights that the checkpoint lacked, of a model that was just loaded; a pooler is not used."""
    if not isinstance(model[0], Transformer):
        return []
    # transformers marks what it read of a checkpoint, and draws the rest at random.
    weights = model[0].model.named_parameters()
    return [name for name, own in weights if not hasattr(own, "_is_hf_initialized") and "pooler" not in name]
