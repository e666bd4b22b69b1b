"""Docstrings as Markdown: Sphinx's roles become code, its mathematics TeX, and its grid tables stay as they are."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:class|meth|func|mod|attr):`~?(?:[\w.]+\.)?(\w+)`")
MATHEMATICS = re.compile(r":math:`([^`]+)`", re.DOTALL)
DISPLAYED = re.compile(r"^([ \t]*)\.\. math::(.*\n(?:\1[ \t]+\S.*\n?)*)", re.MULTILINE)
#: Griffe knows the section under this name.
EXAMPLE = re.compile(r"\bExample:$", re.MULTILINE)
GRID = re.compile(r"(?:^[ \t]*[+|][^\n]*[+|]\n?)+", re.MULTILINE)


def _fenced(found: re.Match[str]) -> str:
    table = found[0].rstrip("\n")
    indent = table[: len(table) - len(table.lstrip())]
    return f"{indent}```text\n{table}\n{indent}```\n"


def _displayed(found: re.Match[str]) -> str:
    lines = "\n".join(line.strip() for line in found[2].splitlines() if line.strip())
    return f"{found[1]}$$\n{lines}\n{found[1]}$$\n"


def as_markdown(text: str) -> str:
    """A docstring without what Markdown does not know."""
    text = EXAMPLE.sub("Examples:", DISPLAYED.sub(_displayed, text))
    text = MATHEMATICS.sub(lambda found: rf"\({found[1]}\)", ROLE.sub(r"`\1`", text))
    return GRID.sub(_fenced, text).replace("::\n\n", ":\n\n")


class AsMarkdown(Extension):
    """Griffe's extension that rewrites each docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
