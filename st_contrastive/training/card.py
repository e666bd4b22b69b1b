"""The model card's text. It names this package and the run, and quotes no training texts or paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerModelCardData

from st_contrastive._files import is_path

TAG = "st-contrastive"
_TRAINED_WITH = "Trained with st_contrastive, which is not needed to load or use it"
#: A string value in JSON.
_VALUE = re.compile(r'(?<=: ")(?:[^"\\]|\\.)*(?=")')
#: Settings that are not shown.
_PRIVATE = ("data", "translations", "output_dir", "prompts", "hub_token")


class _Card(SentenceTransformerModelCardData):
    #: Markdown about the run, such as its recipe, settings and scores.
    run = ""
    was_trained = True

    def set_widget_examples(self, dataset: Any) -> None:
        """Do nothing, because the card must not quote texts of the dataset."""

    def compute_dataset_metrics(self, *args: Any, **options: Any) -> Any:
        """As in sentence-transformers, but without example texts or the folders of the loss's checkpoints."""
        metrics: Any = super().compute_dataset_metrics(*args, **options)
        loss = metrics.get("loss", {})
        if "config_code" in loss:
            loss["config_code"] = _VALUE.sub(lambda value: str(without_folder(value[0])), loss["config_code"])
        return {name: value for name, value in metrics.items() if name not in ("examples", "examples_table")}

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        for name in ("all_hyperparameters", "non_default_hyperparameters"):
            values[name] = {key: without_folder(value) for key, value in (values.get(name) or {}).items()}
        # The template has no slot for our paragraphs, so they are appended to the task, which ends its first paragraph.
        paragraphs = [values["task_name"], f"{self.run}\n" if self.run else "", _TRAINED_WITH]
        if not self.was_trained:
            paragraphs = [values["task_name"], self.run.rstrip(".")]
        values["task_name"] = _join(paragraphs)
        return values


def _join(paragraphs: Iterable[str]) -> str:
    first, *others = (text for text in paragraphs if text)
    return f"{first}.\n\n" + "\n".join(others) if others else first


def without_folder(value: Any) -> Any:
    """The last part of a path. Other values are returned unchanged."""
    return Path(value).name if isinstance(value, (str, PathLike)) and is_path(value) else value


def trained_title(name: str, method: str) -> str:
    """The title of the card of a model that was trained from ``name``."""
    return f"{Path(name).name} trained with {method}"


def prepare_card(model: SentenceTransformer) -> None:
    """Make the model card name the package and quote no text. Custom card classes only get the tag."""
    model.model_card_data.add_tags(TAG)
    if type(model.model_card_data) is SentenceTransformerModelCardData:
        values, model.model_card_data = vars(model.model_card_data), _Card()
        vars(model.model_card_data).update(values)


def add_to_card(model: SentenceTransformer, text: str) -> None:
    """Add markdown after the first paragraph of the model's card, if :func:`prepare_card` has prepared it."""
    if isinstance(model.model_card_data, _Card):
        model.model_card_data.run = text


def run_text(recipe: str, settings_yaml: Iterable[str], results: str) -> str:
    """Markdown about a run: its recipe, settings and scores."""
    title = f"Trained with the recipe `{recipe}`:" if recipe else "Trained with these settings:"
    return "\n".join([title, "", "```yaml", *settings_yaml, "```", "", results])


def public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a card shows, without folders."""
    return {name: without_folder(value) for name, value in settings.items() if name not in _PRIVATE}


def original_card(model: SentenceTransformer) -> str:
    """The text of the card that the model was loaded with. "" if there was none."""
    return model._model_card_text or ""


def describe_start(model: SentenceTransformer, original: str, results: str) -> None:
    """Make the card describe the encoder that the run started from, because its weights were kept.

    The result is the encoder's original card, if it has one, with a paragraph about the run.
    """
    note = f"These are the weights that a run of st_contrastive started from. Training did not improve them: {results}"
    if not isinstance(model.model_card_data, _Card):
        return
    card = _Card(local_files_only=True)
    card.run, card.was_trained = note, False
    model.model_card_data = card
    card.register_model(model)
    # sentence-transformers saves this text if nothing was trained
    text: Any = f"{original.rstrip()}\n\n## Training did not change these weights\n\n{note}\n" if original else None
    model._model_card_text = text
