"""README, docs/ and skills/: Python runs, commands and options exist, links lead somewhere, tables are the results'."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex

import pytest
import torch
from datasets import Dataset, load_dataset

from benchmarks import tables
from st_contrastive import cli, recipes
from st_contrastive.methods import METHODS
from tests.processes import ROOT
from tests.snippets import (
    FENCE,
    INLINE,
    commands,
    local,
    python_blocks,
    run_block,
    save_reranker,
    write_files,
    yaml_blocks,
)

DOCS = sorted((ROOT / "docs").glob("*.md"))
FOR_AGENTS = [*sorted(ROOT.glob("skills/*/SKILL.md")), ROOT / "docs" / "llms.txt"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *DOCS, *FOR_AGENTS]
WITH_PYTHON = [page for page in PAGES if python_blocks(page)]
COMMANDS = sorted({command for page in PAGES for command in commands(page)})


#: The encoders that pages name: folders of these names stand in for the hub. The last is what a run has saved.
ENCODERS = [
    "sentence-transformers/all-MiniLM-L6-v2",
    "bert-base-uncased",
    "stefan-it/albert-large-german-cased",
    "deepset/gbert-base",
    "out",
]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_the_python_runs(page, checkpoint, build, sentences, tmp_path, monkeypatch):
    """A page's blocks one after another, with a tiny encoder under each checkpoint's name and few steps."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, sentences)
    models = ENCODERS if page.stem in ("questions", "evaluation") else ENCODERS[:-1]
    for name in models:
        build(pooling="mean").save_pretrained(name)
    save_reranker(checkpoint("bert"), tmp_path / "cross-encoder" / "ms-marco-MiniLM-L6-v2")
    monkeypatch.setattr("datasets.load_dataset", of_the_hub(sentences))
    names: dict[str, object] = {}
    for block in python_blocks(page):
        run_block(local(block), page, names)
    assert names


def of_the_hub(sentences):
    """``load_dataset`` with local texts under the hub's names."""
    articles = load_dataset("csv", data_files="articles.csv", split="train").rename_column("body", "text")
    found = {
        "mteb/scifact": articles,
        "wikimedia/wikipedia": articles.to_iterable_dataset(),
        "corpus.txt": Dataset.from_dict({"text": sentences}),
    }
    return lambda name, *_, **__: found[name]


def test_the_losses_of_the_extending_page_learn(build, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in python_blocks(ROOT / "docs" / "extending.md"):
        run_block(block, ROOT / "docs" / "extending.md", names)
    names |= runpy.run_path(str(ROOT / "examples" / "sigmoid_loss.py"))
    for own in (names["GaussianLoss"], names["SigmoidLoss"]):
        loss = own(build(pooling="mean").train())
        optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-3)
        batch = [loss.model.preprocess(sentences)]
        values = []
        for _ in range(8):
            optimizer.zero_grad()
            terms = loss([{**features} for features in batch])
            terms.backward()
            optimizer.step()
            values.append(terms.total.item())
        assert values[-1] < values[0]


