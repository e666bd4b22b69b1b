"""The corpus's own judge, by hand and in the Trainer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from st_contrastive.evaluation import CorpusEvaluator
from st_contrastive.inputs.sentences import split_sentences
from tests.evaluation.test_sts import trained
from tests.filters import TRAINING

pytestmark = [*TRAINING]
WORDS = (
    "cat dog rain man book garden sun bread milk train birds child house door station lake winter chair river sleeps"
)


@pytest.fixture
def texts():
    """Each document speaks of one thing."""
    return [
        f"The {word} is old. I see a {word} now. Where is the {word}? We like {word} most." for word in WORDS.split()
    ]


def by_hand(model, evaluator):
    """nDCG@10 with one right answer: 1 / log2(1 + rank)."""
    answers = model.encode(list(evaluator.answers.values()), normalize_embeddings=True)
    gains = []
    for key, query in evaluator.queries.items():
        cosines = answers @ model.encode(query, normalize_embeddings=True)
        rank = 1 + int((cosines > cosines[list(evaluator.answers).index(key.split("-")[0])]).sum())
        gains.append(1 / math.log2(1 + rank) if rank <= 10 else 0.0)
    return np.mean(gains)


def test_ndcg_by_hand(build, texts):
    model = build(pooling="mean").eval()
    evaluator = CorpusEvaluator(texts)
    assert len(evaluator.queries) == 2 * len(texts)
    scores = evaluator(model)
    assert list(scores) == [evaluator.primary_metric] == ["corpus_ndcg@10"]
    assert scores["corpus_ndcg@10"] == pytest.approx(by_hand(model, evaluator), abs=1e-6)
    assert 0.1 < scores["corpus_ndcg@10"] < 1
    assert evaluator.margin == pytest.approx(0.02 * (400 / 40) ** 0.5)


def test_questions_and_answers_are_of_one_document_and_share_no_sentence(texts):
    short = [f"The {word} sings. I like the {word}." for word in WORDS.split()]
    evaluator = CorpusEvaluator([*texts, *short])
    for key, query in evaluator.queries.items():
        answer = evaluator.answers[key.split("-")[0]]
        (document,) = [text for text in [*texts, *short] if query in text]
        assert answer
        assert set(split_sentences(answer)) == set(split_sentences(document)) - {
            own for other, own in evaluator.queries.items() if other.split("-")[0] == key.split("-")[0]
        }
    assert len(evaluator.queries) == 2 * len(texts) + len(short)  # one of two sentences remains


def test_the_same_seed_asks_the_same(texts):
    assert CorpusEvaluator(texts).queries == CorpusEvaluator(texts).queries != CorpusEvaluator(texts, seed=1).queries
    many = [f"{text} It is number {place}." for place in range(3) for text in texts]
    assert len(CorpusEvaluator(many, limit=30).answers) == 30


def test_what_is_left_out(texts):
    evaluator = CorpusEvaluator([*texts, "One sentence.", "Twice. Twice.", texts[0]])
    assert evaluator.left_out == 3
    assert len(evaluator.answers) == len(texts)
    with pytest.raises(ValueError, match=r"texts holds 19 .* of 21"):
        CorpusEvaluator([*texts[:19], "One.", "Two."])
    for given, error in (("a text. of one", TypeError), ([], ValueError)):
        with pytest.raises(error, match="texts"):
            CorpusEvaluator(given)
    with pytest.raises(ValueError, match="limit"):
        CorpusEvaluator(texts, limit=3)


def test_nan_is_explained(build, texts):
    model = build(pooling="mean").eval()
    torch.nn.init.constant_(model[0].model.embeddings.LayerNorm.weight, math.nan)
    with pytest.warns(UserWarning, match="not finite"):
        assert math.isnan(CorpusEvaluator(texts)(model)["corpus_ndcg@10"])


def test_the_trainer_keeps_the_best(build, sentences, texts, tmp_path):
    model, evaluator = build(pooling="mean"), CorpusEvaluator(texts)
    logged = trained(model, sentences, evaluator, tmp_path, "corpus_ndcg@10")
    assert list(logged) == [2, 4]
    assert len(set(logged.values())) == 2
    assert evaluator(model.eval())["corpus_ndcg@10"] == pytest.approx(max(logged.values()), abs=1e-6)
