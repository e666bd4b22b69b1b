"""The scores of one encoder: STS as the papers score it and, if asked for, SentEval's transfer tasks."""

from __future__ import annotations

import argparse

from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation import evaluate_sts, evaluate_transfer


def all_scores(model: SentenceTransformer, args: argparse.Namespace) -> dict[str, float]:
    """Scores x 100 by their names: "dev" is the STS Benchmark's, the others are test sets."""
    reports = [evaluate_sts(model, args.sets / "sts")]
    if args.transfer:
        reports.append(evaluate_transfer(model, args.sets / "transfer"))
    scores = {}
    for score in (score for report in reports for score in report.scores):
        if score.metric in ("spearman", "accuracy"):
            scores["dev" if score.split == "dev" else score.task] = round(100 * score.value, 3)
    return scores
