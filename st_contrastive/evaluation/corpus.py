"""Judges an encoder on a corpus without labels."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from st_contrastive._checks import require_count, require_texts
from st_contrastive._sentences import split_sentences


class CorpusEvaluator(InformationRetrievalEvaluator):
    """nDCG@10 of finding the document that a sentence was taken from.

    Args:
        texts: held-out documents.
        questions: sentences taken from each document, where at least one remains.
        answer_sentences: the answer is this many sentences in a row of what remains; None takes all.
        limit: at most this many documents, drawn at random.
        seed: of the documents, the sentences and the answers.
        name: prefix of the metric's name.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        questions: int = 2,
        answer_sentences: int | None = None,
        limit: int = 1000,
        seed: int = 0,
        name: str = "corpus",
        batch_size: int = 64,
    ) -> None:
        require_count("questions", questions)
        documents = [
            list(dict.fromkeys(split_sentences(text))) for text in dict.fromkeys(require_texts("texts", texts))
        ]
        usable = [sentences for sentences in documents if len(sentences) > 1]
        self.left_out = len(documents) - len(usable)
        if len(usable) < 20:
            raise ValueError("texts")
        draw = random.Random(seed)
        queries: dict[str, Any] = {}
        corpus: dict[str, Any] = {}
        answers: dict[str, set[str]] = {}
        for place, sentences in enumerate(draw.sample(usable, min(limit, len(usable)))):
            asked = set(draw.sample(range(len(sentences)), min(questions, len(sentences) - 1)))
            rest = [sentence for row, sentence in enumerate(sentences) if row not in asked]
            if answer_sentences is not None:
                start = draw.randrange(max(1, len(rest) - answer_sentences + 1))
                rest = rest[start : start + answer_sentences]
            document = f"d{place:06d}"
            corpus[document] = " ".join(rest)
            for row in sorted(asked):
                query = f"q{place:06d}-{row}"
                queries[query], answers[query] = sentences[row], {document}
        super().__init__(
            queries, corpus, answers, mrr_at_k=[10], ndcg_at_k=[10], accuracy_at_k=[1], precision_recall_at_k=[10],
            map_at_k=[10], batch_size=batch_size, name=name, write_csv=False,
        )  # fmt: skip
