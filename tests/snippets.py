"""Python code and commands from the pages, and the files that they read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent

from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from tests import foreign

#: A fenced block, which may be in a list item.
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def python_blocks(page: Path) -> list[str]:
    """The blocks of Python code in a page."""
    return [dedent(code) for kind, code in FENCE.findall(page.read_text(encoding="utf-8")) if kind == "python"]


def yaml_blocks(page: Path) -> list[str]:
    """The blocks of YAML in a page."""
    return [code for kind, code in FENCE.findall(page.read_text(encoding="utf-8")) if kind == "yaml"]


def commands(page: Path) -> list[str]:
    """Commands of this package in a page: lines of blocks, and inline code with options.

    Continued lines are joined, and variables of the shell become 1.
    """
    text = re.sub(r"\$\w+", "1", re.sub(r" *\\\n *", " ", page.read_text(encoding="utf-8")))
    lines = [
        line.split(" #")[0].strip() for kind, code in FENCE.findall(text) if not kind for line in code.splitlines()
    ]
    inline = [code for code in INLINE.findall(FENCE.sub("", text)) if " --" in code]
    starts = re.compile(r"(?:torchrun .*? -m st_contrastive|st-contrastive) ")
    return [starts.sub("st-contrastive ", line) for line in (*lines, *inline) if starts.match(line)]


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_documents(path: Path, count: int) -> None:
    """Write a table of titles and bodies whose sentences are all different."""
    words = [f"{first}{second}" for first in "bdfgklmnprstvw" for second in ("ato", "emi", "iru", "ola", "una", "ipo")]
    rows = (
        f"{number},About {words[number % 84]},A {words[number % 84]} sleeps {words[number * 5 % 83]}. "
        f"It rains on the {words[number * 7 % 83]} {words[number % 84]}. The {words[number % 84]} sings.\n"
        for number in range(count)
    )
    path.write_text("id,title,body\n" + "".join(rows), encoding="utf-8")


def write_files(folder: Path, sentences: list[str]) -> None:
    """Write the files of the pages: corpus.txt, articles.csv, new_articles.csv, pairs.tsv, dev.jsonl and data/."""
    (folder / "corpus.txt").write_text("\n".join(sentences), encoding="utf-8")
    for name in ("articles.csv", "new_articles.csv"):
        write_documents(folder / name, 70)
    pairs = zip(sentences, foreign.GERMAN, strict=True)
    (folder / "pairs.tsv").write_text(
        "sentence\ttranslation\n" + "".join(f"{one}\t{two}\n" for one, two in pairs), encoding="utf-8"
    )
    rows: list[dict[str, object]] = [
        {"sentence1": a, "sentence2": b, "score": score / 2}
        for score, (a, b) in enumerate(zip(sentences, [*sentences[1:], sentences[0]], strict=True))
    ]
    write_rows(folder / "dev.jsonl", rows)
    for split in ("dev", "test"):
        write_rows(folder / "data" / "sts" / "stsb" / f"{split}.jsonl", rows)


def save_reranker(checkpoint: Path, folder: Path) -> None:
    """Save a tiny cross-encoder with the tokenizer of a checkpoint."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    sizes = {"num_labels": 1, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=16, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def local(code: str) -> str:
    """Replace the hub's names in code by local files, and reduce its steps to one."""
    code = code.replace('STSEvaluator("stsb")', 'STSEvaluator("dev.jsonl")')
    code = code.replace('"sentence-transformers/wiki1m-for-simcse"', '"corpus.txt"')
    return re.sub(r"(max_steps|eval_steps|save_steps|num_train_epochs)=\d+", r"\1=1", code)


def run_block(code: str, page: Path, names: dict[str, object]) -> None:
    """Run a block with the names that earlier blocks defined."""
    exec(compile(code, str(page), "exec"), names)
