"""Run as a script by the demo: scores saved models that were loaded before this package was imported.

Reads one JSON object from standard input: ``folders`` (name to folder), ``sets`` (heading to file), ``probes``.
"""

import json
import sys


def main() -> None:
    """Load every model as a plain SentenceTransformer, then score."""
    from sentence_transformers import SentenceTransformer

    request = json.load(sys.stdin)
    models = {name: SentenceTransformer(folder, trust_remote_code=False) for name, folder in request["folders"].items()}
    if any(name.partition(".")[0] == "st_contrastive" for name in sys.modules):
        raise RuntimeError("loading a saved model imported st_contrastive; it must load without")
    probes = {name: model.encode(request["probes"]).tolist() for name, model in models.items()}

    from st_contrastive.evaluation import read_sts, sts_spearman

    sets = {heading: read_sts(path) for heading, path in request["sets"].items()}
    answer = {
        name: {
            "probes": probes[name],
            "scores": {heading: sts_spearman(model, pairs) for heading, pairs in sets.items()},
        }
        for name, model in models.items()
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
