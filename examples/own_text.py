"""Your own documents, without labels: python examples/own_text.py articles.csv out [MODEL].

The table has the columns title and body. A tenth of the documents is held out as a test: does a sentence find the
document that it was taken from? The encoder that scores best is saved, which may be the one that you started from.
"""

import sys

from sentence_transformers import SentenceTransformer

from st_contrastive import recipes
from st_contrastive.inputs import describe, load_pairs

table, output, *given = sys.argv[1:]
name = given[0] if given else "sentence-transformers/all-MiniLM-L6-v2"

# What is in the table? Rows that can't be trained on are left out and counted.
pairs = load_pairs(table, columns=("title", "body"))
print(describe(pairs, SentenceTransformer(name)))

# Train each title against its body, with the settings that `st-contrastive recipes own-text` prints.
run = recipes.run("own-text", model=name, data=table, column=("title", "body"), dev="corpus", output_dir=output)

# Did it help?
if run.collapsed:
    sys.exit(f"Nothing was saved: {run.collapsed}")
print(f"nDCG@10 before {run.before:.3f}, after {run.after:.3f}")
saved = "encoder that you started from" if run.saved == "start" else f"{run.saved} weights"
print(f"Saved in {output}: the {saved}.")

# Search with it. It loads without this package.
model = SentenceTransformer(output)
titles, bodies = pairs["sentence"][:1000], pairs["other"][:1000]
nearest = model.similarity(model.encode(titles[0]), model.encode(bodies)).argmax()
print(f"{titles[0]!r} finds {bodies[nearest][:80]!r}, as it {'should' if nearest == 0 else 'should not'}.")
