"""Search in Qdrant with a trained encoder and BM25, mixed as ``mix`` does it.

    pip install qdrant-client ".[search]"
    python examples/search_in_qdrant.py articles.csv title,body out "why do leaves fall" "late trains"

Qdrant stores two vectors of each document: the encoder's, and a sparse one whose dot product with the query's is the
BM25 score. Here it runs in this process; `QdrantClient("http://localhost:6333")` is a server.
"""

from __future__ import annotations

import sys

import numpy as np
from qdrant_client import QdrantClient, models
from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation import BM25, bm25
from st_contrastive.inputs import load_documents

#: Candidates that each of the two searches passes to the mixture, and documents that tell how far scores spread.
CANDIDATES, SAMPLE = 1000, 1000


def sparse(row) -> models.SparseVector:
    """A row of a sparse matrix, in Qdrant's words."""
    return models.SparseVector(indices=row.indices.tolist(), values=row.data.tolist())


class Index:
    """Documents in a collection of Qdrant, and searches in them."""

    def __init__(self, client: QdrantClient, model: SentenceTransformer, texts: list[str]) -> None:
        self.client, self.model, self.words = client, model, BM25(texts)
        vectors, sparse_vectors = model.encode_document(texts, normalize_embeddings=True), self.words.document_vectors()
        size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
        client.create_collection("documents", {"text": size}, {"words": models.SparseVectorParams()})
        points = (
            models.PointStruct(id=row, vector={"text": vectors[row].tolist(), "words": sparse(sparse_vectors[[row]])})
            for row in range(len(texts))
        )
        client.upload_points("documents", points)
        sample = np.random.default_rng(0).permutation(len(texts))[:SAMPLE]
        self.sample, self.sample_words = vectors[sample], sparse_vectors[sample]

    def search(self, query: str, limit: int = 10, fusion: models.Fusion | None = None) -> list[tuple[int, float]]:
        """Rows and scores of the first documents: 0.7 of the encoder and 0.3 of BM25, or a fusion of Qdrant's."""
        vector = self.model.encode_query([query], normalize_embeddings=True)[0]
        words = self.words.query_vectors([query])
        searches = [
            models.Prefetch(query=vector.tolist(), using="text", limit=CANDIDATES),
            models.Prefetch(query=sparse(words), using="words", limit=CANDIDATES),
        ]
        mixture = models.FusionQuery(fusion=fusion) if fusion else self.mixture(vector, words)
        found = self.client.query_points("documents", prefetch=searches, query=mixture, limit=limit).points
        return [(int(point.id), point.score) for point in found]

    def mixture(self, vector: np.ndarray, words) -> models.FormulaQuery:
        """The sum of both z-scores. Their means are equal for all documents of a query, so the ranking needs none."""
        similarities, word_scores = self.sample @ vector, (self.sample_words @ words.T).toarray()
        weights = bm25.WEIGHT / similarities.std(), (1 - bm25.WEIGHT) / (word_scores.std() or 1)
        parts = [models.MultExpression(mult=[float(weight), f"$score[{n}]"]) for n, weight in enumerate(weights)]
        # A document that one of the searches did not return has a mean similarity, or shares no word.
        defaults = {"$score[0]": float(similarities.mean()), "$score[1]": 0.0}
        return models.FormulaQuery(formula=models.SumExpression(sum=parts), defaults=defaults)


def main(file: str, column: str, model: str, *queries: str) -> Index:
    """Index the documents, and print the first five for each query."""
    documents = load_documents(file, columns=column)
    index = Index(QdrantClient(":memory:"), SentenceTransformer(model), documents.texts)
    for query in queries:
        print(query)
        for place, (row, score) in enumerate(index.search(query, limit=5), start=1):
            print(f"{place}. row {documents.rows[row]}  {score:.2f}  {documents.texts[row]:.80}")
    return index


if __name__ == "__main__":
    index = main(*sys.argv[1:])
