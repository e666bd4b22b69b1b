"""Hooks of mkdocs: pages link to files of the repository as GitHub reads them, and the site has those files too."""

from __future__ import annotations

import ast
import html
import logging
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
#: Files outside of docs/ that the site has, under the same path or the one given.
MOVED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
    "LICENSE": "LICENSE.txt",
    ".github/workflows/ci.yml": "ci.yml",
}
SHOWN = (
    *MOVED, "benchmarks/README.md", "skills/*/SKILL.md", "examples/*.py", "examples/*.ipynb", "CITATION.cff",
    "pyproject.toml",
)  # fmt: skip
EQUATION = re.compile(r'<(div|span) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL)
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
#: A picture or a link in HTML, which mkdocs neither follows nor checks.
TAG = re.compile(r"""(\b(?:src|srcset|href)=["'])([^"'#\s:]+)((?:#[^"'\s]*)?["'])""")
log = logging.getLogger("mkdocs.hooks")  # whose warnings fail a strict build


def on_files(files: Files, config: Any) -> Files:
    """Add the repository's files to the site, and a page that lists the examples."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, MOVED.get(name, name), abs_src_path=str(path)))
    examples = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("examples/*.py"))}
    lines = [
        f"- [{name}]({name}): {(ast.get_docstring(tree) or '').partition(chr(10))[0]}"
        for name, tree in examples.items()
    ]
    files.append(File.generated(config, "examples/index.md", content="\n".join(["# Examples", "", *lines])))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Point links at where the site has the file: docs/ is the root there."""
    if page.file.abs_src_path is None:  # a page that is made here
        return markdown
    folder = Path(page.file.abs_src_path).parent
    depth = len(Path(page.file.src_uri).parts) - 1

    def place(target: str) -> str | None:
        path = (folder / target).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            return None
        name = path.relative_to(ROOT).as_posix() + ("/index.md" if path.is_dir() else "")
        return MOVED.get(name, name).removeprefix("docs/")

    def moved(found: re.Match[str]) -> str:
        name = place(found[2])
        return found[0] if name is None else f"{found[1]}{'../' * depth}{name}{found[3]}"

    def moved_tag(found: re.Match[str]) -> str:
        file = files.get_file_from_path(place(found[2]) or "")
        if file is None:
            log.warning(f"{page.file.src_uri} has {found[0]}, and the site has no such file.")
            return found[0]
        return f"{found[1]}{file.url_relative_to(page.file)}{found[3]}"

    return TAG.sub(moved_tag, LINK.sub(moved, markdown))


def on_page_content(content: str, **_: Any) -> str:
    """Equations as MathML, which browsers draw by themselves."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found[2] == "[" else "inline"
        return f"<{found[1]}>{convert(html.unescape(found[3]), display=display)}</{found[1]}>"

    return EQUATION.sub(drawn, content)
