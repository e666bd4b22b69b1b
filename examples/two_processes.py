"""Two processes, one batch: torchrun --nproc-per-node 2 examples/two_processes.py MODEL corpus.txt out.

Each process has its own GPU, or its share of the CPU. It encodes half of a step's sentences and contrasts them with the
sentences of both processes.
"""

import sys

import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from st_contrastive import SimCSELoss
from st_contrastive.distributed import shut_down
from st_contrastive.inputs import load_sentences
from st_contrastive.training import ContrastiveTrainer


def train(name: str, corpus: str, output: str) -> None:
    """Train on the share of each process, and save once."""
    args = SentenceTransformerTrainingArguments(
        f"{output}-run",
        num_train_epochs=1,
        per_device_train_batch_size=32,
        learning_rate=3e-5,
        report_to="none",
        use_cpu=torch.cuda.device_count() < 2,  # with fewer than two GPUs, both processes use the CPU
    )
    model = SentenceTransformer(name, device=str(args.device))
    loss = SimCSELoss(model, gather_across_devices=True)
    trainer = ContrastiveTrainer(model, args, load_sentences(corpus), loss=loss)
    trainer.train()
    if trainer.is_world_process_zero():
        model.save_pretrained(output)
        print(f"{args.world_size} processes, {trainer.state.global_step} steps")


train(*sys.argv[1:])
shut_down()  # when nothing refers to the Trainer
