"""Whether a checkpoint was a sentence encoder: sentence-transformers converts other models without a word."""

from __future__ import annotations

import json
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.util import load_file_path

_KINDS = {"CrossEncoder": "a re-ranker", "SparseEncoder": "a sparse encoder"}
#: Endings of the classes whose training leaves no sentence encoder.
_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
_TOKEN_VECTORS = "a model with a vector for each token"


def foreign_kind(model: SentenceTransformer) -> str | None:
    """What the model's checkpoint is other than a sentence encoder, such as "a re-ranker (CrossEncoder)", or None.

    Its weights are then those of another task, under a pooling that they never saw.
    """
    if not isinstance(model[0], Transformer):
        return None
    config = model[0].model.config
    if config.name_or_path and _file(config.name_or_path, "modules.json"):  # saved by sentence-transformers
        saved = _file(config.name_or_path, "config_sentence_transformers.json")
        kind = json.loads(saved).get("model_type") if saved else None
        return None if kind in (None, "SentenceTransformer") else f"{_KINDS.get(kind, _TOKEN_VECTORS)} ({kind})"
    names = config.architectures or ["Model"]
    if all(name.endswith(_TASKS) for name in names):
        return f"a re-ranker, classifier or tagger ({names[0]})"
    return f"{_TOKEN_VECTORS} ({names[0]})" if "ColBERT" in names[0] else None


def _file(name: str, file: str) -> str | None:
    """A file of a checkpoint, where it is at hand: in a folder, or in the cache of the hub's."""
    path = load_file_path(name, file, local_files_only=True)
    return None if path is None else Path(path).read_text(encoding="utf-8")


def random_weights(model: SentenceTransformer) -> list[str]:
    """The names of the weights that the checkpoint lacked, of a model that was just loaded; a pooler is not used."""
    if not isinstance(model[0], Transformer):
        return []
    # transformers marks what it read of a checkpoint, and draws the rest at random.
    weights = model[0].model.named_parameters()
    return [name for name, own in weights if not hasattr(own, "_is_hf_initialized") and "pooler" not in name]
