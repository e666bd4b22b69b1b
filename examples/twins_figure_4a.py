"""Twins' Fig. 4a, augmented test sentences: python examples/twins_figure_4a.py MODEL test.jsonl.gz [translations.txt].

The paper takes a supervised encoder, such as sentence-transformers/stsb-bert-base, and the STS Benchmark's test split.
It does not say which side of a pair it augments: here both. translations.txt has a line for each first sentence, then
one for each second sentence; with it, a multilingual encoder also gets fraternal twins.
"""

import random
import sys
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from st_contrastive import TwinsLoss
from st_contrastive.augmentations import RandomDeletion, RandomInsertion, SynonymReplacement
from st_contrastive.evaluation import STSPairs, read_sts, sts_spearman

name, test, *translations = sys.argv[1:]
model, pairs = SentenceTransformer(name, device="cpu"), read_sts(test)
loss, texts = TwinsLoss(model), (*pairs.first, *pairs.second)


class Twins:
    """Encodes a twin of each sentence with dropout on: the fraternal one if there are translations."""

    def __init__(self, translations=None):
        self.translations = translations

    def encode(self, sentences, **_):
        columns = [sentences] + ([[self.translations[text] for text in sentences]] if self.translations else [])
        rows = range(0, len(sentences), 64)
        batches = ([model.preprocess(column[row : row + 64]) for column in columns] for row in rows)
        with torch.no_grad():
            return torch.cat([loss.encode_views(batch)[-1] for batch in batches]).numpy()


for edit in (RandomInsertion(), SynonymReplacement(), RandomDeletion()):
    first, second = (tuple(edit(text, random.Random(text)) for text in side) for side in (pairs.first, pairs.second))
    print(f"{type(edit).__name__}: {100 * sts_spearman(model, STSPairs(first, second, pairs.scores)):.2f}")
model.train()
print(f"identical twins: {100 * sts_spearman(Twins(), pairs):.2f}")
for file in translations:
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    print(f"fraternal twins: {100 * sts_spearman(Twins(dict(zip(texts, lines, strict=True))), pairs):.2f}")
