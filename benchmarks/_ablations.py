"""What a part of a method brings: recipes with it and without it, from the same seeds."""

from __future__ import annotations

from typing import Any

from benchmarks._replicated import (
    as_it_is,
    differences,
    first,
    groups,
    named,
    of_sts,
    over,
    plain,
    pooling_of,
    shared_tests,
    title,
)

#: A recipe, and the one that it is a change of.
CHANGE_OF = {
    "mini-conisi-o1": "mini-conisi-s",
    "mini-conisi-o2": "mini-conisi-s",
    "mini-simcse-mlm": "mini-simcse",
    "mini-twins-one-column": "mini-twins",
    "mini-twins-no-margin": "mini-twins",
    "mini-twins-no-margin-no-queue": "mini-twins",
    "mini-twins-no-queue": "mini-twins",
    "mini-twins-moco": "mini-twins",
    "mini-twins-one-column-no-queue": "mini-twins-one-column",
    "mini-twins-one-column-momentum-keys": "mini-twins-one-column",
    "mini-infocse-stage1": "mini-infocse",
    "mini-infocse-rtd": "mini-infocse",
    "mini-infocse-tanh": "mini-infocse",
    "mini-infocse-no-head": "mini-infocse",
    "mini-combined": "mini-conisi-s",
}


def rows(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows: of each change that was run, by how much it is over what it is a change of."""
    found = groups(of_sts(result["cells"]), start)
    tests = shared_tests(result, start, found)
    lines = []
    for (name, *_), own in found.items():
        theirs = as_it_is(CHANGE_OF.get(name, ""), own, found) if plain(own) else {}
        if theirs:
            compared = [differences(own, theirs, which, tests) for which in ("dev", "mean")]
            pooling = named(pooling_of(first(own)))
            lines.append([title(own), title(theirs), pooling, str(len(compared[0])), *map(over, compared)])
    return ["", "over", "pooling", "seeds", "dev (95 %)", "tests (95 %)"], lines
