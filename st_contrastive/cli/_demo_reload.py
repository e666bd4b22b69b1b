"""Run as a script by the demo: loads saved models in a process that has not imported this package.

Reads a JSON object from standard input, ``folders`` (name to folder) and ``sentences``; writes each model's embeddings.
"""

import json
import sys

if __name__ == "__main__":
    from sentence_transformers import SentenceTransformer

    request = json.load(sys.stdin)
    models = {name: SentenceTransformer(path, trust_remote_code=False) for name, path in request["folders"].items()}
    if any(name.partition(".")[0] == "st_contrastive" for name in sys.modules):
        raise RuntimeError("loading a saved model imported st_contrastive; it must load without")
    print(json.dumps({name: model.encode(request["sentences"]).tolist() for name, model in models.items()}))
