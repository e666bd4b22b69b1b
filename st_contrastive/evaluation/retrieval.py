"""Retrieval: ranks the documents of a corpus by their similarity to a query."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SimilarityFunction

from st_contrastive.evaluation._data_files import EvaluationDataError, require_folder
from st_contrastive.evaluation._encoding import Encoder, encoded, unit
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.retrieval_data import RetrievalSet, judgements_file, read_retrieval, retrieval_sets
from st_contrastive.evaluation.sts import STSPairs

_QUERIES_AT_ONCE, _DOCUMENTS_AT_ONCE = 256, 50_000  # whose vectors and similarities are in memory at a time
#: Sets whose queries may be documents with the same id, which MTEB leaves out.
_SAME_IDS = ("arguana", "fever", "fiqa", "msmarco", "quora")


def ranked(
    model: Encoder,
    data: RetrievalSet,
    depth: int,
    *,
    batch_size: int = 64,
    progress: bool = False,
    ignore_identical_ids: bool = False,
) -> dict[str, list[str]]:
    """Ids of the ``depth`` documents most similar to each query, the most similar first.

    The similarity is the model's own (``model.similarity``), else the cosine. The corpus is encoded and searched in
    parts, so that its vectors are never in memory all at once. Of equally similar documents the one with the greater
    id comes first, as in trec_eval; if more tie than there is room for, it is arbitrary which are left out. A document
    whose vector is not finite comes last, and a query with such a vector finds nothing. With ``ignore_identical_ids``
    the document with the query's own id is left out.
    """

    def vectors_of(texts: Sequence[str], role: str) -> torch.Tensor:
        own = encoded(model, texts, batch_size=batch_size, progress=progress, role=role)
        return torch.from_numpy(own.astype(np.float32, copy=False))

    similarity = getattr(model, "similarity", None) or SimilarityFunction.to_similarity_fn("cosine")
    identities, documents = list(data.documents), list(data.documents.values())
    vectors = vectors_of(list(data.queries.values()), "query")
    best, places = torch.empty(len(vectors), 0), torch.empty(len(vectors), 0, dtype=torch.long)
    for start in range(0, len(documents), _DOCUMENTS_AT_ONCE):
        keys = vectors_of(documents[start : start + _DOCUMENTS_AT_ONCE], "document")
        own, near = _nearest(vectors, keys, depth + 1, similarity)
        best, places = torch.cat([best, own], dim=1), torch.cat([places, near + start], dim=1)
        best, kept = best.topk(min(depth + 1, best.shape[1]), dim=1)
        places = places.gather(1, kept)
    found: dict[str, list[str]] = {}
    rows = zip(data.queries, vectors.isfinite().all(dim=1).tolist(), best.tolist(), places.tolist(), strict=True)
    for query, is_finite, similarities, near_places in rows:
        near_ids = (identities[place] for place in near_places)
        by_rank = sorted(zip(similarities, near_ids, strict=True), reverse=True)
        others = [document for _, document in by_rank if not ignore_identical_ids or document != query]
        found[query] = others[:depth] if is_finite else []
    return found


def _nearest(
    vectors: torch.Tensor, keys: torch.Tensor, count: int, similarity: Callable[[Any, Any], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` greatest similarities of each vector, and their rows in ``keys``; (Q, count) each."""
    lost = ~keys.isfinite().all(dim=1)
    best, places = [], []
    for part in torch.split(vectors, _QUERIES_AT_ONCE):
        found = similarity(part, keys).cpu().nan_to_num(nan=-math.inf).masked_fill(lost, -math.inf)
        own, near = found.topk(min(count, len(keys)), dim=1)
        best.append(own)
        places.append(near)
    return torch.cat(best), torch.cat(places)


def ndcg(ranking: Sequence[str], gains: Mapping[str, float], cut: int = 10) -> float:
    """Normalised discounted cumulative gain of one query's ranking: gain / log2(rank + 1), as in trec_eval.

    Example:
        >>> round(ndcg(["b", "a"], {"a": 1.0}), 4)  # 1 / log2(3)
        0.6309
    """
    best = sorted((gain for gain in gains.values() if gain > 0), reverse=True)
    return _discounted([max(gains.get(document, 0), 0) for document in ranking[:cut]]) / _discounted(best[:cut])


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def recall(ranking: Sequence[str], gains: Mapping[str, float], cut: int) -> float:
    """Fraction of the relevant documents that are among the first ``cut``."""
    relevant = {document for document, gain in gains.items() if gain > 0}
    return len(relevant.intersection(ranking[:cut])) / len(relevant)


