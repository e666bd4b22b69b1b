"""The alternatives in sentence-transformers: MultipleNegativesRankingLoss on (s, s), and TSDAE."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss, MultipleNegativesRankingLoss
from transformers import set_seed

from st_contrastive import recipes
from st_contrastive.inputs import load_sentences


def _noisy(sentence: str, draws: random.Random) -> str:
    """The sentence without about 60 % of its words, TSDAE's best ratio; at least one word is kept."""
    words = sentence.split()
    return " ".join(word for word in words if draws.random() > 0.6) or draws.choice(words)


def _train(
    model: SentenceTransformer, loss: Any, data: Dataset, output_dir: Path, max_length: int, **settings: Any
) -> None:
    arguments = SentenceTransformerTrainingArguments(
        str(output_dir), save_strategy="no", report_to="none", logging_steps=10, **settings
    )
    trainer = SentenceTransformerTrainer(model, arguments, data, loss=loss)
    trainer.data_collator.max_length = max_length
    trainer.train()


def mnrl(
    *, model: str, data: Any, output_dir: Path, seed: int, max_length: int = 32, scale: float = 20.0, **settings: Any
) -> SentenceTransformer:
    """MultipleNegativesRankingLoss with each sentence as its own positive."""
    set_seed(seed)
    encoder = recipes.load_model(model)
    sentences = load_sentences(data)["sentence"]
    pairs = Dataset.from_dict({"anchor": sentences, "positive": sentences})
    loss = MultipleNegativesRankingLoss(encoder, scale=scale)
    _train(encoder, loss, pairs, output_dir, max_length, seed=seed, **settings)
    return encoder


def tsdae(
    *, model: str, data: Any, output_dir: Path, seed: int, max_length: int = 32, **settings: Any
) -> SentenceTransformer:
    """TSDAE: a decoder, tied to the encoder, restores a sentence from the vector of its noisy copy."""
    set_seed(seed)
    encoder = recipes.load_model(model)
    sentences, draws = list(load_sentences(data)["sentence"]), random.Random(seed)
    pairs = Dataset.from_dict({"noisy": [_noisy(sentence, draws) for sentence in sentences], "text": sentences})
    loss = DenoisingAutoEncoderLoss(encoder, tie_encoder_decoder=True)
    _train(encoder, loss, pairs, output_dir, max_length, seed=seed, **settings)
    return encoder


BASELINES: dict[str, Callable[..., SentenceTransformer]] = {"mnrl": mnrl, "tsdae": tsdae}
