"""docs/: each element of the papers is where its table says, its command parses, and its results are there."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest

from st_contrastive import cli
from st_contrastive.recipes import RECIPES, recipe

ROOT = Path(__file__).parent.parent
PAGES = {name: ROOT / "docs" / f"{name}.md" for name in ("paper-elements", "published-results")}
RESULTS = ROOT / "benchmarks" / "results"
CODE = re.compile(r"`([^`]+)`")
PLACE = re.compile(r"((?:st_contrastive|benchmarks)(?:\.\w+)+)(?:\(([\w, ]+)\))?")
COMMANDS = ("st-contrastive ", "python -m benchmarks.")
RECIPE = re.compile(r"(?:mini|simcse|esimcse|diffcse|moco|conisi|twins|infocse)-[a-z0-9-]+")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _rows() -> list[list[str]]:
    lines = PAGES["paper-elements"].read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert _cells(table[0]) == ["paper element", "where", "how to run it", "status"]
    return [_cells(line) for line in table[2:]]


def _number(row: list[str]) -> str:
    found = re.match(r"\*\*([CTI]\d+)\*\* ", row[0])
    assert found, row[0]
    return found.group(1)


def _codes() -> list[str]:
    """All that stands between backquotes on the pages, each once."""
    return sorted({code for page in PAGES.values() for code in CODE.findall(page.read_text(encoding="utf-8"))})


ROWS = {_number(row): row for row in _rows()}


def test_every_element_is_numbered_once_and_complete():
    numbers = [_number(row) for row in _rows()]
    assert len(numbers) == len(set(numbers)) >= 73
    for letter in "CTI":
        own = [int(number[1:]) for number in numbers if number[0] == letter]
        assert own == list(range(1, len(own) + 1))
        assert len(own) >= 20
    for row in _rows():
        assert len(row) == 4
        assert all(row)


def resolve(path: str) -> Any:
    """What a dotted path names: a module, or an attribute of one."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(path)


def check_place(code: str) -> None:
    """Raise AssertionError or AttributeError where the path, or an argument in its brackets, is not there."""
    place = PLACE.fullmatch(code)
    assert place, f"{code} is no dotted path"
    found = resolve(place.group(1))
    if place.group(2):
        known = inspect.signature(found).parameters
        missing = [name for name in place.group(2).split(", ") if name not in known]
        assert not missing, f"{place.group(1)} has no argument {', '.join(missing)}"


@pytest.mark.parametrize("number", ROWS)
def test_what_an_element_names_is_there(number):
    places = CODE.findall(ROWS[number][1])
    assert places
    for code in places:
        check_place(code)


@pytest.mark.parametrize("code", [code for code in _codes() if PLACE.fullmatch(code)])
def test_what_the_pages_name_is_there(code):
    check_place(code)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("st_contrastive.losses.NoLoss", AttributeError),
        ("st_contrastive.nowhere.Thing", AttributeError),
        ("st_contrastive.losses.TwinsLoss(no_such_weight)", AssertionError),
        ("TwinsLoss", AssertionError),
    ],
)
def test_a_wrong_name_is_seen(code, error):
    with pytest.raises(error):
        check_place(code)


class _Parsed(Exception):  # noqa: N818  # it ends a command that parsed
    pass


