"""SimCSE with the Trainer: python examples/quickstart_trainer.py MODEL corpus.txt out [dev.jsonl].

MODEL is a trained sentence encoder, such as sentence-transformers/all-MiniLM-L6-v2.
"""

import sys

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from st_contrastive import SimCSELoss
from st_contrastive.evaluation import STSEvaluator
from st_contrastive.inputs import describe, load_sentences
from st_contrastive.training import ContrastiveTrainer

name, corpus, output, *dev = sys.argv[1:]
model = SentenceTransformer(name)
sentences = load_sentences(corpus)
print(describe(sentences, model))
evaluator = STSEvaluator(dev[0] if dev else "stsb", "dev")  # stsb: the STS Benchmark's dev split, from the hub
before = evaluator(model)["dev_spearman"]
args = SentenceTransformerTrainingArguments(
    f"{output}-run",
    max_steps=150,
    per_device_train_batch_size=64,
    learning_rate=3e-5,
    logging_steps=10,
    report_to="none",
)
loss = SimCSELoss(model, head=None)  # a language model, such as BERT, takes the head: SimCSELoss(model)
ContrastiveTrainer(model, args, sentences, loss=loss, max_length=32).train()
print(f"Spearman x 100 on dev: {100 * before:.2f} before, {100 * evaluator(model)['dev_spearman']:.2f} after")
model.save_pretrained(output)
