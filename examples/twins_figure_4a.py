"""Twins' Fig. 4a, augmented test sentences: twins_figure_4a.py MODEL test.jsonl.gz [translations.txt [FOREIGN_MODEL]].

The paper takes a supervised encoder, such as sentence-transformers/stsb-bert-base, and the STS Benchmark's test split.
It does not say which side of a pair it augments: here both. translations.txt adds fraternal twins. It has a line for
each first sentence, then one for each second sentence. FOREIGN_MODEL is a checkpoint of the translations' language, as
in twins_translations.py; a multilingual MODEL needs none. Insertion and synonyms only work for English.
"""

import random
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

from st_contrastive import FraternalEmbedding, TwinsLoss
from st_contrastive.augmentations import RandomDeletion, RandomInsertion, SynonymReplacement
from st_contrastive.evaluation import STSPairs, read_sts, sts_spearman
from st_contrastive.evaluation.analyses import dropout_views

name, test, *more = sys.argv[1:]
model, pairs = SentenceTransformer(name, device="cpu"), read_sts(test)
foreign = FraternalEmbedding.from_pretrained(more[1], model) if len(more) > 1 else None


class Twins:
    """Encodes a twin of each sentence with dropout on: the fraternal one if there are translations."""

    def __init__(self, translations=None):
        self.translations = translations
        self.loss = TwinsLoss(model, fraternal=foreign) if translations else None

    def encode(self, sentences, **_):
        columns = [[*sentences]] + ([[self.translations[text] for text in sentences]] if self.translations else [])
        return dropout_views(model, columns, loss=self.loss)[-1].numpy()


for edit in (RandomInsertion(), SynonymReplacement(), RandomDeletion()):
    first, second = (tuple(edit(text, random.Random(text)) for text in side) for side in (pairs.first, pairs.second))
    print(f"{type(edit).__name__}: {100 * sts_spearman(model, STSPairs(first, second, pairs.scores)):.2f}")
print(f"identical twins: {100 * sts_spearman(Twins(), pairs):.2f}")
if more:
    lines = Path(more[0]).read_text(encoding="utf-8").splitlines()
    translations = dict(zip((*pairs.first, *pairs.second), lines, strict=True))
    print(f"fraternal twins: {100 * sts_spearman(Twins(translations), pairs):.2f}")
