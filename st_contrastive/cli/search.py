"""``st-contrastive search``: what a model finds in a file, or two models side by side."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from st_contrastive.cli._arguments import UserError, name, user_error, whole
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli.evaluate import path
from st_contrastive.methods import POOLINGS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EPILOG = """\
A second model is a folder, or a hub name such as intfloat/e5-small. Every other
argument is a query: put quotes around several words.
  st-contrastive search articles.csv all-MiniLM-L6-v2 out "why do leaves fall"

The number in brackets is the document's rank with the other model.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "search",
        help="search your documents with one model, or with two side by side",
        description="Print the documents of FILE that each model finds first for a query.",
        usage='st-contrastive search FILE MODEL [MODEL2] "QUERY" ["QUERY" ...] [options]',
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", type=path, metavar="FILE", help="your documents, as for train --data")
    parser.add_argument("model", type=path, metavar="MODEL", help="folder or hub name")
    parser.add_argument("words", nargs="+", type=name, metavar="QUERY", help="what to look for")
    parser.add_argument("--column", metavar="NAME", help="column of FILE, or two: title,body")
    parser.add_argument(
        "--pooling", choices=(*POOLINGS, "keep"), default="keep", metavar="NAME", help="as for evaluate"
    )
    parser.add_argument("--top", type=whole, default=5, metavar="N", help="documents of each model; default: 5")
    parser.add_argument("--bm25", action="store_true", help="mix with BM25: 0.7 of the model, 0.3 of BM25")
    parser.add_argument("--language", metavar="CODE", default="en", help="language of --bm25; default: en")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search with each model, and print what was found."""
    from st_contrastive import evaluation
    from st_contrastive.cli._models import load_model, read_documents
    from st_contrastive.evaluation.report import short_names

    if _is_model(args.data):
        raise UserError(f"{args.data} is a model: name the file of documents first.")
    models, queries = [args.model], [*args.words]
    is_name = len(queries) > 1 and re.fullmatch(r"[\w.-]+/[\w.-]+", queries[0])
    if is_name or _is_model(path(queries[0])):
        models.append(path(queries.pop(0)))
    if not queries:
        raise UserError(f"{models[1]} is read as the second model: give a query after it.")
    with user_error(OSError, TypeError, ValueError, prefix=f"{args.data}: "):
        documents = read_documents(args.data, args.column)
    with user_error(ImportError, ValueError, prefix="--bm25: "):
        words = evaluation.BM25(documents, language=args.language).scores(queries) if args.bm25 else None
    ranks = {}
    for model_name, short in zip(models, short_names(models), strict=True):
        model = load_model(model_name, pooling=args.pooling)
        print(f"Reading {len(documents):,} documents with {short}.", file=sys.stderr, flush=True)
        vectors = model.encode_document(documents, convert_to_tensor=True)
        scores = model.similarity(model.encode_query(queries, convert_to_tensor=True), vectors).double().cpu().numpy()
        if not math.isfinite(scores.sum()):
            raise UserError(f"{model_name}: its vectors are not finite (NaN), so that nothing can be ranked by them.")
        scores = scores if words is None else evaluation.mix(scores, words)
        ranks[short] = 1 + (-scores).argsort(axis=1, kind="stable").argsort(axis=1)  # (Q, N)
    found = []
    for index, query in enumerate(queries):
        own = {model_name: every[index] for model_name, every in ranks.items()}
        found.append({"query": query, "models": {each: _first(own, each, documents, args.top) for each in own}})
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print("\n\n".join(_table(each["query"], each["models"], colour) for each in found))
    return 0


def _is_model(folder: str) -> bool:
    return any(Path(folder, file).is_file() for file in ("config.json", "modules.json"))


_Found: TypeAlias = "list[dict[str, Any]]"


def _first(ranks: Mapping[str, NDArray[np.int64]], model: str, documents: Sequence[str], top: int) -> _Found:
    """The first documents of a model, each with its rank in every list."""
    rows = ranks[model].argsort()[:top]
    return [{"text": documents[row], "ranks": {each: int(own[row]) for each, own in ranks.items()}} for row in rows]


def _table(query: str, models: Mapping[str, _Found], colour: bool) -> str:
    """The lists side by side. Green is a document that the other list does not have."""
    width = shutil.get_terminal_size((120, 24)).columns // len(models) - 2
    columns = []
    for model, found in models.items():
        cells = [model[:width].ljust(width)]
        for document in found:
            others = [rank for other, rank in document["ranks"].items() if other != model]
            note = "".join(f" ({rank})" for rank in others)
            text = " ".join(f"{document['ranks'][model]}. {document['text']}".split())
            room = width - len(note)
            cell = ((text if len(text) <= room else f"{text[: room - 3]}...") + note).ljust(width)
            cells.append(f"\033[32m{cell}\033[0m" if colour and max(others, default=0) > len(found) else cell)
        columns.append(cells)
    return "\n".join([query, *("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))])
