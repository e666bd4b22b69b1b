"""Twins with translations: python examples/twins_translations.py MODEL pairs.tsv out [FOREIGN_MODEL].

pairs.tsv has the columns sentence and translation. FOREIGN_MODEL is a checkpoint of the other language,
whose tokenizer and embedding layer handle the translations; a multilingual MODEL needs none.
"""

import sys

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from st_contrastive import FraternalEmbedding, TwinsLoss, twins_dataset
from st_contrastive.inputs import load_translations
from st_contrastive.training import ContrastiveTrainer

name, pairs_file, output, *foreign = sys.argv[1:]
model = SentenceTransformer(name)
fraternal = FraternalEmbedding.from_pretrained(foreign[0], model) if foreign else None
if fraternal is not None:
    print(fraternal.alignment)  # how well its embeddings map into the encoder's
pairs = load_translations(pairs_file)
dataset = twins_dataset(pairs["sentence"][:], pairs["translation"][:], fraternal=fraternal)
args = SentenceTransformerTrainingArguments(
    f"{output}-run", num_train_epochs=1, per_device_train_batch_size=64, learning_rate=3e-5, report_to="none"
)
trainer = ContrastiveTrainer(model, args, dataset, loss=TwinsLoss(model, fraternal=fraternal))
trainer.train()
model.save_pretrained(output)
print(f"{output}: trained on {len(dataset)} pairs in {trainer.state.global_step} steps")
