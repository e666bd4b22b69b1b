"""A model card that quotes no training text."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerModelCardData


class _Card(SentenceTransformerModelCardData):
    def set_widget_examples(self, dataset: Any) -> None:
        """Take none."""

    def compute_dataset_metrics(self, *args: Any, **options: Any) -> Any:
        """Without the samples."""
        metrics = super().compute_dataset_metrics(*args, **options)
        return {name: value for name, value in metrics.items() if name not in ("examples", "examples_table")}


def without_examples(model: SentenceTransformer) -> None:
    """Let the model's card quote no text, unless the card is of a class of the user's own."""
    if type(model.model_card_data) is SentenceTransformerModelCardData:
        card = _Card()
        vars(card).update(vars(model.model_card_data))
        model.model_card_data = card
