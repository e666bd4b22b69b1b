"""The pages of docs/ and the others: their Python runs, their commands parse, their links lead somewhere."""

from __future__ import annotations

import re

import pytest

from st_contrastive import cli
from tests.filters import TRAINING
from tests.snippets import ROOT, files, inline_commands, python_blocks, run, shell_lines
from tests.test_paper_elements import PAGES as OF_PAPERS
from tests.test_paper_elements import parse

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *DOCS]
WITH_PYTHON = [page for page in DOCS if python_blocks(page)]
PARSED = ("st-contrastive ", "python -m benchmarks.")
#: Lines of blocks that are no command of this package's.
OTHERS = ("pip install ",)
#: Commands of docs/training.md that are parsed only: they need the Hugging Face Hub, or do not train.
LEFT_OUT = ("--recipe", "st-contrastive report", "st-contrastive losses", "st-contrastive recipes")

pytestmark = [*TRAINING, pytest.mark.filterwarnings("ignore:The task 'STSBenchmark' is superseded")]


def commands(page):
    lines = shell_lines(page) if page.name != "architecture.md" else []
    return [*(line for line in lines if not line.startswith(OTHERS)), *inline_commands(page)]


#: Those of the pages about the papers are parsed in tests/test_paper_elements.py.
COMMANDS = sorted({command for page in PAGES if page not in OF_PAPERS.values() for command in commands(page)})


def test_there_is_something_to_look_at():
    assert {"training", "data", "evaluation", "adding-a-loss"} <= {page.stem for page in WITH_PYTHON}
    assert len(COMMANDS) >= 30
    assert {"index", "api", "questions", "from-simcse", "choosing-a-loss"} <= {page.stem for page in DOCS}


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_the_python_runs(page, build, checkpoint, sentences, tmp_path, monkeypatch):
    """A page's blocks one after another, with what the blocks before them defined."""
    if "evaluate_mteb" in page.read_text(encoding="utf-8"):
        pytest.importorskip("mteb")
    monkeypatch.chdir(tmp_path)
    files(tmp_path, sentences)
    build(pooling="mean").save_pretrained("out")
    names: dict[str, object] = {}
    for block in python_blocks(page):
        run(block.replace("eval_steps=125", "eval_steps=1"), page, tmp_path, checkpoint, names)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_parses(command, monkeypatch, capsys):
    assert command.startswith(PARSED), f"{command}: say in OTHERS what it is, or how it is checked"
    if command.endswith("--help"):
        with pytest.raises(SystemExit, match="0"):
            parse(command, monkeypatch)
        assert "usage:" in capsys.readouterr().out
    else:
        parse(command.replace("NAME", "mini-simcse"), monkeypatch)


@pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head")
def test_the_commands_of_training_run(checkpoint, sentences, tmp_path, monkeypatch):
    """Resuming, InfoCSE after a first stage, and a mixture of weights, in the order of the page."""
    monkeypatch.chdir(tmp_path)
    files(tmp_path, sentences)
    lines = [line for line in shell_lines(ROOT / "docs" / "training.md") if not any(word in line for word in LEFT_OUT)]
    assert len(lines) == 4
    for line in lines:
        words = line.replace("bert-base-uncased", str(checkpoint("bert"))).replace("-steps 125", "-steps 1").split()[1:]
        assert cli.main([*words, "--overwrite"]) == 0
    assert (tmp_path / "infocse" / "modules.json").is_file()


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


def test_a_wrong_anchor_is_seen():
    assert anchors("# One, two (`three_four`)?\n```\n# no heading\n```\n## Five\n") == {"one-two-three_four", "five"}


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for page in DOCS:
        assert page.name in navigation
