"""The card of a saved model names the package and quotes no text."""

from __future__ import annotations

import pytest
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer

import st_contrastive as stc
from st_contrastive.training import ContrastiveTrainer
from st_contrastive.training.card import add_to_card
from tests.cases import without_the_package


@pytest.fixture
def saved_card(build, arguments, sentences, tmp_path):
    """``saved_card(text)``: folder of a model that was trained for a step, with the text in its card."""

    def save(text=""):
        model, data = build(), stc.text_dataset(sentences)
        loss = stc.SimCSELoss(model)
        ContrastiveTrainer(model, arguments(max_steps=1, save_strategy="no"), data, loss=loss).train()
        add_to_card(model, text)
        model.save_pretrained(str(tmp_path / "out"))
        return tmp_path / "out"

    return save


def test_the_card_names_the_package_and_quotes_no_text(saved_card, sentences):
    folder = saved_card("| setting | value |\n|---|---|\n| recipe | own-text |")
    card = ModelCard.load(folder / "README.md")
    assert "SimCSELoss" in card.text
    assert not any(sentence in card.text for sentence in sentences)
    assert card.data.library_name == "sentence-transformers"
    assert "st-contrastive" in card.data.tags
    paragraphs = card.text.split("\n\n")
    first = next(index for index, text in enumerate(paragraphs) if text.startswith("This is a"))
    assert paragraphs[first].endswith(".")
    assert paragraphs[first + 1].endswith("| recipe | own-text |")
    assert paragraphs[first + 2].startswith("Trained with st_contrastive")
    assert not any("trust_remote_code" in path.read_text(encoding="utf-8") for path in folder.glob("*.json"))
    with without_the_package():
        SentenceTransformer(str(folder), device="cpu").save_pretrained(str(folder / "again"))
    assert ModelCard.load(folder / "again" / "README.md").text == card.text
