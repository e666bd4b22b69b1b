"""SimCSE through ``SentenceTransformer.fit``: python examples/quickstart_fit.py MODEL corpus.txt out.

MODEL is a trained sentence encoder, such as sentence-transformers/all-MiniLM-L6-v2.
"""

import sys

from sentence_transformers import SentenceTransformer
from torch.utils.data import DataLoader

from st_contrastive import SimCSELoss, input_examples
from st_contrastive.inputs import load_sentences

name, corpus, output = sys.argv[1:]
model = SentenceTransformer(name)
loader = DataLoader(input_examples(load_sentences(corpus)), batch_size=64, shuffle=True)
loss = SimCSELoss(model, head="projector")  # a language model, such as BERT, takes SimCSELoss(model)
model.fit([(loader, loss)], epochs=1, warmup_steps=0, optimizer_params={"lr": 3e-5}, output_path=output)

trained = SentenceTransformer(output)  # a plain model, which loads without this package
vectors = trained.encode(["A cat sleeps.", "The cat is asleep.", "It rains in Oslo."])
print("'A cat sleeps.' and two others:", trained.similarity(vectors[:1], vectors[1:]).tolist()[0])
