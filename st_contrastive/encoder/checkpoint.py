"""Checks of the checkpoint that a model was loaded from, since sentence-transformers converts any model silently."""

from __future__ import annotations

import json
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.util import load_file_path

_KINDS = {"CrossEncoder": "a re-ranker", "SparseEncoder": "a sparse encoder"}
#: Endings of classes that are trained for tasks other than sentence embedding.
_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
_TOKEN_VECTORS = "a model that compares token vectors"


def foreign_kind(model: SentenceTransformer) -> str | None:
    """Describe a checkpoint of another kind, such as "a re-ranker (CrossEncoder)"; None for a sentence encoder.

    The weights of another kind were trained for another task and without the model's pooling.
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
    """The text of a checkpoint's file if it is available locally, in a folder or in the cache of the hub."""
    path = load_file_path(name, file, local_files_only=True)
    return None if path is None else Path(path).read_text(encoding="utf-8")


def random_weights(model: SentenceTransformer) -> list[str]:
    """Names of the weights that are random because the checkpoint lacks them. The pooler, which is unused, is ignored.

    The model must have been loaded just before.
    """
    if not isinstance(model[0], Transformer):
        return []
    # transformers marks the weights that it read from the checkpoint.
    weights = model[0].model.named_parameters()
    return [name for name, weight in weights if not hasattr(weight, "_is_hf_initialized") and "pooler" not in name]
