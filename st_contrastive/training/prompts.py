"""Chooses the prompts of training texts: the prompts with which the model will later encode such texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sentence_transformers import SentenceTransformer

#: One prompt for all texts, prompts by column, or prompts by dataset and column.
Prompts: TypeAlias = str | dict[str, str] | dict[str, dict[str, str]] | None

#: Prompt names in the order in which sentence-transformers looks for them.
_QUERY, _DOCUMENT = ("query",), ("document", "passage", "corpus")


def column_prompts(model: SentenceTransformer, columns: Sequence[str], *, same_kind: bool) -> dict[str, str]:
    """The prompt of each text column of a dataset.

    A single column and columns of the ``same_kind`` (a sentence and its translation) take the prompt of ``encode``.
    Otherwise the first column takes the prompt of ``encode_query``, and other columns the ``encode_document`` prompt.
    """
    default = (model.default_prompt_name or "",)
    if same_kind or len(columns) == 1:
        return dict.fromkeys(columns, _first(model, default))
    query, document = _first(model, (*_QUERY, *default)), _first(model, (*_DOCUMENT, *default))
    return {column: document if index else query for index, column in enumerate(columns)}


def simplest(by_dataset: Mapping[str, dict[str, str]]) -> Prompts:
    """The prompts in the simplest form that sentence-transformers' collator accepts.

    A single dataset has an empty name.

    Raises:
        ValueError: one of several datasets has no name, so the collator could not tell which prompts are for it.
    """
    prompts = {prompt for columns in by_dataset.values() for prompt in columns.values()}
    if len(prompts) < 2:
        return prompts.pop() or None if prompts else None
    if "" in by_dataset and len(by_dataset) > 1:
        raise ValueError(
            "The model has prompts, and train_dataset or eval_dataset is a dict and the other one is not. Pass both as "
            'dicts, such as eval_dataset={"dev": data}.'
        )
    return by_dataset[""] if "" in by_dataset else dict(by_dataset)


def _first(model: SentenceTransformer, names: Sequence[str]) -> str:
    return next((model.prompts[name] or "" for name in names if name in model.prompts), "")