def parse(command: str, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """The options of a command, which is not run.

    Raises:
        SystemExit: the command's parser refuses them.
    """
    words = shlex.split(command)
    found: list[argparse.Namespace] = []

    def take(args: argparse.Namespace) -> int:
        found.append(args)
        return 0

    if words[0] == "st-contrastive":
        for one in (
            cli.train,
            cli.pretrain,
            cli.evaluate,
            cli.report,
            cli.translate,
            cli.losses,
            cli.recipes,
            cli.demo,
        ):
            monkeypatch.setattr(one, "run", take)
        assert cli.main(words[1:]) == 0
    else:
        assert words[:2] == ["python", "-m"]
        original = argparse.ArgumentParser.parse_args

        def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> argparse.Namespace:
            found.append(original(self, *args, **kwargs))
            raise _Parsed

        monkeypatch.setattr("sys.argv", words[2:])
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        with pytest.raises(_Parsed):
            importlib.import_module(words[2]).main()
    return found[0]


def _annotation(loss_class: Any, name: str) -> Any:
    """Of an argument of the loss, or of a field of its ``ablation``."""
    signatures = [inspect.signature(one).parameters for one in (loss_class, loss_class.ablation_class) if one]
    return next(parameters[name].annotation for parameters in signatures if name in parameters)


def check_settings(args: argparse.Namespace, command: str) -> None:
    """``--loss-arg`` gives arguments that the command's loss has, and recipes are known ones."""
    from st_contrastive.cli._common import loss_arguments
    from st_contrastive.methods import METHODS, PRETRAINING

    given = getattr(args, "loss_arg", [])
    names = getattr(args, "recipes", None) or [getattr(args, "recipe", None)]
    methods = [METHODS[recipe(name).method] for name in names if name]
    if command.startswith("st-contrastive pretrain-infocse"):
        methods = [PRETRAINING]
    elif not methods and getattr(args, "method", None):
        methods = [METHODS[args.method]]
    for method in methods:
        for name, value in loss_arguments(method, given).items():
            hint = str(_annotation(method.loss_class, name))
            if "Literal" in hint:
                assert value is None or repr(value) in hint.replace('"', "'"), f"{name} takes {hint}, not {value!r}"
    assert methods or not given


@pytest.mark.parametrize("command", [code for code in _codes() if code.startswith(COMMANDS) and code.count(" ") > 1])
def test_a_command_parses(command, monkeypatch):
    check_settings(parse(command.replace("NAME", "mini-simcse"), monkeypatch), command)


@pytest.mark.parametrize(
    "command",
    [
        "st-contrastive train --recipe no-such-recipe --data wiki.txt --output out",
        "st-contrastive train --recipe mini-simcse --data wiki.txt --output out --no-such-option",
        "st-contrastive evaluate out --suite no-such-suite",
        "python -m benchmarks.replicate --recipes mini-simcse --data wiki.txt --suites data/ --no-such-option",
        "python -m benchmarks.baselines --methods no-such-method --data wiki.txt --suites data/",
    ],
)
def test_a_wrong_command_is_seen(command, monkeypatch):
    with pytest.raises(SystemExit):
        parse(command, monkeypatch)


def test_a_wrong_setting_is_seen(monkeypatch):
    command = "st-contrastive train --recipe mini-simcse --data wiki.txt --output out --loss-arg no_such_argument=1"
    args = parse(command, monkeypatch)
    with pytest.raises(ValueError, match="no_such_argument"):
        check_settings(args, command)
    command = "st-contrastive train --recipe mini-infocse --data wiki.txt --output out --loss-arg masked_views=one"
    with pytest.raises(AssertionError, match="masked_views"):
        check_settings(parse(command, monkeypatch), command)


@pytest.mark.parametrize("number", ROWS)
def test_how_an_element_runs_is_a_command_or_a_recipe(number):
    codes = CODE.findall(ROWS[number][2])
    assert codes
    assert re.sub(r"`[^`]+`", "", ROWS[number][2]).strip(", ") == ""
    for code in codes:
        assert code.startswith(COMMANDS) or code in RECIPES, f"{code} is neither a command nor a recipe"


@pytest.mark.parametrize("name", [code for code in _codes() if RECIPE.fullmatch(code)])
def test_a_recipe_is_known(name):
    assert name in RECIPES


@pytest.mark.parametrize("number", ROWS)
def test_a_status_has_its_results_or_its_reason(number):
    status = ROWS[number][3]
    run = re.fullmatch(r"run: results/([\w.]+\.json)", status)
    reason = re.fullmatch(r"not run: (\S.{5,})", status)
    assert run or reason, status
    for file in re.findall(r"results/([\w.]+\.json)", status):
        assert (RESULTS / file).is_file()


def test_the_pages_are_looked_at():
    """The tests above have something to compare: each kind is on the pages, many times."""
    codes = _codes()
    assert sum(bool(PLACE.fullmatch(code)) for code in codes) >= 50
    assert sum(code.startswith(COMMANDS) for code in codes) >= 50
    assert sum(bool(RECIPE.fullmatch(code)) for code in codes) >= 25
    statuses = [row[3] for row in ROWS.values()]
    assert sum(status.startswith("run:") for status in statuses) >= 20


def test_the_published_averages_are_those_of_their_rows():
    """Of the seven sets, rounded; Mirror-BERT is published with one digit."""
    found = []
    for line in PAGES["published-results"].read_text(encoding="utf-8").splitlines():
        values = re.findall(r"\| (\d\d\.\d\d) (?=\|)", line)
        if len(values) == 8 and ("| C" in line or "| T" in line or "| I" in line):
            *sets, average = map(float, values)
            assert statistics.mean(sets) == pytest.approx(average, abs=0.0101 if "Mirror" not in line else 0.05), line
            found.append(line)
    assert len(found) >= 38
