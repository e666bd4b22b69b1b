"""SimCSE through ``SentenceTransformer.fit``: python examples/quickstart_fit.py MODEL corpus.txt out."""

import sys

from sentence_transformers import SentenceTransformer
from torch.utils.data import DataLoader

from st_contrastive import SimCSELoss, text_examples
from st_contrastive.inputs import load_sentences

name, corpus, output = sys.argv[1:]
model = SentenceTransformer(name)
sentences = load_sentences(corpus)["sentence"][:]
loader = DataLoader(text_examples(sentences), batch_size=64, shuffle=True)
loss = SimCSELoss(model, temperature=0.05)
model.fit([(loader, loss)], epochs=1, warmup_steps=0, optimizer_params={"lr": 3e-5}, output_path=output)

print(SentenceTransformer(output).encode(["A cat sleeps.", "It rains."]).shape)
