"""Scores an encoder on a corpus without labels."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from st_contrastive._arguments import checked
from st_contrastive._checks import require_texts, warn
from st_contrastive.evaluation.bm25 import BM25, mix, standardised
from st_contrastive.evaluation.paired import Judgement
from st_contrastive.evaluation.set_files import digest
from st_contrastive.inputs.segments import require_language, split_sentences

#: The lowest and the highest number of documents.
_FEWEST, _MOST = 20, 1000
#: Sentences taken from each document, where at least one remains.
_QUESTIONS = 2


class CorpusEvaluator(SentenceEvaluator):
    """Scores an encoder on your corpus: nDCG@10 of finding the document that a sentence was taken from.

    Documents are drawn at random. A sentence in several of them, such as "All rights reserved." or "Copyright 2024",
    identifies none of them, and is dropped from all. Sentences that only differ in case, digits or final punctuation
    count as the same. Of the remaining sentences, two of each document are questions. The others are the answer, which
    has to be found among the answers of all documents.

    Titles are never questions, because training on titles and bodies teaches that match. They stay at the beginning of
    the answer, as search reads a document. A sentence of the body that repeats the title is dropped.

    A call returns ``{"<name>_ndcg@10": value}``; ``metric_for_best_model="eval_corpus_ndcg@10"`` with
    ``load_best_model_at_end=True`` keeps the best step. To compare two encoders, pass their :meth:`judge` results to
    :func:`compare_paired`.

    Args:
        texts: documents, or their bodies, that are not trained on. Those with fewer than two sentences are ignored.
        titles: the title of each document, "" for none.
        limit: the highest number of documents.
        seed: for drawing the documents and the questions.
        language: code of the language by whose rules documents are cut into sentences.
        name: prefix of the metric's name.
        batch_size: for encoding.

    Attributes:
        min_documents: 20, the lowest number of documents with two sentences that no other document contains.
        max_documents: 1,000, the default of ``limit``.

    Raises:
        ValueError: there are fewer than ``min_documents``, or texts and titles differ in number.
    """

    min_documents = _FEWEST
    max_documents = _MOST

    @classmethod
    def held_out_count(cls, documents: int) -> int:
        """The number of documents to hold out: a tenth, but at least 200 (a third, if there are fewer than 600).

        It is never more than ``max_documents``.
        """
        return min(cls.max_documents, max(documents // 10, min(200, documents // 3)))

    @checked
    def __init__(
        self,
        texts: Iterable[str],
        *,
        titles: Iterable[str] | None = None,
        limit: Annotated[int, Ge(_FEWEST)] = _MOST,
        seed: int = 0,
        language: str = "en",
        name: str = "corpus",
        batch_size: int = 64,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        require_language("language", language)
        draw = random.Random(seed)
        documents = [*require_texts("texts", texts)]
        titles_by_row = [""] * len(documents) if titles is None else [*require_texts("titles", titles)]
        if len(titles_by_row) != len(documents):
            raise ValueError(
                f"titles has {len(titles_by_row)} entries and texts {len(documents)}: give one title per text."
            )
        remaining = iter(draw.sample(range(len(documents)), len(documents)))
        drawn: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {}  # a repeated document counts once
        usable: list[tuple[str, list[str]]] = []
        # Splitting takes most of the time, so only as many documents are split as are needed.
        while len(usable) < limit and (more := list(islice(remaining, limit - len(usable)))):
            for row in more:
                title = titles_by_row[row].strip()
                sentences = {_normalised(sentence): sentence for sentence in split_sentences(documents[row], language)}
                for part in (title, *split_sentences(title, language)):
                    sentences.pop(_normalised(part), None)
                drawn[(*sentences,)] = title, sentences
            counts = Counter(key for _, sentences in drawn.values() for key in sentences)
            kept = (
                (title, [text for key, text in sentences.items() if counts[key] == 1])
                for title, sentences in drawn.values()
            )
            usable = [(title, sentences) for title, sentences in kept if len(sentences) > 1]
        if len(usable) < self.min_documents:
            raise ValueError(
                f"only {len(usable)} of {len(documents)} texts have two or more sentences that occur in no other text "
                f"(split by the rules for {language!r}), and at least {self.min_documents} are needed. Provide more "
                f"documents, uncut.{' Check that titles and bodies are not swapped.' if any(titles_by_row) else ''}"
            )
        self.queries: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        for index, (title, document) in enumerate(usable):
            asked = draw.sample(range(len(document)), min(_QUESTIONS, len(document) - 1))
            rest = [text for row, text in enumerate(document) if row not in asked]
            self.answers[f"{index}"] = " ".join([title, *rest] if title else rest)
            self.queries |= {f"{index}-{row}": document[row] for row in asked}
        self.owners = np.array([int(key.partition("-")[0]) for key in self.queries])
        self._digest = digest(self.queries.values(), self.answers.values())
        self.name, self.primary_metric, self.batch_size = name, f"{name}_ndcg@10", batch_size
        self.word_scores: NDArray[np.float64] | None = None
        with suppress(ImportError):  # of the extra
            words = BM25([*self.answers.values()], language=language)
            self.word_scores = words.scores([*self.queries.values()])

    def __call__(  # type: ignore[override]  # as sentence-transformers does
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        metrics = {f"{self.name}_ndcg@10": self.judge(model).ndcg}
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def judge(self, model: SentenceTransformer) -> Judgement:
        """Each question's result, by the model's own similarity and with its prompts for queries and documents."""
        options: dict[str, Any] = {"batch_size": self.batch_size, "convert_to_tensor": True}
        queries = model.encode_query([*self.queries.values()], **options)
        answers = model.encode_document([*self.answers.values()], **options)
        similarities = model.similarity(queries, answers).double().cpu().numpy()  # (Q, N)
        if not np.isfinite(similarities).all():
            warn(f"{self.name}: the model's vectors are not finite (NaN or infinite), so its score is nan.")
            similarities = np.full_like(similarities, math.nan)
        leads = standardised(similarities)[np.arange(len(self.owners)), self.owners]
        mixed = None if self.word_scores is None else self._ranks(mix(similarities, self.word_scores))
        return Judgement(self.owners, self._ranks(similarities), leads, mixed, self._digest)

    def _ranks(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Q,) places of the questions' own documents, by (Q, N) scores."""
        own = scores[np.arange(len(self.owners)), self.owners]
        return np.where(np.isfinite(own), (scores >= own[:, None]).sum(axis=1), math.nan)

    def get_config_dict(self) -> dict[str, Any]:
        return {"questions": len(self.queries), "documents": len(self.answers), "digest": self._digest}


def _normalised(sentence: str) -> str:
    """The sentence in lower case, with numbers as 0 and no punctuation at its end, to find repeats."""
    return re.sub(r"\d+", "0", sentence).casefold().rstrip(" .!?:;\u2026\u3002\uff01\uff1f")