def test_there_are_commands():
    assert len(COMMANDS) > 12


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_parses(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    if "--help" in words:
        with pytest.raises(SystemExit, match=r"^0$"):
            cli.main(words)
        return
    args = cli.parse(words)
    assert callable(args.run)
    unknown = {word.partition("=")[0].lstrip("-") for word in getattr(args, "rest", ()) if word.startswith("--")}
    options = getattr(args, "options", {})
    loss = recipes.load(options["recipe"]).loss if "recipe" in options else options.get("loss")
    assert unknown <= ({*recipes.loss_arguments(METHODS[loss])} if unknown else set())


#: Of SimCSE's script, of the modules of benchmarks/, of twine and of the extending page's own loss.
OTHER_OPTIONS = {
    "model_name_or_path", "train_file", "temp", "pooler_type", "mlp_only_train", "max_seq_length", "task_set", "sets",
    "set", "compile", "operations", "shape", "mixed", "rounds", "loss-arg", "device", "batch", "losses", "precision",
    "strict", "inplace", "negatives",
}  # fmt: skip


def test_the_options_in_the_text_exist():
    """Each ``--name`` between backquotes is an option of a command, or an argument of a loss or of the Trainer."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {name for code in INLINE.findall(FENCE.sub("", text)) for name in re.findall(r"--([a-z][\w-]+)", code)}
    known = {*recipes.TRAINING, *OTHER_OPTIONS}
    for method in METHODS.values():
        known |= {*recipes.loss_arguments(method)}
    assert len(named) > 30
    assert named - known - option_names() == set()


def option_names():
    """The options of all commands, as their help has them."""
    names = set()
    for command in ("train", "describe", "evaluate", "search", "recipes", "translate"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
            cli.main([command, "--help"])
        names |= {*re.findall(r"--([a-z][\w-]+)", printed.getvalue())}
    return names


@pytest.mark.parametrize("page", [page for page in PAGES if yaml_blocks(page)], ids=lambda page: page.stem)
def test_a_settings_file_of_a_page_trains(page, build, sentences, tmp_path, monkeypatch):
    """With a tiny encoder and one step."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, sentences)
    build(pooling="mean").save_pretrained("tiny")
    for block in yaml_blocks(page):
        (tmp_path / "config.yaml").write_text(block, encoding="utf-8")
        assert cli.main(["train", "config.yaml", "--model", "tiny", "--max_steps", "1", "--report_to", "none"]) == 0


def test_the_recipes_of_the_papers_page_are_there():
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"\b((?:simcse|conisi|twins|infocse|esimcse|diffcse)-[a-z0-9-]*(?:bert-\w+|chinese))\b", text)
    )
    assert len(named) > 12
    assert named <= {*recipes.names()}


def test_every_loss_has_its_name_in_the_losses_page():
    text = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    for method in METHODS.values():
        assert method.loss in text or method.title in text


def test_the_tables_are_made_from_their_results():
    text = "".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    made = tables.every_table()
    assert len(made) > 5
    for name, rows in made.items():
        assert f"<!-- {name} -->\n{rows}\n<!-- /{name} -->" in text, name


#: Versions of Python and of the licence, identifiers of papers and other numbers of addresses.
NOT_FIGURES = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|Python [\d.]+|Apache-2\.0", re.DOTALL)
FIGURE = re.compile(r"(?<![\d.])\d+\.\d+(?!\.?\d)")


def test_the_figures_of_the_readme_are_measured_or_published():
    """Each decimal is one of the result lines' or of the papers page's."""
    text = NOT_FIGURES.sub(" ", (ROOT / "README.md").read_text(encoding="utf-8"))
    figures = FIGURE.findall(text)
    published = set(re.findall(r"\b\d\d\.\d\d\b", (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")))
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in tables.figures() | published] == []


def test_the_readme_and_the_pages_are_short():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 900
    assert len(readme.splitlines()) <= 140
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in DOCS) <= 9500  # as wc -w counts


#: What a reader may type as it stands, or must replace with a name of theirs, which RECIPE and HOST announce.
PLACEHOLDER = re.compile(r"\b(?:OWNER|REPOSITORY|YOUR[-_]\w+|TODO|XXX)\b|<[a-z]+-?name>")


def test_a_reader_sees_no_placeholder():
    for page in (*PAGES, ROOT / "CHANGELOG.md", ROOT / "CITATION.cff", ROOT / "pyproject.toml", ROOT / "mkdocs.yml"):
        assert PLACEHOLDER.findall(page.read_text(encoding="utf-8")) == [], page


def test_there_is_one_way_to_install():
    """In the package's folder, on each page and in each message: the package is on no index."""
    sources = [*PAGES, *(ROOT / "st_contrastive").rglob("*.py"), *(ROOT / "examples").glob("*")]
    for path in sources:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        assert not re.search(
            r"pip install [^\n`]*st.contrastive(?!`)", text.replace("say `pip install st_contrastive`", "")
        ), path


HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text):
    """Of the headings outside of code blocks, as mkdocs and GitHub make them."""
    headings = HEADING.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    kept = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name}: {link}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for page in DOCS:
        assert page.name in navigation
