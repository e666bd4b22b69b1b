"""The corpus's own judge, by hand and in the Trainer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from st_contrastive.evaluation import CorpusEvaluator, corpus
from st_contrastive.inputs.segments import split_sentences
from tests.evaluation.encoders import Same

WORDS = (
    "cat dog rain man book garden sun bread milk train birds child house door station lake winter chair river sleeps "
    "morning window field shoe bridge"
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
    judgement = evaluator.judge(model)
    assert judgement.ndcg == scores["corpus_ndcg@10"]
    assert len(judgement.ranks) == len(judgement.leads) == len(judgement.ranks_with_bm25) == 50
    assert judgement.owners.tolist() == [index for index in range(25) for _ in range(2)]


def test_ties_count_against_the_model(texts):
    judgement = CorpusEvaluator(texts).judge(Same())
    assert (judgement.ranks == 25).all()
    assert not judgement.leads.any()
    assert judgement.ndcg_with_bm25 == 1.0  # by the words alone


def test_without_bm25_nothing_is_mixed(texts, monkeypatch):
    def missing(*_, **__):
        raise ImportError

    monkeypatch.setattr(corpus, "BM25", missing)
    judgement = CorpusEvaluator(texts).judge(Same())
    assert judgement.ranks_with_bm25 is judgement.ndcg_with_bm25 is None


def sentences_of(evaluator):
    """Those of each document: its questions and its answer."""
    found = {key: split_sentences(answer) for key, answer in evaluator.answers.items()}
    for key, query in evaluator.queries.items():
        found[key.split("-")[0]].append(query)
    return sorted(sorted(own) for own in found.values())


def test_questions_and_answers_are_of_one_document_and_share_no_sentence(texts):
    short = [f"The {word} sings. I like the {word}." for word in WORDS.split()]
    evaluator = CorpusEvaluator([*texts, *short])
    assert sentences_of(evaluator) == sorted(sorted(split_sentences(text)) for text in [*texts, *short])
    assert len(evaluator.queries) == 2 * len(texts) + len(short)  # one of two sentences remains


@pytest.mark.parametrize("shared", ["All rights reserved.", "ALL rights reserved.", "Copyright {}. Page {} of 90."])
def test_what_several_documents_say_is_neither_asked_nor_an_answer(texts, shared):
    """Nor is what differs in case or in numbers alone; one sentence beside it is too few."""
    marked = [f"{text} {shared.format(2000 + place, place)}" for place, text in enumerate(texts)]
    evaluator = CorpusEvaluator([*marked, *texts[:5], f"{shared.format(1, 1)} Only this is its own."])
    assert sentences_of(evaluator) == sorted(sorted(split_sentences(text)) for text in texts[5:])


def test_titles_are_answers_and_no_questions(texts):
    """A title is at the beginning of the answer. What repeats it in the body is dropped, whatever ends it."""
    titles = [f"On the {word}" for word in WORDS.split()]
    evaluator = CorpusEvaluator([f"{title}. {text}" for title, text in zip(titles, texts, strict=True)], titles=titles)
    assert len(evaluator.queries) == 2 * len(texts)
    assert not any(query.startswith("On the") for query in evaluator.queries.values())
    for answer in evaluator.answers.values():
        assert answer.count("On the") == 1
        assert answer.startswith("On the")
    # One sentence of the body can't be asked: only the title would be left.
    with pytest.raises(ValueError, match="only 0 of 25 texts have"):
        CorpusEvaluator([text.partition(". ")[0] for text in texts], titles=titles)
    with pytest.raises(ValueError, match="titles has 24 entries"):
        CorpusEvaluator(texts, titles=titles[1:])


def test_without_titles_the_questions_are_the_same(texts):
    assert CorpusEvaluator(texts, titles=[""] * len(texts)).queries == CorpusEvaluator(texts).queries


def test_only_as_many_documents_are_split_as_are_needed(texts, monkeypatch):
    seen = []
    monkeypatch.setattr(corpus, "split_sentences", lambda text, language: seen.append(text) or split_sentences(text))
    many = [text.replace("old", f"old {place}").replace("now", place) for place in WORDS.split() for text in texts]
    evaluator = CorpusEvaluator([*many, *["Too short."] * 10], limit=30)
    assert len(evaluator.answers) == 30
    assert 30 <= len(seen) < 100


def test_the_same_seed_asks_the_same(texts):
    assert CorpusEvaluator(texts).queries == CorpusEvaluator(texts).queries != CorpusEvaluator(texts, seed=1).queries


def test_what_is_too_little(texts):
    evaluator = CorpusEvaluator([*texts[:20], "One sentence.", "Twice. Twice.", texts[0]])
    assert len(evaluator.answers) == CorpusEvaluator.min_documents == 20
    # The message names what is needed, of few documents and of many without sentences.
    for given, match in ((texts[:15], r"only 15 of 15 texts .* 20 "), (["One."] * 150, r"only 0 of 150 texts .* 20 ")):
        with pytest.raises(ValueError, match=match):
            CorpusEvaluator(given)
    for titles, is_asked in (([""] * 15, False), (["T"] * 15, True)):
        with pytest.raises(ValueError, match="of 15 texts") as error:
            CorpusEvaluator(texts[:15], titles=titles)
        assert ("swapped" in str(error.value)) == is_asked
    for given, error in (("a text. of one", TypeError), ([], ValueError)):
        with pytest.raises(error, match="texts"):
            CorpusEvaluator(given)
    for options in ({"limit": 3}, {"language": "German"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            CorpusEvaluator(texts, **options)


def test_nan_is_explained(build, texts):
    model = build(pooling="mean").eval()
    torch.nn.init.constant_(model[0].model.embeddings.LayerNorm.weight, math.nan)
    with pytest.warns(UserWarning, match="not finite"):
        assert math.isnan(CorpusEvaluator(texts)(model)["corpus_ndcg@10"])
