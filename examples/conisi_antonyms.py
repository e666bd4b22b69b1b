"""ConIsI-o2, with antonyms from WordNet: python examples/conisi_antonyms.py MODEL corpus.txt out.

Install WordNet with ``python -m nltk.downloader wordnet`` or Debian's package ``wordnet-base``.
"""

import sys

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from st_contrastive import ConIsILoss, conisi_dataset
from st_contrastive.augmentations import AntonymReplacement
from st_contrastive.inputs import load_sentences
from st_contrastive.training import ContrastiveTrainer

name, corpus, output = sys.argv[1:]
model = SentenceTransformer(name)
dataset = conisi_dataset(load_sentences(corpus)["sentence"][:], AntonymReplacement())
print(dataset[0])
loss = ConIsILoss(model, strategy="given")
args = SentenceTransformerTrainingArguments(
    f"{output}-run", num_train_epochs=1, per_device_train_batch_size=64, learning_rate=3e-5, report_to="none"
)
ContrastiveTrainer(model, args, dataset, loss=loss).train()
print(f"{loss.fallback_share:.0%} of the last batch had no antonym and took another sentence")
model.save_pretrained(output)
