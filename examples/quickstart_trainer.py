"""SimCSE through the Trainer: python examples/quickstart_trainer.py MODEL corpus.txt out."""

import sys

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from st_contrastive import SimCSELoss, text_dataset
from st_contrastive.inputs import stream_corpus
from st_contrastive.training import ContrastiveTrainer

name, corpus, output = sys.argv[1:]
model = SentenceTransformer(name)
args = SentenceTransformerTrainingArguments(
    f"{output}-run", num_train_epochs=1, per_device_train_batch_size=64, learning_rate=3e-5, report_to="none"
)
dataset = text_dataset(stream_corpus(corpus))
ContrastiveTrainer(model, args, dataset, loss=SimCSELoss(model)).train()
model.save_pretrained(output)

print(SentenceTransformer(output).encode(["A cat sleeps.", "It rains."]).shape)
