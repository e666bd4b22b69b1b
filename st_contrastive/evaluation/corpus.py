"""Judges an encoder on a corpus without labels."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator, SentenceEvaluator
from torch import Tensor

from st_contrastive._checks import require_count, require_texts, warn
from st_contrastive.inputs.sentences import split_sentences

#: Sentences taken from each document, where at least one remains; and the fewest documents to choose from.
_QUESTIONS, _FEWEST = 2, 20


class CorpusEvaluator(SentenceEvaluator):
    """nDCG@10 of finding the document that a sentence was taken from: a score of an encoder on a corpus of one's own.

    Two sentences of each document are questions, and the rest of it is the answer among those of the others. A call
    returns ``{"<name>_ndcg@10": value}``; ``metric_for_best_model="eval_corpus_ndcg@10"`` with
    ``load_best_model_at_end=True`` keeps the best step. A difference below ``margin``, 0.02 for 400 questions and more
    for fewer, is no difference.

    Args:
        texts: documents that are not trained on. One of fewer than two different sentences is left out, and counted in
            ``left_out``; so is a repeated one.
        limit: at most so many documents, drawn at random.
        seed: of the documents and the sentences.
        language: code of the language by whose rules documents are cut into sentences.
        name: prefix of the metric's name.
        batch_size: of encoding.

    Raises:
        ValueError: too few documents are left.
    """

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
        require_count("limit", limit, least=_FEWEST)
        documents = [list(dict.fromkeys(split_sentences(text, language))) for text in require_texts("texts", texts)]
        usable = list({" ".join(sentences): sentences for sentences in documents if len(sentences) > 1}.values())
        self.left_out = len(documents) - len(usable)
        if len(usable) < _FEWEST:
            raise ValueError(
                f"texts holds {len(usable)} different documents of two sentences or more, of {len(documents)}; at "
                f"least {_FEWEST} are needed: give whole documents, such as articles, not their sentences."
            )
        draw = random.Random(seed)
        self.queries: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        relevant: dict[str, set[str]] = {}
        for place, sentences in enumerate(draw.sample(usable, min(limit, len(usable)))):
            asked = draw.sample(range(len(sentences)), min(_QUESTIONS, len(sentences) - 1))
            self.answers[f"{place}"] = " ".join(text for row, text in enumerate(sentences) if row not in asked)
            for row in asked:
                self.queries[f"{place}-{row}"], relevant[f"{place}-{row}"] = sentences[row], {f"{place}"}
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
