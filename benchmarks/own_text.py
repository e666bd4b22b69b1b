"""What training on a corpus's own text brings to its search; one JSON line a run. Started again, it goes on.

    python -m benchmarks.own_text data/retrieval/scifact --model sentence-transformers/all-MiniLM-L6-v2

The folder holds a set of BEIR's: corpus, queries_test and qrels_test, each .jsonl.gz. Judged is nDCG@10 of the test
queries over all documents, title and text; corpus is ``CorpusEvaluator``'s score on documents that are held out.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss

from benchmarks import RESULTS, provenance
from benchmarks.run import append
from st_contrastive import recipes
from st_contrastive.training import interpolate_weights

#: Settings of each row, in place of those of the recipe own-text.
ROWS: dict[str, dict[str, Any]] = {
    "own-text": {},
    "pairs, 192 tokens": {"max_length": 192},
    "pairs, learning rate 3e-5": {"learning_rate": 3e-5},
    "pairs under a guide": {},
    "first sentences": {"column": "body", "pairs": "first"},
    "sentences, learning rate 3e-5": {
        "column": "body",
        "segment": "sentences",
        "learning_rate": 3e-5,
        "max_length": 64,
    },
}


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((folder / f"{name}.jsonl.gz").read_bytes()).splitlines()]


def search_of(folder: Path) -> InformationRetrievalEvaluator:
    documents = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in read(folder, "corpus")}
    relevant: dict[str, set[str]] = {}
    for row in read(folder, "qrels_test"):
        if row["score"] > 0:
            relevant.setdefault(row["query_id"], set()).add(row["corpus_id"])
    queries = {row["_id"]: row["text"] for row in read(folder, "queries_test") if row["_id"] in relevant}
    return InformationRetrievalEvaluator(queries, documents, relevant, batch_size=64, write_csv=False)


def one_run(row: str, model_name: str, seed: int, table: str, search: InformationRetrievalEvaluator) -> dict[str, Any]:
    """Train one row, and judge the start, the trained weights and half a mixture of both."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"column": ["title", "body"], "max_steps": 150, **ROWS[row]}
        trainer = recipes.trainer(
            "own-text", model=model_name, data=table, dev="corpus", seed=seed, output_dir=folder, report_to="none",
            bf16=torch.cuda.is_available(), eval_strategy="no", save_strategy="no", **settings,
        )  # fmt: skip
        model, evaluator = trainer.model, trainer.evaluator
        if row == "pairs under a guide":
            trainer.loss = GISTEmbedLoss(model, SentenceTransformer(model_name), temperature=0.05)
        start = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        scores: dict[str, Any] = {"questions": len(evaluator.queries), "pairs": len(trainer.train_dataset)}

        def judge(name: str) -> None:
            scores[name] = round(100 * float(search(model)[search.primary_metric]), 3)
            scores[f"corpus {name}"] = round(100 * float(evaluator(model)[evaluator.primary_metric]), 3)

        judge("start")
        trainer.train()
        trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        judge("trained")
        interpolate_weights(model, start, 0.5)
        judge("mixed")
        return {"steps": trainer.state.global_step, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=RESULTS / "own_text.jsonl")
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(line["corpus"], line["encoder"], line["row"], line["seed"]) for line in lines}
    corpus, encoder, search = args.folder.name, Path(args.model).name, search_of(args.folder)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, f"{corpus}.csv")
        with table.open("w", newline="", encoding="utf-8") as file:
            texts = ([row["title"], row["text"]] for row in read(args.folder, "corpus"))
            csv.writer(file).writerows([["title", "body"], *texts])
        for row in args.rows:
            for seed in args.seeds:
                if (corpus, encoder, row, seed) not in done:
                    name = {"corpus": corpus, "encoder": encoder, "row": row, "seed": seed}
                    found = one_run(row, args.model, seed, str(table), search)
                    append(args.out, {**name, **found, **provenance()})


if __name__ == "__main__":
    main()
