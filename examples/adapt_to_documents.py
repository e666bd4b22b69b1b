"""Adapt an encoder to documents without labels: python examples/adapt_to_documents.py MODEL documents.csv out [COLUMN].

A tenth of the documents judges: does a sentence find the rest of its document? The best weights are saved, and the
encoder as it was if the score rose by no more than the evaluator's margin.
"""

import sys

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from st_contrastive import SimCSELoss
from st_contrastive.evaluation import CorpusEvaluator
from st_contrastive.inputs import describe, load_sentences
from st_contrastive.training import ContrastiveTrainer

name, source, output = sys.argv[1:4]
column = sys.argv[4] if len(sys.argv) > 4 else None  # of a table that has several
model = SentenceTransformer(name)
documents = load_sentences(source, column=column).shuffle(seed=0)
held_out = max(20, len(documents) // 10)
evaluator = CorpusEvaluator(documents["sentence"][:held_out])
training = load_sentences(documents["sentence"][held_out:], split="sentences")
print(describe(training, model))
before = evaluator(model)[evaluator.primary_metric]
args = SentenceTransformerTrainingArguments(
    f"{output}-run", max_steps=100, per_device_train_batch_size=64, learning_rate=1e-5, logging_steps=10,
    eval_strategy="steps", eval_steps=25, save_steps=25, save_total_limit=2, report_to="none",
    load_best_model_at_end=True, metric_for_best_model=f"eval_{evaluator.primary_metric}",
)  # fmt: skip
ContrastiveTrainer(model, args, training, loss=SimCSELoss(model, head=None), evaluator=evaluator).train()
after = evaluator(model)[evaluator.primary_metric]
print(f"{evaluator.primary_metric}: {before:.4f} before, {after:.4f} after, margin {evaluator.margin:.4f}")
(model if after - before > evaluator.margin else SentenceTransformer(name)).save_pretrained(output)
