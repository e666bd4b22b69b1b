r"""The methods from one encoder, each at the setting that did best on dev, several seeds.

    python -m benchmarks.do_they_help --chosen choose.json --base language=base/model --stage1 runs/stage1 \
        --data wiki.txt.gz --pairs en.txt de.txt --dev data/sts/stsb/dev.jsonl.gz --suites data/ --json help.json

``--chosen`` is what ``benchmarks.choose`` wrote; if that was from another encoder, a note says so. Each of its methods
is a row with five seeds, and, unless that was chosen, another with the paper's temperature and weight and a learning
rate of 3e-5. Twins' paper gives no temperature; that row has SimCSE's. Then rows with a part changed, with three seeds:
DiffCSE and SimCSE with masked-LM have SimCSE's chosen setting, nothing of theirs was chosen; Twins on the translated
sentences has the setting of Twins with German. SimCSE from stage 1, what InfoCSE is held to, has five. A row is several
cells of ``benchmarks.replicate``: ``--steps`` steps, dev every ``--every``, the best weights kept, scored on STS,
transfer and the geometry of the embeddings under [CLS] pooling. Stage 1 was made once: the seeds share it.

The methods come first, and then what was changed of them; of either all rows have their first seed before any has its
second. A cell that is in ``--json`` is not run again; on a ``--suite`` that it lacks it is scored. The same command,
started several times at once, shares the cells. ``--row TITLE`` runs one row alone, and ``--list`` prints the commands.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import replicate
from benchmarks._results import claimed, read
from benchmarks.choose import METHODS, Method, chosen_settings, say_other_base
from benchmarks.replicate import without_folders

TITLES = {
    "simcse": "SimCSE",
    "conisi-s": "ConIsI-s",
    "twins": "Twins, one column",
    "infocse": "InfoCSE",
    "simcse-pairs": "SimCSE on the translated sentences",
    "twins-german": "Twins with German",
}
#: Ends the title of a row with the values of the method's paper.
PAPER = ", the paper's values"
#: The methods that have such a row: of Twins' values that are chosen on one column, the paper gives none.
OF_A_PAPER = ("simcse", "conisi-s", "infocse", "twins-german")
#: Not 0, with which the settings were chosen.
SEEDS, FEWER_SEEDS = (1, 2, 3, 4, 5), (1, 2, 3)


@dataclass(frozen=True)
class Row:
    """What one row of the table is trained with.

    Args:
        title: its label in the results.
        method: whose columns and first stage it has.
        setting: arguments of the loss, and ``lr``.
        recipe: another recipe than the method's, or "".
        seeds: one cell each.
        auxiliary: with a first stage, whether the auxiliary network is taken too.
    """

    title: str
    method: Method
    setting: dict[str, Any]
    recipe: str = ""
    seeds: Sequence[int] = field(default=SEEDS)
    auxiliary: bool = True


def rows(best: dict[str, dict[str, Any]]) -> list[Row]:
    """The rows in their order, from the methods' chosen settings."""
    found = []
    for name, title in TITLES.items():
        method = METHODS[name]
        paper = method.candidates()[0]
        found.append(Row(title, method, best[name]))
        if name in OF_A_PAPER and best[name] != paper:
            found.append(Row(f"{title}{PAPER}", method, paper))
    found += [
        _changed("ConIsI-o1", "conisi-s", best, "mini-conisi-o1"),
        _changed("InfoCSE without stage 1", "infocse", best, stage1=False),
        _changed("InfoCSE, SimCSE's head", "infocse", best, head="tanh"),
        _changed("SimCSE without head", "simcse", best, head=False),
        _changed("DiffCSE", "simcse", best, "mini-diffcse"),
        _changed("SimCSE with masked-LM", "simcse", best, "mini-simcse-mlm"),
    ]
    german = {key: value for key, value in best["twins-german"].items() if key != METHODS["twins-german"].weight}
    alone = Method(METHODS["twins"].recipe, pairs="sentences")
    found.append(Row("Twins on the translated sentences", alone, german, seeds=FEWER_SEEDS))
    simcse = METHODS["simcse"]
    found.append(Row("SimCSE from stage 1", Method(simcse.recipe, stage1=True), best["simcse"], auxiliary=False))
    return found


def _changed(
    title: str,
    name: str,
    best: dict[str, dict[str, Any]],
    recipe: str = "",
    *,
    stage1: bool | None = None,
    **changes: Any,
) -> Row:
    """A method at its chosen setting, with another recipe, without its first stage, or with arguments changed."""
    own = METHODS[name]
    method = Method(own.recipe, stage1=own.stage1 if stage1 is None else stage1)
    return Row(title, method, {**best[name], **changes}, recipe, FEWER_SEEDS)


