"""``st-contrastive search``: the documents that a model finds in a file, or two models side by side."""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from st_contrastive._files import is_in_hub_cache
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._user_errors import UserError, parse_path, parse_query, positive_number, user_error
from st_contrastive.poolings import POOLINGS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from st_contrastive.inputs import Documents

#: One of these files marks a folder as a model.
_MODEL_FILES = ("config.json", "modules.json")
_EPILOG = """\
An argument is a second model if it is a folder, or the hub name of a model that
was downloaded before, such as intfloat/e5-small. Every other argument is a
query: put quotes around several words. Put a query that begins with dashes at
the end, after a bare --.
  st-contrastive search articles.csv all-MiniLM-L6-v2 out "why do leaves fall"

Rows are counted from 0, not including the heading. A number in brackets is the
document's rank with the other model.

Document vectors are cached in ~/.cache/st_contrastive, and reused for the same
texts and weights. To empty the cache, delete the folder. ST_CONTRASTIVE_CACHE
sets another folder, and --no_cache turns the cache off.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "search",
        help="search your documents with one model, or with two side by side",
        description="Print the documents of FILE that each model ranks first for a query. Every row with text is a "
        "document.",
        usage='st-contrastive search FILE MODEL [MODEL2] "QUERY" ["QUERY" ...] [options]',
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", type=parse_path, metavar="FILE", help="your documents, as for train --data")
    parser.add_argument("model", type=parse_path, metavar="MODEL", help="folder or hub name")
    parser.add_argument("words", nargs="+", type=parse_query, metavar="QUERY", help="what to search for")
    parser.add_argument("--column", metavar="NAME", help="column of FILE, or two: title,body")
    parser.add_argument("--keep", metavar="NAMES", default="", help="other columns to show, such as --keep id,name")
    parser.add_argument(
        "--pooling", choices=(*POOLINGS, "keep"), default="keep", metavar="NAME", help="as for evaluate"
    )
    parser.add_argument("--top", type=positive_number, default=5, metavar="N", help="results per model; default: 5")
    parser.add_argument("--bm25", action="store_true", help="mix the model's similarities with BM25 (extra: search)")
    parser.add_argument("--language", metavar="CODE", default="en", help="language of --bm25; default: en")
    parser.add_argument("--json", action="store_true", help="print JSON, with whole texts")
    parser.add_argument("--no_cache", action="store_true", help="do not use the cache of document vectors")
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search with each model, and print the results."""
    from st_contrastive import evaluation
    from st_contrastive.cli.models import load_model
    from st_contrastive.evaluation.report import short_names, to_json
    from st_contrastive.inputs import load_documents

    if _is_model(args.data):
        raise UserError(f"{args.data} is a model: name the file of documents first.")
    models, queries = _models_and_queries(args.model, args.words)
    with user_error(OSError, TypeError, ValueError):
        documents = load_documents(args.data, columns=args.column, keep=args.keep or ())
    if len(queries) > 1:
        print(f"{len(queries)} queries: {', '.join(map(repr, queries))}.", file=sys.stderr)
    if documents.note:
        print(documents.note, file=sys.stderr)
    texts = documents.texts
    with user_error(ImportError, ValueError, prefix="--bm25: "):
        bm25_scores = evaluation.BM25(texts, language=args.language).scores(queries) if args.bm25 else None
    scores, similarity = {}, ""
    for model_name, short in zip(models, short_names(models), strict=True):
        model = load_model(model_name, pooling=args.pooling)
        similarity = str(model.similarity_fn_name).replace("_", " ")
        found = _similarities(model, short, texts, queries, keep_vectors=not args.no_cache)
        del model  # before the next one is loaded
        if not math.isfinite(found.sum()):
            raise UserError(f"{model_name}: its vectors are not finite (NaN), so they can't rank documents.")
        scores[short] = found if bm25_scores is None else evaluation.mix(found, bm25_scores)
    ranked_by = f"{similarity} similarity" if bm25_scores is None else evaluation.bm25.describe_mixture(similarity)
    results: list[dict[str, Any]] = [
        {"query": query, "ranked_by": ranked_by, "models": _results(index, scores, documents, args.top)}
        for index, query in enumerate(queries)
    ]
    if args.json:
        print(to_json(results))
    else:
        is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print("\n\n".join(_table(**result, is_coloured=is_coloured) for result in results))
    return 0


