"""Hooks of mkdocs: pages link to files of the repository as GitHub reads them, and the site has those files too."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
#: Files outside of docs/ that the site has, under the same path or the one given.
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
SHOWN = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "examples/*.py", "CITATION.cff")
EQUATION = re.compile(r'<(div|span) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL)
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the repository's files to the site."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, MOVED.get(name, name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at where the site has the file: docs/ is the root there."""
    uri = page.file.src_uri
    # Where the page stands in the repository.
    own = {moved: name for name, moved in MOVED.items() if name != "README.md"}.get(uri)
    folder = (ROOT / own).parent if own else ROOT if uri.startswith("benchmarks/") else ROOT / "docs"
    folder = folder / Path(uri).parent if uri.startswith("benchmarks/") else folder
    depth = len(Path(uri).parts) - 1

    def moved(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return found[0]
        name = target.relative_to(ROOT).as_posix()
        name = MOVED.get(name, name).removeprefix("docs/")
        return f"{found[1]}{'../' * depth}{name}{found[3]}"

    return LINK.sub(moved, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Equations as MathML, which browsers draw by themselves."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found[2] == "[" else "inline"
        return f"<{found[1]}>{convert(html.unescape(found[3]), display=display)}</{found[1]}>"

    return EQUATION.sub(drawn, content)
