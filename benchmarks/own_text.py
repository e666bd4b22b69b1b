"""Measure what training on a corpus's text brings to its search: one JSON line for each run. It continues if stopped.

    python -m benchmarks.own_text data/retrieval/scifact --model sentence-transformers/all-MiniLM-L6-v2

The folder holds a set of BEIR's: corpus, queries_test and qrels_test, each .jsonl.gz. "trained" is the nDCG@10 of the
test queries over all documents, title and text, with the encoder only, and "trained with bm25" with BM25 mixed in;
"interval" is half the paired 95 % interval of the change from the start. "corpus trained" is the score of
``CorpusEvaluator`` on held-out documents, "decision" its decision on the trained weights, "mixed decision" its decision
on the half mixture.

A row is one run at a low learning rate (SETTINGS: what the recipe own-text was before it became a soup), with other
settings (ROWS), or changed before training (CHANGES): candidates for a better recipe, and runs that should harm.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gzip
import json
import random
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss, MultipleNegativesRankingLoss

from benchmarks import RESULTS, provenance
from benchmarks.run import append
from st_contrastive import recipes
from st_contrastive.evaluation import BM25, Judgement, compare_paired, mix
from st_contrastive.inputs.segments import split_sentences
from st_contrastive.training import interpolate_weights

#: Settings of all rows, in place of those of the recipe own-text.
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-5, "max_steps": 150, "num_train_epochs": 5, "soup": None, "mix": None
}  # fmt: skip
#: Settings of each row, in place of these.
ROWS: dict[str, dict[str, Any]] = {
    "untrained": {},
    "own-text": {},
    "pairs, 192 tokens": {"max_length": 192},
    "pairs, learning rate 3e-5": {"learning_rate": 3e-5},
    "learning rate 1e-4": {"learning_rate": 1e-4},
    "learning rate 3e-4": {"learning_rate": 3e-4},
    "neighbours, learning rate 3e-5": {"learning_rate": 3e-5, "max_length": 64},
    "first sentences": {"column": "body", "pairs": "first"},
    "sentences, learning rate 3e-5": {
        "column": "body",
        "segment": "sentences",
        "learning_rate": 3e-5,
        "max_length": 64,
    },
}


def under_a_guide(trainer: Any) -> None:
    """Ignore negatives that the start finds closer than the pair."""
    start = copy.deepcopy(trainer.model)
    trainer.loss = GISTEmbedLoss(trainer.model, start, temperature=0.05)


def add_hard_negatives(trainer: Any) -> None:
    """Add a negative to each title: of the 20 other bodies that BM25 ranks first, the nearest one under the start."""
    pairs = trainer.train_dataset
    titles, bodies = pairs["sentence"][:], np.array(pairs["other"][:])
    words = BM25([*bodies]).scores(titles)
    words[bodies[None] == bodies[:, None]] = -np.inf  # its own
    first = np.argsort(-words, axis=1, kind="stable")[:, :20]
    vectors = [trainer.model.encode([*texts], normalize_embeddings=True) for texts in (titles, bodies)]
    near = np.einsum("nd,nkd->nk", vectors[0], vectors[1][first]).argmax(axis=1)
    trainer.train_dataset = pairs.add_column("negative", bodies[first[np.arange(len(near)), near]].tolist())
    trainer.loss = MultipleNegativesRankingLoss(trainer.model)


def add_sentences(trainer: Any) -> None:
    """Add a pair to each: a sentence of the body, and the title with the other sentences."""
    draw, made = random.Random(0), []
    for row in trainer.train_dataset:
        sentences = split_sentences(row["other"], "en")
        if len(sentences) > 1:
            one = draw.randrange(len(sentences))
            rest = " ".join([row["sentence"], *sentences[:one], *sentences[one + 1 :]])
            made.append({"sentence": sentences[one], "other": rest})
    trainer.train_dataset = concatenate_datasets([trainer.train_dataset, Dataset.from_list(made)])


def take_neighbours(trainer: Any) -> None:
    """Train on each sentence of a body and the next one."""
    cut = [split_sentences(body, "en") for body in trainer.train_dataset["other"]]
    pairs = [{"sentence": one, "other": other} for row in cut for one, other in pairwise(row)]
    trainer.train_dataset = Dataset.from_list(pairs)


def shuffle_half(trainer: Any) -> None:
    """Give every second title to another document."""
    titles = trainer.train_dataset["sentence"][:]
    others = titles[::2]
    random.Random(0).shuffle(others)
    titles[::2] = others
    trainer.train_dataset = Dataset.from_dict({"sentence": titles, "other": trainer.train_dataset["other"][:]})


def train_upper_half(trainer: Any) -> None:
    """Freeze the embeddings and the lower half of the layers."""
    layers = max((part for part in trainer.model.modules() if isinstance(part, torch.nn.ModuleList)), key=len)
    for part in (trainer.model[0].model.embeddings, *layers[: len(layers) // 2]):
        part.requires_grad_(False)


CHANGES: dict[str, Callable[[Any], None]] = {
    "pairs under a guide": under_a_guide,
    "hard negatives": add_hard_negatives,
    "a sentence as a second pair": add_sentences,
    "upper half of the layers": train_upper_half,
    "neighbours, learning rate 3e-5": take_neighbours,
    "half of the titles shuffled": shuffle_half,
}


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((folder / f"{name}.jsonl.gz").read_bytes()).splitlines()]


class Search:
    """nDCG@10 of a folder's judged queries (relevant or not) over all of its documents, or ``count`` of them."""

    def __init__(self, folder: Path, count: int | None) -> None:
        rows = read(folder, "corpus")
        if count is not None:
            wanted = {row["corpus_id"] for row in read(folder, "qrels_test") if row["score"] > 0}
            others = [row["_id"] for row in rows if row["_id"] not in wanted]
            kept = wanted | {*random.Random(0).sample(others, count - len(wanted))}
            rows = [row for row in rows if row["_id"] in kept]
        numbers = {row["_id"]: number for number, row in enumerate(rows)}
        found: dict[str, set[int]] = {}
        for row in read(folder, "qrels_test"):
            if row["score"] > 0:
                found.setdefault(row["query_id"], set()).add(numbers[row["corpus_id"]])
        self.documents = [f"{row['title']} {row['text']}".strip() for row in rows]
        queries = {row["_id"]: row["text"] for row in read(folder, "queries_test") if row["_id"] in found}
        self.queries = [*queries.values()]
        self.relevant = np.array([[number in found[key] for number in range(len(rows))] for key in queries])  # (Q, N)
        self.words = BM25(self.documents).scores(self.queries)

    def __call__(self, model: SentenceTransformer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """nDCG@10 of each query, (Q,): with the encoder only, and with BM25 mixed in."""
        vectors = [
            encode(texts, convert_to_tensor=True)
            for encode, texts in ((model.encode_query, self.queries), (model.encode_document, self.documents))
        ]
        alone = model.similarity(*vectors).double().cpu().numpy()
        return self.ndcg(alone), self.ndcg(mix(alone, self.words))

    def ndcg(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        discounts = 1 / np.log2(np.arange(2, 12))
        first = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        best = np.array([discounts[:count].sum() for count in self.relevant.sum(axis=1)])
        gains: NDArray[np.float64] = np.take_along_axis(self.relevant, first, axis=1) @ discounts
        found: NDArray[np.float64] = 100 * gains / best
        return found


def half_interval(changes: NDArray[np.float64]) -> float:
    """Half of the 95 % interval of the mean of (Q,) changes."""
    return float(round(1.96 * changes.std(ddof=1) / len(changes) ** 0.5, 3))


def untrained(model_name: str, search: Search) -> dict[str, Any]:
    """Score an encoder without training, alone and with BM25; "bm25 interval" belongs to the gain by BM25."""
    alone, mixed = search(SentenceTransformer(model_name))
    scores = {"start": round(alone.mean(), 3), "start with bm25": round(mixed.mean(), 3)}
    return {"queries": len(alone), **scores, "bm25 interval": half_interval(mixed - alone)}


def one_run(row: str, model_name: str, seed: int, table: str, search: Search, bf16: bool) -> dict[str, Any]:
    """Train one row, and judge the start, the trained weights and half a mixture of both."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {**SETTINGS, "column": ["title", "body"], **ROWS.get(row, {})}
        trainer: Any = recipes.trainer(
            "own-text", model=model_name, data=table, dev="corpus", seed=seed, output_dir=folder, report_to="none",
            bf16=bf16, eval_strategy="no", save_strategy="no", **settings,
        )  # fmt: skip
        model, evaluator = trainer.model, trainer.evaluator
        start = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        of_start: dict[str, NDArray[np.float64]] = {}
        scores: dict[str, Any] = {"questions": len(evaluator.queries), "pairs": len(trainer.train_dataset)}

        def judge(name: str) -> Judgement:
            judgement: Judgement = evaluator.judge(model)
            scores[f"corpus {name}"] = round(100 * judgement.ndcg, 3)
            for key, found in zip((name, f"{name} with bm25"), search(model), strict=True):
                scores[key] = round(found.mean(), 3)
                change = found - of_start.setdefault(key.replace(name, "start"), found)
                if name != "start":
                    scores[f"{key} interval"] = half_interval(change)
            return judgement

        before = judge("start")

        def decide(judgement: Judgement, prefix: str) -> None:
            comparison = compare_paired(before, judgement)
            scores[f"{prefix}lead"] = round(comparison.lead.mean, 3)
            scores[f"{prefix}decision"] = comparison.decision

        if row in CHANGES:
            CHANGES[row](trainer)
        trainer.train()
        trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        decide(judge("trained"), "")
        interpolate_weights(model, start, 0.5)
        decide(judge("mixed"), "mixed ")
        return {"steps": trainer.state.global_step, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--rows", nargs="+", default=[*ROWS, *CHANGES], choices=[*ROWS, *CHANGES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--documents", type=int, help="size of the corpus: all relevant documents and others at random")
    parser.add_argument("--bf16", action="store_true", default=torch.cuda.is_available(), help="train in bf16")
    parser.add_argument("--out", type=Path, default=RESULTS / "own_text.jsonl")
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(line["corpus"], line["encoder"], line["row"], line["seed"]) for line in lines}
    corpus = args.folder.name + (f"-{args.documents}" if args.documents else "")
    encoder, search = Path(args.model).name, Search(args.folder, args.documents)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, f"{corpus}.csv")
        with table.open("w", newline="", encoding="utf-8") as file:
            texts = ([row["title"], row["text"]] for row in read(args.folder, "corpus"))
            csv.writer(file).writerows([["title", "body"], *texts])
        for row in args.rows:
            for seed in args.seeds if row != "untrained" else [0]:
                if (corpus, encoder, row, seed) not in done:
                    name = {"corpus": corpus, "encoder": encoder, "row": row, "seed": seed}
                    if row == "untrained":
                        found = untrained(args.model, search)
                    else:
                        found = one_run(row, args.model, seed, str(table), search, args.bf16)
                    append(args.out, {**name, **found, **provenance()})


if __name__ == "__main__":
    main()
