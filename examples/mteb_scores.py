"""MTEB's own scores of a model: python examples/mteb_scores.py MODEL RESULTS TASK [DATA].

RESULTS is a folder for MTEB's result files, TASK a task such as STSBenchmark. DATA is a folder with local files of the
task, such as sts/stsb/test.jsonl; without it, MTEB loads the task from the Hugging Face Hub. Needs the extra 'eval'.
"""

import sys

from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation import evaluate_mteb

name, results, task, *data = sys.argv[1:]
model = SentenceTransformer(name)
print(evaluate_mteb(model, [task], results, name=name, data=data[0] if data else None).table())