def command(row: Row, seed: int, args: argparse.Namespace) -> list[str]:
    """The words of ``benchmarks.replicate`` that train and score the cell."""
    setting = dict(row.setting)
    options = f"--learning-rate {setting.pop('lr'):g} --max-steps {args.steps} --evaluate-steps {args.every}"
    options += " --pooling cls" + (" --bf16" if args.bf16 else "")
    data = args.pairs[0] if row.method.pairs else args.data
    name, _, folder = args.base.partition("=")
    if row.method.pairs == "both":
        options += f" --translations {args.pairs[1]}"
    if row.method.stage1:
        name, folder = f"{name}-stage1", args.stage1
        options += f" --auxiliary {args.stage1}" if row.auxiliary else ""
    words = ["--recipes", row.recipe or row.method.recipe, "--seeds", str(seed)]
    words += ["--data", data, "--dev", args.dev, "--suites", args.suites, "--suite", *args.suite]
    words += ["--base", f"{name}={folder}", "--label", row.title, f"--options={options}", "--json", args.json]
    words += [word for key, value in setting.items() for word in ("--loss-arg", f"{key}={value}")]
    return [
        *words,
        "--untrained",
        "cls",
        "--models",
        f"{args.runs}/models",
        "--checkpoints",
        f"{args.runs}/checkpoints",
    ]


def is_there(words: Sequence[str], args: argparse.Namespace) -> bool:
    """Whether the results have the cell's scores of all suites, at the same seed, options and arguments of the loss."""
    given = dict(itertools.pairwise(words))
    changed = [value for flag, value in itertools.pairwise(words) if flag == "--loss-arg"]
    options = next(word for word in words if word.startswith("--options=")).removeprefix("--options=")
    about = (given["--label"], int(given["--seeds"]), without_folders(options), changed)
    return any(
        (cell["label"], cell["seed"], cell["options"], cell["set"]) == about
        and not replicate.lacking(cell["scores"], args.suite)
        for cell in read(args.json, replicate.EMPTY)["cells"]
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chosen", required=True, help="results file of benchmarks.choose")
    parser.add_argument("--base", required=True, metavar="NAME=FOLDER", help="the encoder that all start from")
    parser.add_argument("--stage1", required=True, help="folder of InfoCSE's first stage, made by benchmarks.choose")
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--pairs", required=True, nargs=2, metavar="FILE", help="sentences, and their translations")
    parser.add_argument("--dev", required=True, help="the STS Benchmark's development split")
    parser.add_argument("--suites", required=True, help="folder with sts and transfer")
    parser.add_argument("--suite", nargs="+", default=["sts", "transfer", "geometry"], help="default: those three")
    parser.add_argument("--runs", required=True, help="folder of models and checkpoints")
    parser.add_argument("--json", required=True, help="where the results go")
    parser.add_argument("--steps", type=int, default=400, help="default: 400")
    parser.add_argument("--every", type=int, default=50, help="steps between evaluations; default: 50")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast in training")
    parser.add_argument("--row", action="append", help="run the row of this title alone; repeatable")
    parser.add_argument("--seeds", nargs="+", type=int, help="run these of a row's seeds alone")
    parser.add_argument("--list", action="store_true", help="print the commands that are left, and run none")
    args = parser.parse_args(argv)
    for name in ("runs", "stage1"):  # they become part of one word
        if len(getattr(args, name).split()) > 1:
            raise SystemExit(f"--{name} {getattr(args, name)!r} holds a space: name another path.")
    found = rows(chosen_settings(args.chosen))
    say_other_base(args.chosen, args.base.partition("=")[2])
    if unknown := set(args.row or []) - {row.title for row in found}:
        raise SystemExit(f"--row {unknown.pop()!r} is none of {', '.join(row.title for row in found)}.")
    own = [row for row in found if row.title in (args.row or [row.title])]
    failed = []
    cells = [(row, seed) for row in own for seed in row.seeds if not args.seeds or seed in args.seeds]
    for row, seed in sorted(cells, key=lambda cell: (cell[0].title not in TITLES.values(), cell[1])):
        words = command(row, seed, args)
        if is_there(words, args):
            continue
        if args.list:
            print(f"python -m benchmarks.replicate {shlex.join(words)}")
            continue
        with claimed(Path(args.runs, f"{row.title} {seed}.lock")) as mine:
            if mine and not is_there(words, args):
                try:
                    replicate.main(words)
                except RuntimeError as error:  # the other cells may do better
                    failed.append(f"{row.title}, seed {seed}")
                    print(f"{failed[-1]} failed: {error}", file=sys.stderr, flush=True)
    if failed:
        raise SystemExit(f"Failed: {'; '.join(failed)}. Run the command again for these alone.")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, which stops the command that is running
    main()
