"""Reads sets of documents, queries and judgements in BEIR's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from st_contrastive.evaluation._data_files import (
    EvaluationDataError,
    find,
    folders_in,
    number,
    read_lines,
    read_rows,
    text,
)


@dataclass(frozen=True)
class RetrievalSet:
    """Documents and queries by id, and for each query's id the gains of the relevant documents by id."""

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, float]]


def read_documents(folder: str | Path) -> dict[str, tuple[str, str]]:
    """Title ("" for none) and text of each document of a set in BEIR's form, by id.

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

    - ``corpus.jsonl`` with ``_id``, ``text`` and optionally ``title``, which is put before the text;
    - ``queries.jsonl`` or ``queries_<split>.jsonl`` with ``_id`` and ``text``;
    - ``qrels/<split>.tsv`` with query id, corpus id and score below a line of headings, or ``qrels_<split>.jsonl`` with
      ``query_id``, ``corpus_id`` and ``score``; each of them may be in either place.

    Each file may end in .gz. Queries without a judgement are left out.

    Raises:
        EvaluationDataError: a file is missing or can't be used, or no judged document is in the corpus.
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
    if not any(document in documents for gains in relevant.values() for document in gains):
        example = next(document for gains in relevant.values() for document in gains)
        raise EvaluationDataError(
            f"{root}: no document that split {split!r} judges is in the corpus, for example {example}. Corpus and "
            "judgements must belong to the same set."
        )
    return RetrievalSet(documents, {query: asked[query] for query in relevant}, relevant)


def judgements_file(root: Path, split: str) -> Path | None:
    """The file of a split's judgements, a table or rows of JSON, in ``root`` or in its folder ``qrels``."""
    stems = (root / f"qrels_{split}", root / "qrels" / split)
    rows = (find(stem.parent, stem.name) for stem in stems)
    tables = (Path(f"{stem}{ending}") for stem in stems for ending in (".tsv", ".tsv.gz"))
    return next(filter(None, rows), None) or next(filter(Path.is_file, tables), None)


def _judgements(root: Path, split: str) -> list[tuple[str, str, float, str]]:
    """Query id, document id, score and place in the file of each judgement."""
    path = judgements_file(root, split)
    if path is None:
        raise EvaluationDataError(f"{root} holds no qrels/{split}.tsv, nor qrels_{split}.jsonl (.gz).")
    found = []
    if ".tsv" not in path.suffixes:
        for row, where in read_rows(path, "query_id|query-id", "corpus_id|corpus-id", "score"):
            query, document = (str(row.get(f"{kind}_id", row.get(f"{kind}-id"))) for kind in ("query", "corpus"))
            found.append((query, document, number(row, "score", where), where))
        return found
    for place, (line, where) in enumerate(read_lines(path)):
        cells = line.split("\t")
        if len(cells) != 3:
            raise EvaluationDataError(f"{where} must be query id, corpus id and score between tabs.")
        if place == 0 and not _is_number(cells[2]):
            continue  # the headings
        found.append((cells[0], cells[1], number({"score": cells[2]}, "score", where, parse=True), where))
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def retrieval_sets(root: Path) -> dict[str, Path]:
    """The sets in a folder by name: itself, its folders, and their folders (BEIR's cqadupstack has twelve)."""
    if find(root, "corpus"):
        return {root.name if root.name.strip(".") else root.resolve().name: root}
    found: dict[str, Path] = {}
    for folder in folders_in(root):
        own = [folder] if find(folder, "corpus") else folders_in(folder)
        found |= {path.relative_to(root).as_posix(): path for path in own if find(path, "corpus")}
    return found
