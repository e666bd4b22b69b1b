"""Retrieval: documents of a corpus ranked by cosine similarity with a query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from st_contrastive.evaluation._encoding import Encoder, encoded, unit
from st_contrastive.evaluation._files import EvaluationDataError, find, number, read_lines, read_rows, text
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs

_AT_ONCE, _KEYS_AT_ONCE = 256, 100_000  # queries and documents whose similarities are held at a time
#: Sets whose queries are, or may be, documents by the same id, which MTEB leaves out.
_SAME_IDS = ("arguana", "fever", "fiqa", "msmarco", "quora")


@dataclass(frozen=True)
class RetrievalSet:
    """Documents and queries by id, and the gain of each document that is relevant to a query."""

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, float]]


def read_documents(folder: str | Path) -> dict[str, tuple[str, str]]:
    """Title ("" where it has none) and text of each document of a set in BEIR's form, by id.

    Raises:
        EvaluationDataError: ``corpus.jsonl`` (.gz) is missing or can't be used.
    """
    corpus = find(Path(folder), "corpus")
    if corpus is None:
        raise EvaluationDataError(f"{folder} holds no corpus.jsonl (.gz). It must be a folder in BEIR's form.")
    documents = {}
    for row, where in read_rows(corpus, "_id", "text"):
        title = text(row, "title", where).strip() if row.get("title") else ""
        documents[str(row["_id"])] = title, text(row, "text", where).strip()
    return documents


def read_retrieval(folder: str | Path, split: str = "test") -> RetrievalSet:
    """Read a set in BEIR's form.

    ``corpus.jsonl`` of ``_id``, ``text`` and maybe ``title``, which is put before the text; ``queries.jsonl`` (or
    ``queries_<split>.jsonl``) of ``_id`` and ``text``; ``qrels/<split>.tsv`` of query id, corpus id and score, with a
    head line (or ``qrels_<split>.jsonl`` of ``query_id``, ``corpus_id``, ``score``). Each may end in .gz. Queries
    without a judgement are left out.

    Raises:
        EvaluationDataError: a file is missing or can't be used.
    """
    root = Path(folder)
    documents = {identity: " ".join(filter(None, parts)) for identity, parts in read_documents(root).items()}
    queries = find(root, f"queries_{split}", "queries")
    if queries is None:
        missing = f"queries.jsonl, nor queries_{split}.jsonl"
        raise EvaluationDataError(f"{root} holds no {missing} (.gz). It must be a folder in BEIR's form.")
    asked = {str(row["_id"]): text(row, "text", where) for row, where in read_rows(queries, "_id", "text")}
    relevant: dict[str, dict[str, float]] = {}
    for query, document, gain, where in _judgements(root, split):
        if query not in asked:
            raise EvaluationDataError(f"{where}: query {query} is not in {queries}.")
        relevant.setdefault(query, {})[document] = gain
    relevant = {query: gains for query, gains in relevant.items() if any(gain > 0 for gain in gains.values())}
    if not relevant:
        raise EvaluationDataError(f"{root} holds no judgement of split {split!r} with a score above 0.")
    return RetrievalSet(documents, {query: asked[query] for query in relevant}, relevant)


def _judgements(root: Path, split: str) -> list[tuple[str, str, float, str]]:
    path = find(root, f"qrels_{split}")
    if path is not None:
        return [
            (str(row["query_id"]), str(row["corpus_id"]), number(row, "score", where), where)
            for row, where in read_rows(path, "query_id", "corpus_id", "score")
        ]
    tables = [root / "qrels" / f"{split}{ending}" for ending in (".tsv", ".tsv.gz")]
    table = next((table for table in tables if table.is_file()), None)
    if table is None:
        raise EvaluationDataError(f"{root} holds no qrels/{split}.tsv, nor qrels_{split}.jsonl (.gz).")
    found = []
    for place, (line, where) in enumerate(read_lines(table)):
        row = line.split("\t")
        if len(row) != 3:
            raise EvaluationDataError(f"{where} must be query id, corpus id and score between tabs.")
        if place == 0 and not _is_number(row[2]):
            continue  # the head
        found.append((row[0], row[1], number({"score": row[2]}, "score", where, written=True), where))
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def ranked(
    model: Encoder,
    data: RetrievalSet,
    depth: int,
    *,
    batch_size: int = 64,
    progress: bool = False,
    ignore_identical_ids: bool = False,
) -> dict[str, list[str]]:
    """Ids of the ``depth`` documents nearest to each query by cosine similarity, the nearest first.

    With ``ignore_identical_ids`` the document that has a query's own id is not among them.
    """
    identities, queries = list(data.documents), list(data.queries)
    documents = encoded(model, list(data.documents.values()), batch_size=batch_size, progress=progress, role="document")
    asked = encoded(model, list(data.queries.values()), batch_size=batch_size, progress=progress, role="query")
    parts = (torch.from_numpy(np.asarray(part, dtype=np.float32)) for part in (documents, asked))
    keys, vectors = (torch.nn.functional.normalize(part, dim=1) for part in parts)
    found: dict[str, list[str]] = {}
    for start in range(0, len(queries), _AT_ONCE):
        near = _nearest(vectors[start : start + _AT_ONCE], keys, min(depth + 1, len(identities)))
        for query, row in zip(queries[start : start + _AT_ONCE], near.tolist(), strict=True):
            by_rank = [identities[place] for place in row]
            if ignore_identical_ids:
                by_rank = [document for document in by_rank if document != query]
            found[query] = by_rank[:depth]
    return found


def _nearest(vectors: torch.Tensor, keys: torch.Tensor, count: int) -> torch.Tensor:
    """Rows of the ``count`` largest products with each vector, (Q, count), the largest first."""
    best = torch.empty(len(vectors), 0)
    places = torch.empty(len(vectors), 0, dtype=torch.long)
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        own = vectors @ keys[start : start + _KEYS_AT_ONCE].T
        own, near = own.topk(min(count, own.shape[1]), dim=1)
        best, places = torch.cat([best, own], dim=1), torch.cat([places, near + start], dim=1)
        best, kept = best.topk(min(count, best.shape[1]), dim=1)
        places = places.gather(1, kept)
    return places


def ndcg(ranking: Sequence[str], gains: Mapping[str, float], cut: int = 10) -> float:
    """Normalised discounted cumulative gain of one query's ranking: gain over log2(rank + 1), as trec_eval counts it.

    Example:
        >>> round(ndcg(["b", "a"], {"a": 1.0}), 4)  # 1 / log2(3)
        0.6309
    """
    best = sorted((gain for gain in gains.values() if gain > 0), reverse=True)
    return _discounted([max(gains.get(document, 0), 0) for document in ranking[:cut]]) / _discounted(best[:cut])


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def recall(ranking: Sequence[str], gains: Mapping[str, float], cut: int) -> float:
    """Share of the relevant documents among the first ``cut``."""
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

    Args:
        model: anything with ``encode``; ``encode_query`` and ``encode_document`` are taken where it has them.
        folder: a set, see :func:`read_retrieval`, or a folder with one folder a set.
        name: the model's name in the report.
        split: whose judgements are taken.
        batch_size: of encoding.
        progress: show a bar over the batches.
        ignore_identical_ids: leave the document with a query's own id out of its ranking. None: where every query is
            the document with its id, and on the sets where MTEB does: arguana, fever, fiqa, msmarco and quora, as the
            folder's name has it. A note says so.

    Raises:
        EvaluationDataError: a file can't be used; all are read before anything is encoded.
    """
    root = Path(folder)
    if not root.is_dir():
        raise EvaluationDataError(f"{root} is not a folder. It must hold sets in BEIR's form, or be one.")
    places = [root] if find(root, "corpus") else [p for p in sorted(root.iterdir()) if p.is_dir() and find(p, "corpus")]
    if not places:
        raise EvaluationDataError(f"{root} holds no corpus.jsonl (.gz), nor a folder that does.")
    sets = {place.resolve().name: read_retrieval(place, split) for place in places}
    scores: list[Score] = []
    notes = []
    for task, data in sets.items():
        same = _queries_are_documents(task, data) if ignore_identical_ids is None else ignore_identical_ids
        rankings = ranked(model, data, 100, batch_size=batch_size, progress=progress, ignore_identical_ids=same)
        found = {"ndcg@10": [ndcg(rankings[query], gains) for query, gains in data.relevant.items()]}
        for cut in (1, 5, 10, 100):
            found[f"recall@{cut}"] = [recall(rankings[query], gains, cut) for query, gains in data.relevant.items()]
        scores += [Score(task, split, metric, float(np.mean(own)), len(own)) for metric, own in found.items()]
        if same:
            notes.append(f"{task}: the document with a query's own id is left out of its ranking.")
    return Report(name, tuple(scores), {"suite": "retrieval", "similarity": "cosine"}, tuple(notes))


