"""SimCSE with the Trainer: python examples/quickstart_trainer.py MODEL corpus.txt out [dev.jsonl]."""

import sys

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from transformers import set_seed

from st_contrastive import SimCSELoss
from st_contrastive.evaluation import STSEvaluator
from st_contrastive.inputs import describe, load_sentences
from st_contrastive.training import ContrastiveTrainer

name, corpus, output, *dev = sys.argv[1:]
set_seed(1)  # before the loss draws its head
model = SentenceTransformer(name)
model.max_seq_length = 32
sentences = load_sentences(corpus)
print(describe(sentences, model))
args = SentenceTransformerTrainingArguments(
    f"{output}-run",
    max_steps=150,
    per_device_train_batch_size=64,
    learning_rate=3e-5,
    logging_steps=10,
    report_to="none",
)
evaluator = STSEvaluator(dev[0], "dev") if dev else None
trainer = ContrastiveTrainer(model, args, sentences, loss=SimCSELoss(model), evaluator=evaluator)
print("before:", evaluator(model) if evaluator else "no dev.jsonl was given")
trainer.train()
print("after:", evaluator(model) if evaluator else "")
model.save_pretrained(output)
print(SentenceTransformer(output).encode(["A cat sleeps.", "It rains."]).shape)
