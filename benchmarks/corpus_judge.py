"""Does ``CorpusEvaluator`` rank encoders as judged queries do? One JSON line an encoder; rerun to go on, or to see.

    python -m benchmarks.corpus_judge data/retrieval/scifact --results benchmarks/results/corpus_judge.jsonl

Encoders: all-MiniLM-L6-v2, the same trained by each loss on the corpus's sentences, and mixtures of both. The judges
are nDCG@10 of the set's queries, and the evaluator's on documents that are neither judged nor trained on.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from transformers import TrainerCallback, set_seed

from st_contrastive._sentences import split_sentences
from st_contrastive.evaluation import CorpusEvaluator
from st_contrastive.methods import METHODS
from st_contrastive.training import ContrastiveTrainer, mix_weights

ANSWERS = {"rest": None, "two sentences": 2, "one sentence": 1}


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Judges:
    """The judged queries over ``documents`` documents, and evaluators on ``held_out`` others."""

    def __init__(self, folder: Path, splits: list[str], documents: int, held_out: int) -> None:
        texts = {row["_id"]: row for row in rows(folder, "corpus")}
        relevant: dict[str, set[str]] = {}
        for split in splits:
            for row in rows(folder, f"qrels_{split}"):
                relevant.setdefault(row["query_id"], set()).add(row["corpus_id"])
        queries = {row["_id"]: row["text"] for split in splits for row in rows(folder, f"queries_{split}")}
        judged = set().union(*relevant.values())
        others = sorted(texts.keys() - judged)
        random.Random(0).shuffle(others)
        own, others = others[:held_out], others[held_out:]
        corpus = {key: f"{texts[key]['title']} {texts[key]['text']}" for key in [*sorted(judged), *others][:documents]}
        options: dict[str, Any] = {"batch_size": 64, "write_csv": False}
        self.all = {"judged": InformationRetrievalEvaluator(queries, corpus, relevant, **options)}
        for name, count in ANSWERS.items():
            self.all[name] = CorpusEvaluator([texts[key]["text"] for key in own], answer_sentences=count)
        train = [text for key in texts.keys() - set(own) for text in split_sentences(texts[key]["text"])]
        self.sentences = sorted({text for text in train if len(text.split()) > 3})

    def scores(self, model: SentenceTransformer) -> dict[str, float]:
        cache: dict[str, torch.Tensor] = {}
        encode = model.encode

        def cached(inputs: list[str], **options: Any) -> torch.Tensor:
            if new := [text for text in dict.fromkeys(inputs) if text not in cache]:
                cache.update(zip(new, encode(new, **options), strict=True))
            return torch.stack([cache[text] for text in inputs])

        model.encode = cached  # type: ignore[method-assign]  # the evaluators ask the same questions
        found = {name: judge(model)[judge.primary_metric] for name, judge in self.all.items()}
        del model.encode
        return {name: round(100 * float(value), 3) for name, value in found.items()}


def trained(start: SentenceTransformer, method: str, rate: float, args: Any, sentences: list[str]) -> Iterator[Any]:
    """The encoder after each of ``args.steps`` steps."""
    set_seed(0)
    model, copies = copy.deepcopy(start), {}

    class Keep(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            if state.global_step in args.steps:
                copies[state.global_step] = copy.deepcopy(model).eval()

    model.max_seq_length = args.train_tokens
    options = SentenceTransformerTrainingArguments(
        "unused", max_steps=max(args.steps), per_device_train_batch_size=64, learning_rate=rate, save_strategy="no",
        lr_scheduler_type="constant", report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    data = METHODS[method].dataset(random.Random(0).sample(sentences, 64 * max(args.steps)))
    loss = METHODS[method].loss_class(model)
    ContrastiveTrainer(model, options, data, loss=loss, callbacks=[Keep()]).train()
    for step, encoder in copies.items():
        encoder.max_seq_length = args.tokens
        yield step, encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "corpus_judge.jsonl")
    parser.add_argument("--splits", nargs="+", default=["train", "test"], help="of the queries")
    parser.add_argument("--steps", type=int, nargs="+", default=[25, 75, 150])
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-5, 1e-4])
    parser.add_argument("--documents", type=int, help="judged documents and others; default: all that are not held out")
    parser.add_argument("--held-out", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--train-tokens", type=int, default=128)
    args = parser.parse_args()
    judges = Judges(args.folder, args.splits, args.documents or 10**9, args.held_out)
    lines = args.results.read_text().splitlines() if args.results.is_file() else []
    found = {row["encoder"]: row for row in map(json.loads, lines)}

    def score(name: str, model: SentenceTransformer) -> None:
        if name not in found:
            found[name] = {"encoder": name, **judges.scores(model)}
            with args.results.open("a") as file:
                file.write(json.dumps(found[name]) + "\n")

    start = SentenceTransformer(args.model, device="cpu")
    start.max_seq_length = args.tokens
    score("untrained", start)
    for rate in args.rates:
        for method in ("simcse", "twins", "infocse", "conisi"):
            name = f"{method} {rate:g}"
            if f"{name} half of {max(args.steps)}" not in found:
                for step, model in trained(start, method, rate, args, judges.sentences):
                    score(f"{name} {step}", model)
                score(f"{name} half of {step}", mix_weights(model, start, 0.5))
    table = list(found.values())
    for judge in ANSWERS:
        changes = [(row[judge] - table[0][judge], row["judged"] - table[0]["judged"]) for row in table[1:]]
        right = sum((own > 0) == (judged > 0) for own, judged in changes)
        margin = max([0.0, *(abs(own) for own, judged in changes if (own > 0) != (judged > 0))])
        rank = spearmanr([row[judge] for row in table], [row["judged"] for row in table]).statistic
        print(f"{judge}: Spearman {rank:.2f}, sign right {right} of {len(changes)}, wrong up to {margin:.2f}")


if __name__ == "__main__":
    main()
