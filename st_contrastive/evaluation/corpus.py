"""Judges an encoder on a corpus without labels."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator, SentenceEvaluator
from torch import Tensor

from st_contrastive._checks import require_count, require_texts, warn
from st_contrastive.inputs.readers import split_sentences

#: Sentences taken from each document, where at least one remains.
_QUESTIONS = 2


class CorpusEvaluator(SentenceEvaluator):
    """nDCG@10 of finding the document that a sentence was taken from: a score of an encoder on a corpus of one's own.

    Documents are drawn at random. What several of the drawn ones say is left out of all, such as "All rights reserved."
    or "Copyright 2024" (case and digits don't count): it belongs to no document. Of what remains, two sentences of each
    document are questions, and the others are the answer among those of the other documents. A call returns
    ``{"<name>_ndcg@10": value}``; ``metric_for_best_model="eval_corpus_ndcg@10"`` with ``load_best_model_at_end=True``
    keeps the best step. A difference below ``margin``, 0.02 for 400 questions and more for fewer, is no difference.

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

    def __init__(
        self,
        texts: Sequence[str],
        *,
        limit: int = 1000,
        seed: int = 0,
        language: str = "en",
        name: str = "corpus",
        batch_size: int = 64,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        require_count("limit", limit, least=self.min_documents)
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
                f"of {len(documents)} texts, {len(usable)} have two sentences or more that no other text has, and at "
                f"least {self.min_documents} such documents are needed. Give more of them; whole ones, such as "
                "articles, and not their sentences."
            )
        self.queries: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        relevant: dict[str, set[str]] = {}
        for place, document in enumerate(usable):
            asked = draw.sample(range(len(document)), min(_QUESTIONS, len(document) - 1))
            self.answers[f"{place}"] = " ".join(text for row, text in enumerate(document) if row not in asked)
            for row in asked:
                self.queries[f"{place}-{row}"], relevant[f"{place}-{row}"] = document[row], {f"{place}"}
        self.retrieval = InformationRetrievalEvaluator(
            self.queries, self.answers, relevant, mrr_at_k=[10], ndcg_at_k=[10], accuracy_at_k=[10],
            precision_recall_at_k=[10], map_at_k=[10], batch_size=batch_size, write_csv=False,
        )  # fmt: skip
        self.name, self.primary_metric = name, f"{name}_ndcg@10"
        self.margin = 0.02 * max(1.0, math.sqrt(400 / len(self.queries)))

    def __call__(  # type: ignore[override]  # as sentence-transformers does
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Score the model by its own similarity, with its prompts for queries and documents."""
        finite = True

        def similarity(queries: Tensor, answers: Tensor) -> Tensor:
            nonlocal finite
            finite = finite and bool(queries.isfinite().all() and answers.isfinite().all())
            return model.similarity(queries, answers)

        self.retrieval.score_functions = {"similarity": similarity}
        value = float(self.retrieval.compute_all_metrics(model)["similarity"]["ndcg@k"][10])  # type: ignore[index]
        if not finite:
            warn(f"{self.name}: the model's vectors are not finite (NaN or infinite), so its score is nan.")
        metrics = {f"{self.name}_ndcg@10": value if finite else math.nan}
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def get_config_dict(self) -> dict[str, Any]:
        return {"questions": len(self.queries), "documents": len(self.answers)}


def _normalised(sentence: str) -> str:
    """What two sentences that say the same have in common."""
    return re.sub(r"\d+", "0", sentence).casefold()
