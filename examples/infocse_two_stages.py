"""InfoCSE in its two stages: python examples/infocse_two_stages.py MODEL corpus.txt out [dev.jsonl].

MODEL is a plain masked-LM checkpoint, such as bert-base-uncased. The settings are those of the recipe
infocse-bert-base, which trains the same in one command.
"""

import sys

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import set_seed

from st_contrastive import AuxiliaryMLMPretrainingLoss, InfoCSELoss
from st_contrastive.evaluation import STSEvaluator
from st_contrastive.inputs import load_sentences
from st_contrastive.training import ContrastiveTrainer

name, corpus, output, *dev = sys.argv[1:]
set_seed(42)
model = SentenceTransformer(name)
model[1] = Pooling(model.get_embedding_dimension(), "cls")
dataset = load_sentences(corpus, repeats=True)
common = {"per_device_train_batch_size": 64, "report_to": "none"}

# Stage 1: the encoder and the auxiliary network learn masked language modelling together.
args = SentenceTransformerTrainingArguments(
    f"{output}-stage1-run", num_train_epochs=1, learning_rate=1e-4, warmup_steps=0.1, weight_decay=0.01, **common
)
stage1 = AuxiliaryMLMPretrainingLoss(model)
ContrastiveTrainer(model, args, dataset, loss=stage1, max_length=32).train()
stage1.save_auxiliary(f"{output}-stage1")

# Stage 2 continues with both, and keeps the weights that score best on dev.
args = SentenceTransformerTrainingArguments(
    f"{output}-stage2-run", num_train_epochs=2, learning_rate=7e-6, eval_strategy="steps", eval_steps=125,
    save_steps=125, load_best_model_at_end=True, metric_for_best_model="eval_dev_spearman", **common,
)  # fmt: skip
loss = InfoCSELoss(model, auxiliary=f"{output}-stage1", head="projector", mask_rate=0.4, mlm_weight=1e-5)
evaluator = STSEvaluator(dev[0] if dev else "stsb", "dev")  # stsb: the STS Benchmark's dev split, from the hub
trainer = ContrastiveTrainer(model, args, dataset, loss=loss, evaluator=evaluator, max_length=32)
trainer.train()
model.save_pretrained(output)
print(f"{output}: trained for {trainer.state.global_step} steps after stage 1, whose network is in {output}-stage1")
