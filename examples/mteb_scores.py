"""MTEB's tasks: python examples/mteb_scores.py MODEL TASK [TASK ...], such as STSBenchmark SciFact."""

import sys

from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation import evaluate_mteb

name, *tasks = sys.argv[1:]
print(evaluate_mteb(SentenceTransformer(name), tasks, name=name))
