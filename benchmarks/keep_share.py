r"""What share of the trained weights to keep: STS against retrieval in another domain, from 0 to 1 by quarters.

    python -m benchmarks.keep_share --data wiki.txt.gz --sts data/sts --retrieval data/retrieval/scifact \
        --models models/

Each recipe is trained with each seed. Then its weights are mixed with the untrained ones
(``st_contrastive.training.mix_weights``), and every mixture is scored: Spearman x 100 on the tests of each STS set,
read at 32 tokens, and nDCG@10 x 100 on the retrieval set, read at 256, on the queries of all splits that have
judgements. All are trained and scored under ``--pooling``; Twins trains [CLS] under either, as its recipe. ``--bf16``
trains and scores in bfloat16 autocast; weights and mixtures stay float32. Every cell goes into the results file at
once, and one that is there is not run again; the trained models are kept in ``--models``. Share 0 is the untrained
encoder, the same for all recipes, and scored once a pooling. The same command, started twice at once, shares the
models.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from transformers import set_seed

from benchmarks._results import arguments, begin, changing, claimed, read
from benchmarks._training import build
from st_contrastive._files import work_folder
from st_contrastive.evaluation import RetrievalSet, read_retrieval, sts_files, sts_spearman
from st_contrastive.evaluation.retrieval import ndcg, ranked
from st_contrastive.evaluation.retrieval_data import judgements_file
from st_contrastive.evaluation.sts import read_split
from st_contrastive.inputs import read_corpus
from st_contrastive.methods import METHODS, build_loss
from st_contrastive.recipes import recipe
from st_contrastive.training import ContrastiveTrainer, mix_weights

ONE_COLUMN = ("simcse", "conisi", "twins", "infocse")
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
RESULTS = Path(__file__).parent / "results" / "keep_share.json"
EMPTY: dict[str, Any] = {"cells": []}
#: Arguments that may differ among the cells of a file.
FREE = ("models", "recipes", "seeds", "pooling", "shares", "threads")


def every_query(folder: str) -> RetrievalSet:
    """The set with the queries and judgements of all its splits.

    Raises:
        SystemExit: it has none.
    """
    splits = [split for split in ("train", "dev", "test") if judgements_file(Path(folder), split) is not None]
    if not splits:
        raise SystemExit(f"--retrieval {folder} has no judgements.")
    parts = [read_retrieval(folder, split) for split in splits]
    queries = {key: text for part in parts for key, text in part.queries.items()}
    relevant = {key: gains for part in parts for key, gains in part.relevant.items()}
    return RetrievalSet(parts[0].documents, queries, relevant)


def scored(
    model: SentenceTransformer, sts: dict[str, Any], retrieval: RetrievalSet, args: argparse.Namespace
) -> dict[str, Any]:
    """Spearman x 100 of each STS set, and nDCG@10 x 100."""
    with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
        model.max_seq_length = args.length
        spearman = {name: 100 * sts_spearman(model, pairs) for name, pairs in sts.items()}
        model.max_seq_length = args.retrieval_length
        rankings = ranked(model, retrieval, 10)
    found = [ndcg(rankings[query], gains) for query, gains in retrieval.relevant.items()]
    return {"sts": spearman, "ndcg@10": 100 * statistics.mean(found), "queries": len(found)}


def trained(name: str, seed: int, args: argparse.Namespace, sentences: list[str]) -> SentenceTransformer:
    """The recipe's model, trained unless it is kept."""
    folder = Path(args.models, part(name, seed, args))
    if not folder.is_dir():
        chosen = recipe(name)
        method = METHODS[chosen.method]
        set_seed(seed)
        model = build(args.length, args.base, args.pooling)
        run = SentenceTransformerTrainingArguments(
            str(folder.with_name(f"{folder.name}.run")),
            max_steps=args.steps or chosen.options["max_steps"],
            per_device_train_batch_size=args.batch_size or chosen.options["batch_size"],
            learning_rate=chosen.options["learning_rate"],
            bf16=args.bf16,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=seed,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        loss = build_loss(method.loss_class, model, **chosen.loss_arguments)
        ContrastiveTrainer(model, run, method.dataset(sentences), loss=loss).train()
        with work_folder(folder) as work:
            model.save_pretrained(str(work / "model"))
            (work / "model").replace(folder)
    return build(args.length, str(folder), args.pooling)


def score_shares(
    name: str, seed: int, args: argparse.Namespace, sentences: list[str], sts: dict[str, Any], retrieval: RetrievalSet
) -> None:
    """Score the shares of a trained model that are not in the file yet."""
    known = {key(cell) for cell in read(args.json, EMPTY)["cells"]}
    about = {"recipe": name, "seed": seed, "pooling": args.pooling}
    todo = [share for share in args.shares if key(about | {"share": share}) not in known]
    if not todo:
        return
    model, start = trained(name, seed, args, sentences), build(args.length, args.base, args.pooling)
    for share in todo:
        begun = time.perf_counter()
        cell = about | {"share": share}
        cell |= scored(mix_weights(model, start, share), sts, retrieval, args)
        cell["seconds"] = round(time.perf_counter() - begun, 1)
        with changing(args.json, EMPTY) as result:
            if key(cell) not in map(key, result["cells"]):  # another process may have scored share 0 meanwhile
                result["cells"].append(cell)
        print(f"{name}, {args.pooling}, seed {seed}, share {share:g}: nDCG@10 {cell['ndcg@10']:.2f}", flush=True)


def key(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What a cell is one of: share 0 is the same encoder for all recipes."""
    return (cell["pooling"], cell["share"], *(() if cell["share"] == 0 else (cell["recipe"], cell["seed"])))


def part(name: str, seed: int, args: argparse.Namespace) -> str:
    """The name of a recipe's model with a seed."""
    ends = [f"-{args.steps}" if args.steps else "", "-bf16" if args.bf16 else ""]
    return f"{name}-{args.pooling}-{seed}{''.join(ends)}"


def curve(cells: list[dict[str, Any]], name: str, pooling: str) -> dict[float, list[tuple[float, float]]]:
    """Of a recipe under a pooling: (mean of STS, nDCG@10) of each seed, by share."""
    found: dict[float, list[tuple[float, float]]] = {}
    for cell in sorted(cells, key=lambda cell: cell["share"]):
        if cell["pooling"] == pooling and (cell["share"] == 0 or cell["recipe"] == name):
            found.setdefault(cell["share"], []).append((statistics.mean(cell["sts"].values()), cell["ndcg@10"]))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--sts", required=True, help="folder with one folder per set")
    parser.add_argument("--retrieval", required=True, help="a set in BEIR's form")
    parser.add_argument("--models", required=True, help="folder that the trained models are kept in")
    parser.add_argument("--recipes", nargs="+", default=["mini-simcse", "mini-infocse", "mini-twins-one-column"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--pooling", choices=["cls", "mean"], default="cls", help="of all encoders; default: cls")
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--base", help="folder of the encoder to start from; default: all-MiniLM-L6-v2")
    parser.add_argument("--steps", type=int, help="default: the recipe's")
    parser.add_argument("--batch-size", type=int, help="default: the recipe's")
    parser.add_argument("--length", type=int, default=32, help="tokens a sentence in training and of STS")
    parser.add_argument("--retrieval-length", type=int, default=256, help="tokens a text of the retrieval set")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--threads", type=int, help="of the processor; default: torch's")
    parser.add_argument("--json", default=str(RESULTS), help="where the cells go")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    for name in args.recipes:
        if recipe(name).method not in ONE_COLUMN or recipe(name).translations or recipe(name).stage1:
            raise SystemExit(
                f"--recipes {name}: give recipes of {', '.join(ONE_COLUMN)} on one column, without a first stage."
            )
    about = {key: value for key, value in arguments(args).items() if key not in FREE}
    begin(args.json, EMPTY, about, "name another file.")
    sentences = read_corpus(args.data).sentences
    sts = {name: read_split(files) for (name, _), files in sts_files(args.sts, ["test"]).items()}
    retrieval = every_query(args.retrieval)
    for seed in args.seeds:  # seed by seed, so that what is there compares
        for name in args.recipes:
            with claimed(Path(args.models, f"{part(name, seed, args)}.lock")) as mine:
                if mine:
                    score_shares(name, seed, args, sentences, sts, retrieval)


if __name__ == "__main__":
    main()
