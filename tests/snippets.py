"""The Python and the commands of a page, and a folder with the files that they name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests import foreign
from tests.evaluation.encoders import write

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
ENGLISH = re.compile(r"\"(?:bert-base-uncased|sentence-transformers/all-MiniLM-L6-v2)\"")
GERMAN = '"distilbert/distilbert-base-german-cased"'


def python_blocks(page: Path) -> list[str]:
    """The Python of a page, in its order."""
    return [code for kind, code in FENCE.findall(page.read_text(encoding="utf-8")) if kind == "python"]


def shell_lines(page: Path) -> list[str]:
    """The lines of a page's blocks without a language, continued lines as one, without comments."""
    blocks = [code for kind, code in FENCE.findall(page.read_text(encoding="utf-8")) if not kind]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+", " ", line.split(" #")[0]).strip() for line in lines if line.strip()]


def inline_commands(page: Path) -> list[str]:
    """What stands between backquotes and is a command with options."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [code for code in INLINE.findall(text) if code.startswith("st-contrastive ") and code.count(" ") > 1]


def files(folder: Path, sentences: list[str]) -> None:
    """Write what the pages call corpus.txt, pairs.tsv, dev.jsonl and data/."""
    (folder / "corpus.txt").write_text("\n".join(sentences), encoding="utf-8")
    pairs = zip(sentences, foreign.GERMAN, strict=True)
    (folder / "pairs.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in pairs), encoding="utf-8")
    rows = [
        {"sentence1": a, "sentence2": b, "score": score / 2}
        for score, (a, b) in enumerate(zip(sentences, [*sentences[1:], sentences[0]], strict=True))
    ]
    write(folder / "dev.jsonl", rows)
    for split in ("dev", "test"):
        write(folder / "data" / "sts" / "stsb" / f"{split}.jsonl", rows)


def run(code: str, page: Path, folder: Path, checkpoint: Callable[[str], Path], names: dict[str, object]) -> None:
    """Run a block, with a tiny encoder under each checkpoint's name."""
    code = ENGLISH.sub(repr(str(checkpoint("bert"))), code)
    if GERMAN in code:
        code = code.replace(GERMAN, repr(str(foreign.checkpoint(folder / "german"))))
    exec(compile(code, str(page), "exec"), names)
