"""SimCSE with SentenceTransformerTrainer: python examples/quickstart_sentence_transformers.py MODEL corpus.txt out.

MODEL is a trained sentence encoder, such as sentence-transformers/all-MiniLM-L6-v2. This Trainer trains what a loss
owns, here a head, but neither clips nor saves it: ContrastiveTrainer does both (quickstart_trainer.py).
"""

import sys

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from st_contrastive import SimCSELoss
from st_contrastive.training import save_loss_state

name, corpus, output = sys.argv[1:]
model = SentenceTransformer(name)
with open(corpus, encoding="utf-8") as lines:
    sentences = list(dict.fromkeys(line.strip() for line in lines if line.strip()))  # equal ones would be negatives
args = SentenceTransformerTrainingArguments(
    f"{output}-run", max_steps=150, per_device_train_batch_size=64, learning_rate=3e-5, report_to="none"
)
loss = SimCSELoss(model, head="projector")  # a language model, such as BERT, takes SimCSELoss(model)
trainer = SentenceTransformerTrainer(model, args, Dataset.from_dict({"sentence": sentences}), loss=loss)
trainer.train()
model.save_pretrained(output)
save_loss_state(loss, f"{output}-loss")  # for a loop of your own that continues, with load_loss_state
print(f"{output}: trained for {trainer.state.global_step} steps")
