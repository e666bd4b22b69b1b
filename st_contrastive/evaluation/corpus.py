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
from st_contrastive.evaluation._data import digest
from st_contrastive.evaluation.bm25 import BM25, mix, standardised
from st_contrastive.evaluation.paired import Judgement
from st_contrastive.inputs.segments import require_language, split_sentences

#: Sentences taken from each document, where at least one remains.
_QUESTIONS = 2


class CorpusEvaluator(SentenceEvaluator):
    """nDCG@10 of finding the document that a sentence was taken from: a score of an encoder on a corpus of one's own.

    Documents are drawn at random. What several of the drawn ones say is left out of all, such as "All rights reserved."
    or "Copyright 2024" (case and digits don't count): it belongs to no document. Of what remains, two sentences of each
    document are questions, and the others are the answer among those of the other documents. A call returns
    ``{"<name>_ndcg@10": value}``; ``metric_for_best_model="eval_corpus_ndcg@10"`` with ``load_best_model_at_end=True``
    keeps the best step. Whether one encoder is better than another, :func:`compare_paired` says of what :meth:`judge`
    gives for both.

    Args:
        texts: documents that are not trained on. Those without two sentences of their own are passed over.
        limit: at most so many documents.
        seed: of the documents and the sentences.
        language: code of the language by whose rules documents are cut into sentences.
        name: prefix of the metric's name.
        batch_size: of encoding.

    Attributes:
        min_documents: documents with two sentences of their own that ``texts`` must hold, 20.

    Raises:
        ValueError: there are fewer.
    """

    min_documents = 20

    @checked
    def __init__(
        self,
        texts: Iterable[str],
        *,
        limit: Annotated[int, Ge(20)] = 1000,
        seed: int = 0,
        language: str = "en",
        name: str = "corpus",
        batch_size: int = 64,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        require_language("language", language)
        draw = random.Random(seed)
        documents = [*require_texts("texts", texts)]
        remaining = iter(draw.sample(documents, len(documents)))
        drawn: dict[tuple[str, ...], dict[str, str]] = {}  # a repeated document counts once
        usable: list[list[str]] = []
        # Splitting takes the time: as many are split as are needed.
        while len(usable) < limit and (more := list(islice(remaining, limit - len(usable)))):
            for text in more:
                sentences = {_normalised(sentence): sentence for sentence in split_sentences(text, language)}
                drawn[(*sentences,)] = sentences
            holders = Counter(essence for sentences in drawn.values() for essence in sentences)
            own = ([text for key, text in sentences.items() if holders[key] == 1] for sentences in drawn.values())
            usable = [sentences for sentences in own if len(sentences) > 1]
        if len(usable) < self.min_documents:
            raise ValueError(
                f"of {len(documents)} texts, {len(usable)} have two sentences or more, by the rules for {language!r}, "
                f"that no other text has, and at least {self.min_documents} such documents are needed. Give more of "
                "them; whole ones, such as articles, and not their sentences."
            )
        self.queries: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        for index, document in enumerate(usable):
            asked = draw.sample(range(len(document)), min(_QUESTIONS, len(document) - 1))
            self.answers[f"{index}"] = " ".join(text for row, text in enumerate(document) if row not in asked)
            self.queries |= {f"{index}-{row}": document[row] for row in asked}
        self.owners = np.array([int(key.partition("-")[0]) for key in self.queries])
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
        return Judgement(self.owners, self._ranks(similarities), leads, mixed)

    def _ranks(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Q,) places of the questions' own documents, by (Q, N) scores."""
        own = scores[np.arange(len(self.owners)), self.owners]
        return np.where(np.isfinite(own), (scores >= own[:, None]).sum(axis=1), math.nan)

    def get_config_dict(self) -> dict[str, Any]:
        own = digest(self.queries.values(), self.answers.values())
        return {"questions": len(self.queries), "documents": len(self.answers), "digest": own}


def _normalised(sentence: str) -> str:
    """What two sentences that say the same have in common."""
    return re.sub(r"\d+", "0", sentence).casefold()
