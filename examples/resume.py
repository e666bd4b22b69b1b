"""A run that can be killed and started again: python examples/resume.py MODEL corpus.txt out.

Started again with the same arguments, it continues from the newest whole checkpoint in out-run.
"""

import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from st_contrastive import TwinsLoss
from st_contrastive.inputs import load_sentences
from st_contrastive.training import ContrastiveTrainer

name, corpus, output = sys.argv[1:]
model = SentenceTransformer(name)
args = SentenceTransformerTrainingArguments(
    f"{output}-run",
    num_train_epochs=1,
    per_device_train_batch_size=64,
    learning_rate=3e-5,
    save_steps=0.1,  # ten checkpoints in the run
    save_total_limit=2,
    report_to="none",
)
loss = TwinsLoss(model)  # its queue is in each checkpoint
trainer = ContrastiveTrainer(model, args, load_sentences(corpus), loss=loss)
begun = any(Path(args.output_dir).glob("checkpoint-*/trainer_state.json"))  # written last
trainer.train(resume_from_checkpoint=begun)
model.save_pretrained(output)
begin = "resumed" if begun else "from the start"
print(f"{begin}: {trainer.state.global_step} steps, {len(loss.queue)} vectors in the queue")