def _is_model(folder: str) -> bool:
    return any(Path(folder, file).is_file() for file in _MODEL_FILES)


def _models_and_queries(model: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The models and the queries: the first word is a second model if it names a model on this machine."""
    second, *others = words
    folder = parse_path(second)
    if _is_model(folder) or is_in_hub_cache(second, *_MODEL_FILES):
        if not others:
            raise UserError(f"{second} is read as the second model: add a query after it.")
        return [model, folder], others
    if others and Path(folder).is_dir():
        raise UserError(f"{second} is a folder without a model. If it is a query, put it after another query.")
    if others and re.fullmatch(r"[\w.-]+/[\w.-]+", second):
        print(f"{second} is read as a query. As a model, download it first: hf download {second}", file=sys.stderr)
    return [model], [*words]


def _similarities(
    model: SentenceTransformer, name: str, texts: list[str], queries: list[str], *, keep_vectors: bool
) -> NDArray[np.float64]:
    """(Q, N) similarities of the queries and the documents."""
    from st_contrastive.cli.models import default_batch_size
    from st_contrastive.cli.vector_cache import cache_folder, cached_vectors

    def encode() -> Any:
        print(f"Encoding {len(texts):,} documents with {name}.", file=sys.stderr, flush=True)
        is_terminal, batch_size = sys.stderr.isatty(), default_batch_size(model)
        return model.encode_document(texts, batch_size=batch_size, show_progress_bar=is_terminal)

    if keep_vectors:
        vectors, were_kept = cached_vectors(model, texts, encode)
        if were_kept:
            print(f"Vectors of {name} from the cache in {cache_folder()}.", file=sys.stderr, flush=True)
    else:
        vectors = encode()
    similarities: NDArray[np.float64] = model.similarity(model.encode_query(queries), vectors).double().cpu().numpy()
    return similarities


_Results: TypeAlias = "dict[str, list[dict[str, Any]]]"


def _results(index: int, scores: Mapping[str, NDArray[np.float64]], documents: Documents, top: int) -> _Results:
    """The top documents of each model for one query, with their ranks by every model."""
    orders = {model: (-found[index]).argsort(kind="stable") for model, found in scores.items()}
    ranks = {model: order.argsort() + 1 for model, order in orders.items()}
    return {
        model: [
            {
                "row": documents.rows[place],
                "kept": {name: values[place] for name, values in documents.kept.items()},
                "title": documents.titles[place],
                "text": documents.bodies[place],
                "score": float(scores[model][index, place]),
                "ranks": {other: int(found[place]) for other, found in ranks.items()},
            }
            for place in map(int, order[:top])
        ]
        for model, order in orders.items()
    }


def _table(query: str, ranked_by: str, models: _Results, is_coloured: bool) -> str:
    """The results of the models side by side. Documents that the other model does not list are green."""
    width = shutil.get_terminal_size((120, 24)).columns // len(models) - 2
    has_titles = any(document["title"] for found in models.values() for document in found)
    columns = []
    for model, found in models.items():
        lines = [_cut(model, width)]
        for document in found:
            others = [rank for other, rank in document["ranks"].items() if other != model]
            kept = f" [{', '.join(map(str, document['kept'].values()))}]" if document["kept"] else ""
            place = f"{document['ranks'][model]}. {document['score']:.2f}  row {document['row']}{kept}"
            note = "".join(f" ({rank})" for rank in others)
            parts = [f"{document['title']}", f"    {document['text']}"] if has_titles else [document["text"]]
            cells = [_cut(f"{place}  {parts[0]}", width, note), *(_cut(part, width) for part in parts[1:])]
            is_green = is_coloured and max(others, default=0) > len(found)
            lines += [f"\033[32m{cell}\033[0m" for cell in cells] if is_green else cells
        columns.append(lines)
    heading = [query, f"Ranked by {ranked_by}"]
    return "\n".join([*heading, *("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))])


def _cut(text: str, width: int, note: str = "") -> str:
    """The text on one line of this width, cut if it is longer, and followed by the note."""
    indent = text[: len(text) - len(text.lstrip())]
    text = indent + "  ".join(" ".join(part.split()) for part in text.strip().split("  ", 1))
    room = width - len(note)
    return ((text if len(text) <= room else f"{text[: room - 3]}...") + note).ljust(width)