def evaluate_retrieval(
    model: Encoder,
    folder: str | Path,
    *,
    name: str = "model",
    split: str = "test",
    batch_size: int = 64,
    progress: bool = False,
    ignore_identical_ids: bool | None = None,
) -> Report:
    """nDCG@10 and recall at 1, 5, 10 and 100 on a set in BEIR's form, or on every such set in a folder.

    For a set with parts, such as BEIR's cqadupstack with its twelve, the report has the scores of each part
    ("cqadupstack/android") and their mean ("cqadupstack"). Only the latter counts in the mean over the sets, as in
    BEIR's tables.

    Documents are ranked by the model's own similarity, else by the cosine.

    Args:
        model: anything with ``encode``; its ``encode_query``, ``encode_document`` and ``similarity`` are used if it has
            them.
        folder: a set, see :func:`read_retrieval`, or a folder with one folder per set, which may hold one folder for
            each part of the set. A set without judgements of that split is left out, and a note says so.
        name: the model's name in the report.
        split: whose judgements are used.
        batch_size: of encoding.
        progress: show a bar over the batches.
        ignore_identical_ids: leave the document with a query's own id out of its ranking. None does so if every query
            is the text of the document with its id, and on the sets on which MTEB does, going by the folder's name:
            arguana, fever, fiqa, msmarco and quora. A note says so.

    Raises:
        EvaluationDataError: a file can't be used. All files are read before anything is encoded.
    """
    root = require_folder(folder, "sets in BEIR's form, or be one")
    places = retrieval_sets(root)
    if not places:
        raise EvaluationDataError(f"{root} holds no corpus.jsonl (.gz), nor a folder that does.")
    without = [task for task, place in places.items() if len(places) > 1 and judgements_file(place, split) is None]
    sets = {task: read_retrieval(place, split) for task, place in places.items() if task not in without}
    if not sets:
        raise EvaluationDataError(f"{root}: no set has judgements of split {split!r}, as qrels/{split}.tsv.")
    by_set: dict[str, list[Score]] = {}
    notes = [f"{task}: no judgements of split {split!r}; left out." for task in without]
    for task, data in sets.items():
        ignored = _queries_are_documents(task, data) if ignore_identical_ids is None else ignore_identical_ids
        rankings = ranked(model, data, 100, batch_size=batch_size, progress=progress, ignore_identical_ids=ignored)
        found = {"ndcg@10": [ndcg(rankings[query], gains) for query, gains in data.relevant.items()]}
        for cut in (1, 5, 10, 100):
            found[f"recall@{cut}"] = [recall(rankings[query], gains, cut) for query, gains in data.relevant.items()]
        scores = [Score(task, split, metric, float(np.mean(own)), len(own)) for metric, own in found.items()]
        by_set.setdefault(task.rpartition("/")[0] or task, []).extend(scores)
        if ignored:
            notes.append(f"{task}: the document with a query's own id is left out of its ranking.")
        judged = [document for gains in data.relevant.values() for document, gain in gains.items() if gain > 0]
        if missing := sum(document not in data.documents for document in judged):
            notes.append(f"{task}: {missing:,} of {len(judged):,} relevant documents are not in the corpus.")
        if lost := sum(not ranking for ranking in rankings.values()):
            notes.append(f"{task}: {lost:,} queries have vectors that are not finite, and find nothing.")
    every = [score for whole, scores in by_set.items() for score in (*scores, *_means_of_parts(whole, scores))]
    similarity = getattr(model, "similarity_fn_name", None) or "cosine"
    return Report(name, tuple(every), {"suite": "retrieval", "similarity": similarity}, tuple(notes))


def _means_of_parts(whole: str, scores: Sequence[Score]) -> list[Score]:
    """The mean of each metric over a set's parts; empty for a set without parts."""
    if any(score.task == whole for score in scores):
        return []
    by_metric: dict[str, list[Score]] = {}
    for score in scores:
        by_metric.setdefault(score.metric, []).append(score)
    return [
        Score(whole, own[0].split, metric, float(np.mean([score.value for score in own])), sum(s.size for s in own))
        for metric, own in by_metric.items()
    ]


def _queries_are_documents(task: str, data: RetrievalSet) -> bool:
    if any(data.relevant.get(identity, {}).get(identity, 0) > 0 for identity in data.queries):
        return False  # the document with the query's id is judged to be an answer
    words = re.findall("[a-z]+", task.lower())
    if "climate" not in words and any(name in words for name in _SAME_IDS):
        return True
    # A document's title comes before its text, and a query has none.
    return all(data.documents.get(identity, "").endswith(query.strip()) for identity, query in data.queries.items())


def evaluate_in_domain_retrieval(
    model: Encoder,
    pairs: STSPairs,
    *,
    name: str = "model",
    task: str = "stsb retrieval",
    min_score: float = 5.0,
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Recall at 1, 5 and 10 among the set's own sentences: the first of two that mean the same must find the second.

    Section 6.2 of InfoCSE, which has 97 positive pairs of the STS Benchmark's test set: as many as have score 5. All
    sentences of the set are searched, except the query, copies of its text, and further copies of the wanted sentence
    (the paper says nothing of copies).
    Ties count against the model: sentences as near as the wanted one are ranked before it. So an encoder that gives all
    sentences one vector finds nothing, and neither does one whose vectors are not finite.

    Args:
        model: anything with ``encode``.
        pairs: the set.
        name: the model's name in the report.
        task: name of the set.
        min_score: lowest score of a pair that means the same.
        batch_size: of encoding.
        progress: show a bar over the batches.

    Raises:
        EvaluationDataError: no pair has that score.
    """
    positive = [row for row, score in enumerate(pairs.scores) if score >= min_score]
    if not positive:
        raise EvaluationDataError(
            f"No pair has a gold score of {min_score} or more: scale the scores to 0 to 5, or, in Python, lower "
            "min_score."
        )
    texts = np.asarray((*pairs.first, *pairs.second), dtype=object)
    vectors = unit(encoded(model, list(texts), batch_size=batch_size, progress=progress))
    ranks = []
    for query in positive:
        wanted = query + len(pairs)
        near = vectors @ vectors[query]
        others = (texts != texts[query]) & (texts != texts[wanted])
        ranks.append(1.0 + (near[others] >= near[wanted]).sum() if np.isfinite(near[wanted]) else math.inf)
    recalls = {f"recall@{cut}": float(np.mean([rank <= cut for rank in ranks])) for cut in (1, 5, 10)}
    scores = tuple(Score(task, "test", metric, value, len(ranks)) for metric, value in recalls.items())
    lost = sum(map(math.isinf, ranks))
    notes = (f"{task}: {lost:,} pairs have vectors that are not finite, and find nothing.",) if lost else ()
    settings = {"suite": "in-domain retrieval", "min_score": min_score, "sentences": 2 * len(pairs)}
    return Report(name, scores, settings, notes)
