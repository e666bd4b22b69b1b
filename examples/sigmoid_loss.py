"""A loss of your own: python examples/sigmoid_loss.py MODEL corpus.txt out.

It classifies each pair of sentences as the same or not (SigLIP, Zhai et al., 2023). In the folder of this file, the
command line trains it too: st-contrastive train --loss sigmoid_loss:SigmoidLoss --model MODEL ...
"""

import sys

import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from torch.nn.functional import logsigmoid, normalize

from st_contrastive.inputs import load_sentences
from st_contrastive.losses import TextLoss
from st_contrastive.training import ContrastiveTrainer


class SigmoidLoss(TextLoss):
    """Classifies each pair of sentences: the same, or not."""

    columns = {1: "sentences"}

    def __init__(self, model, *, bias: float = -10.0, temperature: float = 0.1, **options):
        super().__init__(model, temperature=temperature, **options)
        self.bias = torch.nn.Parameter(torch.tensor(bias))  # trained, clipped and saved

    def compute_terms(self, step, batches, labels):
        anchors, positives = step.encode(batches[0], batches[0])
        others = normalize(step.gather(positives), dim=1)  # (P, d), from all devices
        scores = normalize(anchors, dim=1) @ others.T / self.temperature + self.bias  # (N, P)
        rows = torch.arange(len(anchors), device=anchors.device)
        signs = -torch.ones_like(scores)
        signs[rows, rows + step.first_row] = 1  # the rows of this device begin there
        # A mean over the rows of this device, corrected if other devices have more rows.
        return {"sigmoid": step.correct_for_uneven_rows(-logsigmoid(signs * scores).sum(1).mean())}

    def chance_levels(self, batch_size):
        return {}  # no value of this loss shows that all vectors are equal


if __name__ == "__main__":
    name, corpus, output = sys.argv[1:]
    model = SentenceTransformer(name)
    args = SentenceTransformerTrainingArguments(f"{output}-run", max_steps=150, learning_rate=3e-5, report_to="none")
    trainer = ContrastiveTrainer(model, args, load_sentences(corpus), loss=SigmoidLoss(model), max_length=32)
    trainer.train()
    model.save_pretrained(output)
    print(f"{output}: trained for {trainer.state.global_step} steps")
