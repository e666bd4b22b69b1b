"""Does ``CorpusEvaluator`` rank encoders as judged queries do? One JSON line an encoder; started again, it goes on.

    python -m benchmarks.corpus_judge data/retrieval/scifact --rates 2e-4 --steps 5 20 --splits test --documents 400 \
        --held-out 200 --tokens 48 --train-tokens 24

made results/corpus_judge.jsonl; again with --rates 3e-5 --methods twins simcse. Encoders: all-MiniLM-L6-v2, the same
trained by each loss on the corpus's sentences, and the means of both. Judges: nDCG@10 of the set's queries, and of
``CorpusEvaluator`` on documents that are neither judged nor trained on. What training on one's own text brings:

    python -m benchmarks.corpus_judge data/retrieval/scifact --results benchmarks/results/own_text.jsonl --rates 3e-5 \
        --steps 150 --schedule linear --documents 1000 --held-out 500 --train-tokens 64 --seeds 0 1 2 \
        --methods "simcse head=null" "simcse head=null mlm_weight=0.3" twins "infocse head=null" \
        "infocse head=null stage1=150" "simcse head=null pairs=neighbours" "simcse head=null pairs=titles"

and again with --model lm, a language model. With ``pairs``, a sentence and the three around it are each other's
positive, or a document's title and its text; ``stage1`` are steps of InfoCSE's first stage.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from transformers import TrainerCallback, set_seed

from benchmarks import device_name
from st_contrastive import recipes
from st_contrastive.evaluation import CorpusEvaluator
from st_contrastive.inputs.sentences import split_sentences
from st_contrastive.methods import METHODS
from st_contrastive.training import ContrastiveTrainer, mix_weights


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((folder / f"{name}.jsonl.gz").read_bytes()).splitlines()]


def judges(args: Any) -> tuple[dict[str, Any], dict[str, list[tuple[str, ...]]]]:
    """The judged queries over some documents, the corpus's own questions over others; and rows to train on."""
    texts = {row["_id"]: row for row in rows(args.folder, "corpus")}
    relevant: dict[str, set[str]] = {}
    for row in itertools.chain(*(rows(args.folder, f"qrels_{split}") for split in args.splits)):
        relevant.setdefault(row["query_id"], set()).add(row["corpus_id"])
    queries = {row["_id"]: row["text"] for split in args.splits for row in rows(args.folder, f"queries_{split}")}
    judged = sorted(set().union(*relevant.values()))
    others = sorted(texts.keys() - set(judged))
    random.Random(0).shuffle(others)
    own, rest = [texts[key]["text"] for key in others[: args.held_out]], [*judged, *others[args.held_out :]]
    corpus = {key: f"{texts[key]['title']} {texts[key]['text']}" for key in rest[: args.documents]}
    documents = [split_sentences(texts[key]["text"]) for key in rest]
    around = {
        text: " ".join([*document[max(0, place - 1) : place], *document[place + 1 : place + 3]])
        for document in documents
        for place, text in enumerate(document)
        if len(text.split()) > 3
    }
    return {
        "judged": InformationRetrievalEvaluator(queries, corpus, relevant, batch_size=64, write_csv=False),
        "corpus": CorpusEvaluator(own),
    }, {
        "": [(text,) for text in sorted(around)],
        "neighbours": [pair for pair in sorted(around.items()) if pair[1]],
        "titles": [(texts[key]["title"], texts[key]["text"]) for key in rest],
    }


def trained(
    start: SentenceTransformer,
    method: str,
    rate: float,
    seed: int,
    args: Any,
    texts: dict[str, list[tuple[str, ...]]],
) -> Iterator[Any]:
    """The encoder after each of ``args.steps`` steps of a method with arguments, such as ``simcse head=null``."""
    name, *pairs = method.split()
    arguments = {key: recipes.parse(value) for key, _, value in (pair.partition("=") for pair in pairs)}
    first = arguments.pop("stage1", 0)
    set_seed(seed)
    model, copies = copy.deepcopy(start), {}

    class Keep(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            copies[state.global_step] = copy.deepcopy(model).eval() if state.global_step in args.steps else None

    model.max_seq_length = args.train_tokens
    own = texts[arguments.pop("pairs", "")]

    def train(method: str, steps: int, callbacks: list[Any], **arguments: Any) -> Any:
        options = SentenceTransformerTrainingArguments(
            "unused", max_steps=steps, per_device_train_batch_size=64, learning_rate=rate, save_strategy="no",
            lr_scheduler_type=args.schedule, seed=seed, report_to="none", disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        drawn = random.Random(seed).sample(own * math.ceil(64 * steps / len(own)), 64 * steps)
        data = METHODS[method].dataset(*map(list, zip(*drawn, strict=True)))
        loss = METHODS[method].loss_class(model, **arguments)
        ContrastiveTrainer(model, options, data, loss=loss, callbacks=callbacks).train()
        return loss

    if first:
        arguments["auxiliary"] = train("pretraining", first, []).auxiliary
    train(name, max(args.steps), [Keep()], **arguments)
    for step in args.steps:
        copies[step].max_seq_length = args.tokens
        yield step, copies[step]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "corpus_judge.jsonl")
    several = {"methods": ["simcse", "twins", "infocse", "conisi"], "rates": [3e-5, 1e-4], "steps": [25, 75, 150]}
    for option, values in {**several, "splits": ["train", "test"]}.items():
        parser.add_argument(f"--{option}", nargs="+", type=type(values[0]), default=values)
    for option, value in {"documents": 10**9, "held-out": 1000, "tokens": 256, "train-tokens": 128}.items():
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--schedule", default="constant", help="lr_scheduler_type")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    found, texts = judges(args)
    args.results.touch()
    lines = map(json.loads, args.results.read_text().splitlines())
    table = {(row["model"], row["encoder"], row["seed"]): row for row in lines}
    base = Path(args.model).name

    def score(name: str, model: SentenceTransformer, seed: int | None) -> None:
        if (base, name, seed) not in table:
            values = {key: round(100 * float(judge(model)[judge.primary_metric]), 3) for key, judge in found.items()}
            table[base, name, seed] = {"model": base, "encoder": name, "seed": seed, **values, "device": device_name()}
            args.results.write_text("".join(json.dumps(row) + "\n" for row in table.values()))

    start = recipes.load_model(args.model)
    start.max_seq_length = args.tokens
    score("untrained", start, None)
    for rate, method, seed in itertools.product(args.rates, args.methods, args.seeds):
        half = f"{method} {rate:g} half of {max(args.steps)}"
        if (base, half, seed) not in table:
            for step, model in trained(start, method, rate, seed, args, texts):
                score(f"{method} {rate:g} {step}", model, seed)
            mix_weights(model, start, 0.5)
            score(half, model, seed)
    scores = [(row["corpus"], row["judged"]) for row in table.values() if row["model"] == base]
    pairs = [(a - c, b - d) for (a, b), (c, d) in itertools.combinations(scores, 2)]
    far = [(own, judged) for own, judged in pairs if abs(own) >= 100 * found["corpus"].margin]
    right = sum(own * judged > 0 for own, judged in pairs[: len(scores) - 1])  # those with the untrained encoder
    print(f"Spearman {spearmanr(*zip(*scores, strict=True)).statistic:.2f} over {len(scores)} encoders.")
    print(f"The sign of the change against the untrained encoder is right for {right} of {len(scores) - 1}.")
    ordered = sum(own * judged > 0 for own, judged in far)
    print(f"{ordered} of {len(far)} pairs of encoders that differ by the margin or more are in the right order.")


if __name__ == "__main__":
    main()
