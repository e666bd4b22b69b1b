"""InfoCSE in its two stages: python examples/infocse_two_stages.py MODEL corpus.txt out.

MODEL is a plain masked-LM checkpoint, such as bert-base-uncased, which is trained with [CLS] pooling as in the paper.
"""

import sys

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling

from st_contrastive import AuxiliaryMLMPretrainingLoss, InfoCSELoss
from st_contrastive.inputs import load_sentences
from st_contrastive.training import ContrastiveTrainer

name, corpus, output = sys.argv[1:]
model = SentenceTransformer(name)
model[1] = Pooling(model.get_embedding_dimension(), "cls")

dataset = load_sentences(corpus)
common = {"per_device_train_batch_size": 64, "report_to": "none"}

# Stage 1: the encoder and the auxiliary network learn masked language modelling together.
args = SentenceTransformerTrainingArguments(f"{output}-stage1-run", num_train_epochs=1, learning_rate=1e-4, **common)
stage1 = AuxiliaryMLMPretrainingLoss(model)
ContrastiveTrainer(model, args, dataset, loss=stage1).train()
model.save_pretrained(f"{output}-stage1")
stage1.save_auxiliary(f"{output}-stage1")

# Stage 2 continues from both; learning rate and epochs are those of the infocse-bert-base recipe.
args = SentenceTransformerTrainingArguments(f"{output}-stage2-run", num_train_epochs=2, learning_rate=7e-6, **common)
loss = InfoCSELoss(model, auxiliary=f"{output}-stage1")  # mlm_weight=1e-5, as in the paper
trainer = ContrastiveTrainer(model, args, dataset, loss=loss)
trainer.train()
model.save_pretrained(output)
print(f"{output}: trained for {trainer.state.global_step} steps after stage 1, whose network is in {output}-stage1")
