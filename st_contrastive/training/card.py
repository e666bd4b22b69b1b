"""The model card, which names this package and quotes no training text."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerModelCardData

TAG = "st-contrastive"
_TRAINED_WITH = "Trained with st_contrastive, which is not needed to load or use it"


class _Card(SentenceTransformerModelCardData):
    #: Markdown about the run, such as its recipe, settings and scores.
    run = ""

    def set_widget_examples(self, dataset: Any) -> None:
        """Do nothing, because the card must not quote texts of the dataset."""

    def compute_dataset_metrics(self, *args: Any, **options: Any) -> Any:
        metrics = super().compute_dataset_metrics(*args, **options)
        return {name: value for name, value in metrics.items() if name not in ("examples", "examples_table")}

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        # The template has no place for a paragraph. Its first paragraph ends with the task and a full stop.
        task, run = values["task_name"], f"{self.run}\n\n" if self.run else ""
        values["task_name"] = f"{task}.\n\n{run}{_TRAINED_WITH}"
        return values


def prepare_card(model: SentenceTransformer) -> None:
    """Make the model's card name the package and quote no text. Custom card classes only get the tag."""
    model.model_card_data.add_tags(TAG)
    if type(model.model_card_data) is SentenceTransformerModelCardData:
        values, model.model_card_data = vars(model.model_card_data), _Card()
        vars(model.model_card_data).update(values)


def add_to_card(model: SentenceTransformer, text: str) -> None:
    """Add markdown after the first paragraph of the model's card, if :func:`prepare_card` has prepared it."""
    if isinstance(model.model_card_data, _Card):
        model.model_card_data.run = text
