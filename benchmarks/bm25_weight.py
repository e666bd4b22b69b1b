"""nDCG@10 of an encoder mixed with BM25, by the encoder's weight; prints one JSON line.

    python -m benchmarks.bm25_weight data/retrieval/scifact --model sentence-transformers/all-MiniLM-L6-v2

The folder holds a set of BEIR's, as for ``benchmarks.own_text``. Weight 1 is the encoder only, 0 is BM25 only.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sentence_transformers import SentenceTransformer

from benchmarks import provenance
from benchmarks.own_text import Search
from st_contrastive.evaluation import mix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="corpus, queries_test and qrels_test, each .jsonl.gz")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2", help="encoder")
    args = parser.parse_args()
    search, model = Search(args.folder, None), SentenceTransformer(args.model)
    vectors = model.encode_query(search.queries), model.encode_document(search.documents)
    similarities = model.similarity(*vectors).double().numpy()
    weights = [step / 10 for step in range(11)]
    scores = {f"{weight:g}": search.ndcg(mix(similarities, search.words, weight)).mean() for weight in weights}
    line = {"corpus": args.folder.name, "encoder": Path(args.model).name, "queries": len(search.queries)}
    print(json.dumps({**line, "ndcg": {weight: round(score, 2) for weight, score in scores.items()}, **provenance()}))


if __name__ == "__main__":
    main()