def _queries_are_documents(task: str, data: RetrievalSet) -> bool:
    words = task.lower()
    if "climate" not in words and any(name in words for name in _SAME_IDS):
        return True
    # Titles come before the text, and queries are without.
    return all(data.documents.get(identity, "").endswith(query) for identity, query in data.queries.items())


def in_domain_retrieval(
    model: Encoder, pairs: STSPairs, *, least: float = 5.0, batch_size: int = 64, progress: bool = False
) -> dict[str, float]:
    """Whether the first sentence of a pair that means the same finds the second among all sentences of the set.

    Section 6.2 of InfoCSE, which takes the test set of the STS Benchmark: the 97 pairs of score 5, and its 2,758
    sentences. The query itself, and copies of its text, are not among the sentences, but for the one that is looked
    for.

    Args:
        model: anything with ``encode``.
        pairs: the set.
        least: score from which a pair means the same.
        batch_size: of encoding.
        progress: show a bar over the batches.

    Returns:
        recall@1, recall@5 and recall@10.

    Raises:
        EvaluationDataError: no pair has that score.
    """
    positive = [row for row, score in enumerate(pairs.scores) if score >= least]
    if not positive:
        raise EvaluationDataError(f"No pair has a score of {least} or more: there is nothing to find.")
    texts = np.asarray((*pairs.first, *pairs.second), dtype=object)
    vectors = unit(encoded(model, list(texts), batch_size=batch_size, progress=progress))
    ranks = []
    for row in positive:
        query, wanted = row, row + len(pairs)
        near = vectors @ vectors[query]
        others = texts != texts[query]
        ranks.append(1 + int((near[others] > near[wanted]).sum()))
    return {f"recall@{cut}": float(np.mean([rank <= cut for rank in ranks])) for cut in (1, 5, 10)}


def evaluate_in_domain_retrieval(
    model: Encoder, pairs: STSPairs, *, name: str = "model", task: str = "stsb retrieval", **options: Any
) -> Report:
    """:func:`in_domain_retrieval` as a report."""
    found = in_domain_retrieval(model, pairs, **options)
    least = options.get("least", 5.0)
    size = sum(score >= least for score in pairs.scores)
    scores = tuple(Score(task, "test", metric, value, size) for metric, value in found.items())
    return Report(name, scores, {"suite": "in-domain retrieval", "least": least, "sentences": 2 * len(pairs)})
