"""Titles as queries, a cross-encoder as the teacher: GPL without a query generator, all of it sentence-transformers'.

    python examples/search_with_a_teacher.py articles.csv out

The table has the columns title and body. For each title, the encoder finds documents that are like its own; the
cross-encoder scores all of them, and training teaches the encoder these scores.
"""

from __future__ import annotations

import sys

from sentence_transformers import CrossEncoder, SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss
from sentence_transformers.util import mine_hard_negatives

from st_contrastive.evaluation import CorpusEvaluator, compare_paired
from st_contrastive.inputs import load_pairs
from st_contrastive.training import ContrastiveTrainer


def main(
    table: str,
    output: str,
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2",
    teacher: str = "cross-encoder/ms-marco-MiniLM-L6-v2",
    steps: int = 300,
) -> None:
    """Mine, score, train, and save what is better."""
    model = SentenceTransformer(encoder)
    pairs = load_pairs(table, columns=("title", "body")).shuffle(seed=42)
    held_out = min(500, len(pairs) // 5)
    evaluator = CorpusEvaluator(pairs.select(range(held_out))["other"])
    pairs = pairs.select(range(held_out, len(pairs)))
    scored = mine_hard_negatives(
        pairs, model, anchor_column_name="sentence", positive_column_name="other", cross_encoder=CrossEncoder(teacher),
        range_min=1, range_max=50, num_negatives=4, output_format="n-tuple", output_scores=True, verbose=False,
    )  # fmt: skip
    before = evaluator.judge(model)
    arguments = SentenceTransformerTrainingArguments(
        f"{output}/checkpoints", max_steps=steps, per_device_train_batch_size=16, learning_rate=2e-5,
        warmup_steps=0.1, save_strategy="no", report_to="none",
    )  # fmt: skip
    ContrastiveTrainer(model, arguments, scored, loss=DistillKLDivLoss(model)).train()
    after = evaluator.judge(model)
    comparison = compare_paired(before, after)
    print(f"nDCG@10 of a sentence's own document: {100 * before.ndcg:.1f} before, {100 * after.ndcg:.1f} after.")
    print(comparison)
    if comparison.decision == "better":
        model.save_pretrained(output)
        print(f"Saved to {output}.")
    else:
        print("Not saved: no measurable gain.")


if __name__ == "__main__":
    main(*sys.argv[1:])
