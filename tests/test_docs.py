"""README and docs/: the Python runs, the commands parse, the links lead somewhere, the tables are the results'."""

from __future__ import annotations

import re
import shlex

import pytest
import torch
from datasets import Dataset, load_dataset
from sentence_transformers import SentenceTransformer

from benchmarks import tables
from st_contrastive import cli, recipes
from st_contrastive.methods import METHODS
from tests.processes import ROOT
from tests.snippets import commands, local, python_blocks, run_block, write_files

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *DOCS]
WITH_PYTHON = [page for page in PAGES if python_blocks(page)]
COMMANDS = sorted({command for page in PAGES for command in commands(page)})


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_the_python_runs(page, checkpoint, build, sentences, tmp_path, monkeypatch):
    """A page's blocks one after another, with a tiny encoder under each checkpoint's name and few steps."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, sentences)
    build(pooling="mean").save_pretrained("tiny")
    if page.stem in ("questions", "evaluation"):
        build(pooling="mean").save_pretrained("out")  # what a run has saved
    monkeypatch.setattr(recipes.build, "load_model", lambda *_, **__: SentenceTransformer("tiny", device="cpu"))
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
def test_a_command_parses(command):
    words = shlex.split(command)[1:]
    args = cli.parse(words)
    if getattr(args, "recipe", None) and args.recipe in recipes.names():
        recipes.load(args.recipe)
    assert callable(args.run)


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
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in DOCS) <= 9000  # as wc -w counts


def test_a_reader_sees_no_placeholder():
    """The owner of the repository is set at a release, and stands in addresses alone."""
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        if page.name != "CONTRIBUTING.md":  # which says where it stands
            assert "OWNER" not in re.sub(r"https?://\S+", "", page.read_text(encoding="utf-8")), page


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
