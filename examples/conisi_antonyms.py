"""ConIsI-o2, with antonyms from WordNet: python examples/conisi_antonyms.py MODEL corpus.txt out.

Install WordNet with ``python -m nltk.downloader wordnet``. With Debian's package ``wordnet-base``, call
``copy_wordnet()`` of ``st_contrastive.augmentations`` once, which copies it to where NLTK reads it.
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
without = sum(row["sentence"] == row["constructed"] for row in dataset)
print(f"{without} of {len(dataset)} sentences have no antonym. The loss takes another sentence of the batch for them.")
print(next((row for row in dataset if row["sentence"] != row["constructed"]), "No sentence has one."))
args = SentenceTransformerTrainingArguments(
    f"{output}-run", num_train_epochs=1, per_device_train_batch_size=64, learning_rate=1e-5, report_to="none"
)
# For a trained encoder. A language model's [CLS] vector takes 0.8, and a learning rate of 3e-5.
loss = ConIsILoss(model, strategy="given", interaction_weight=0.1)
trainer = ContrastiveTrainer(model, args, dataset, loss=loss)
trainer.train()
model.save_pretrained(output)
print(f"{output}: trained for {trainer.state.global_step} steps")
