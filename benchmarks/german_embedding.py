"""A German checkpoint of another embedding width, built from German text alone: tokenizer and embedding matrix.

python -m benchmarks.german_embedding --data train.jsonl.gz --output german/

It stands in for a pretrained one where none can be fetched: an uncased WordPiece vocabulary, and the leading singular
vectors of the tokens' positive pointwise mutual information in a window of four, in an ALBERT with untrained layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from sklearn.decomposition import TruncatedSVD
from tokenizers import BertWordPieceTokenizer
from transformers import AlbertConfig, AlbertModel, BertTokenizer

from st_contrastive.inputs import read_parallel


def train_tokenizer(sentences: Iterable[str], size: int) -> BertTokenizer:
    trained = BertWordPieceTokenizer(lowercase=True, strip_accents=False)
    trained.train_from_iterator(sentences, vocab_size=size, min_frequency=2, show_progress=False)
    return BertTokenizer(vocab=trained.get_vocab(), do_lower_case=True, strip_accents=False, model_max_length=512)


def embedding_matrix(tokenizer: BertTokenizer, sentences: list[str], width: int, window: int = 4) -> torch.Tensor:
    size = len(tokenizer)
    counts: Any = coo_matrix((size, size), dtype=np.float64)
    rows = tokenizer(sentences)["input_ids"]
    lengths = {len(row) for row in rows}
    for length in lengths:  # rows of one length are one array
        ids = np.array([row for row in rows if len(row) == length])
        for distance in range(1, min(window + 1, length)):
            first, second = ids[:, :-distance].ravel(), ids[:, distance:].ravel()
            ones = np.full(len(first), 1 / distance)
            counts = counts + coo_matrix((ones, (first, second)), shape=(size, size))
    counts = (counts + counts.T).tocoo()
    totals = np.asarray(counts.sum(axis=1)).ravel()
    smoothed = totals**0.75
    information = np.log(counts.data * smoothed.sum() / (totals[counts.row] * smoothed[counts.col]))
    keep = information > 0
    positive = coo_matrix((information[keep], (counts.row[keep], counts.col[keep])), shape=(size, size)).tocsr()
    svd = TruncatedSVD(width, random_state=0)
    vectors = svd.fit_transform(positive) / np.sqrt(svd.singular_values_)
    return torch.tensor(vectors / vectors.std() * 0.05, dtype=torch.float32)


def build_checkpoint(sentences: list[str], output: str | Path, size: int = 8000, width: int = 128) -> None:
    tokenizer = train_tokenizer(sentences, size)
    config = AlbertConfig(
        vocab_size=len(tokenizer),
        embedding_size=width,
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
    )
    model = AlbertModel(config)
    model.get_input_embeddings().weight.data = embedding_matrix(tokenizer, sentences, width)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, nargs="+", help="files of pairs, .tsv or .jsonl (.gz)")
    parser.add_argument("--languages", nargs=2, default=("en", "de"))
    parser.add_argument("--output", required=True)
    parser.add_argument("--size", type=int, default=8000, help="of the vocabulary")
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()
    german = [text for path in args.data for text in read_parallel(path, languages=tuple(args.languages)).translations]
    build_checkpoint(german, args.output, args.size, args.width)
    print(f"{args.output}: {args.size} tokens, {args.width} wide, from {len(german):,} sentences")


if __name__ == "__main__":
    main()
