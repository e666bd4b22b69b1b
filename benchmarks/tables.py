"""The tables and the pictures of the measurements, from the raw results.

    python -m benchmarks.tables

writes them into ``benchmarks/README.md`` and pages of ``docs/``, between the marks ``<!-- NAME -->`` and
``<!-- /NAME -->``.
``--show FILE`` prints the tables of a file of ``benchmarks.replicate``'s instead: any encoders, data and recipes.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _ablations, _adapted, _experiments, _help, _pictures, _replicated, _spaces, _why

HERE = Path(__file__).parent
RESULTS = HERE / "results"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
WIKI = "wiki1m_for_simcse.first11914.txt.gz"
TRANSLATED = "mlqe_pe_wikipedia.en.txt"
RATE = 40  # TFLOP/s that a GPU is taken to reach on these sizes
SHAPES = {"minilm": "MiniLM", "base": "BERT-base"}
Rows = list[dict[str, Any]]


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: str, rows: list[list[str]]) -> str:
    names = [name.strip() for name in head.split("|")]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def lined(found: tuple[list[str], list[list[str]]]) -> str:
    head, rows = found
    return table(" | ".join(head), rows)


def faster(found: dict[str, float]) -> str:
    """How many times as fast: ratios of times, turned round, with their range."""
    if found["min"] == found["max"]:
        return f"{1 / found['median']:.2f}"
    return f"{1 / found['median']:.2f} ({1 / found['max']:.2f} to {1 / found['min']:.2f})"


def over(found: dict[str, float]) -> str:
    if found["min"] == found["max"]:
        return f"{found['median']:.2f}"
    return f"{found['median']:.2f} ({found['min']:.2f} to {found['max']:.2f})"


def setting(row: dict[str, Any]) -> str:
    return f"{SHAPES[row['encoder']]}, {row['batch_size']}, {row['precision']}"


def timed() -> str:
    rows = []
    for row in read("speed_time"):
        ratios = row["ours_over"]
        rows.append(
            [
                setting(row),
                row["method"],
                str(row["turns"]),
                f"{row['seconds']['ours']:.2f}",
                f"{row['tokens_a_second']:,}",
                over(ratios["passes"]),
                faster(ratios["straightforward"]),
                faster(ratios["library"]) if "library" in ratios else "",
            ]
        )
    columns = ["turns", "seconds per step", "tokens/s", *RATIOS]
    return table(" | ".join(["encoder, batch", "loss", *columns]), rows)


def flops() -> str:
    rows = []
    for row in read("speed_flops"):
        own = row["gflop"]["ours"]
        rows.append(
            [
                setting(row),
                row["method"],
                *(f"{row['gflop'][kind]:,.0f}" for kind in ("ours", "passes", "straightforward")),
                f"{row['gflop']['straightforward'] / own:.2f}",
            ]
        )
    return table("encoder, batch | loss | ours, GFLOP | encoder alone | unoptimised | unoptimised over ours", rows)


def memory() -> str:
    rows = []
    for row in read("speed_memory"):
        found = row["mib"]
        for stage, title in (("passes", "forward and backward"), ("steps", "two steps of AdamW")):
            mini = found["mini-batches of 32"]
            rows.append(
                [
                    row["method"],
                    title,
                    *(f"{found[kind][stage]:,}" for kind in ("ours", "passes", "straightforward")),
                    f"{found['ours'][stage] / found['straightforward'][stage]:.2f}",
                    f"{mini[stage]:,}",
                ]
            )
    return table(
        "loss | after | ours, MiB | encoder alone | unoptimised | ours over unoptimised | ours, mini-batches of 32",
        rows,
    )


def ways() -> str:
    rows = []
    for row in read("speed_ways"):
        rows += [[row["method"], way, over(found)] for way, found in row["over_all"].items()]
    return table("loss | changed | time over the default", rows)


def growth() -> str:
    rows = []
    for row in read("growth")["rows"]:
        if row["grows"] == "queue":
            continue
        values = " ".join(str(value) for value in row["values"])
        rows.append(
            [
                row["grows"],
                row["method"],
                values,
                " ".join(f"{value:.2f}" for value in row["seconds"]),
                str(row.get("seconds_exponent", "")),
                " ".join(f"{value:,.0f}" for value in row["held_mib"]),
                str(row.get("held_mib_exponent", "")),
            ]
        )
    return table("grows | loss | values | seconds | exponent | MiB held | exponent", rows)


def queue() -> str:
    (row,) = (row for row in read("growth")["rows"] if row["grows"] == "queue")
    cells = [
        f"{100 * median:.1f} % ({100 * least:.1f} to {100 * most:.1f})" for median, least, most in row["share_of_step"]
    ]
    return table(" | ".join(["entries", *(f"{value:,}" for value in row["values"])]), [["of a step", *cells]])


def flat() -> str:
    tenths = read("scale")["flat"]["median_ms_of_each_tenth"]
    return table(" | ".join(["tenth of the run", *map(str, range(1, 11))]), [["ms a step", *map(str, tenths)]])


def short() -> str:
    """Of docs/speed.md: MiniLM and BERT-base at 64, float32."""
    rows = []
    peaks = {row["method"]: row["mib"] for row in read("speed_memory")}
    for row in read("speed_time"):
        if (row["batch_size"], row["precision"]) != (64, "fp32"):
            continue
        ratios, mib = row["ours_over"], peaks[row["method"]]
        rows.append(
            [
                SHAPES[row["encoder"]],
                row["method"],
                f"{ratios['passes']['median']:.2f}",
                f"{1 / ratios['straightforward']['median']:.2f}",
                f"{mib['ours']['steps'] / mib['straightforward']['steps']:.2f}" if row["encoder"] == "minilm" else "",
                f"{1 / ratios[LIBRARY]['median']:.2f}" if LIBRARY in ratios else "",
            ]
        )
    columns = [*RATIOS[:2], "memory over the unoptimised form", RATIOS[2]]
    return table(" | ".join(["encoder", "loss", *columns]), rows)


def trained_on(data: str, result: dict[str, Any]) -> dict[str, Any]:
    """The cells that were trained on the same sentences."""
    return {**result, "cells": [cell for cell in result["cells"] if cell["data"] == data]}


def on_wikipedia() -> dict[str, Any]:
    return trained_on(WIKI, read("replicate"))


def shown(path: str) -> str:
    """All tables of a file of ``benchmarks.replicate``'s."""
    result = json.loads(Path(path).read_text(encoding="utf-8"))
    parts = []
    for data in dict.fromkeys(cell["data"] for cell in result["cells"]):
        own = trained_on(data, result)
        for start in dict.fromkeys(map(_replicated.start_of, own["cells"])):
            parts.append(f"From {start}, on {data}:")
            from_it = [cell for cell in own["cells"] if _replicated.start_of(cell) == start]
            for ends, made in MADE_OF.items():
                scored = [cell for cell in from_it if any(key.endswith(ends) for key in cell["scores"])]
                parts += [lined(made.rows({**own, "cells": scored}, start))] if scored else []
    head, rows = _replicated.changed(result)
    parts += ["Changed:", lined((head, rows))] if rows else []
    return "\n\n".join(parts)


def replicated() -> str:
    return lined(_replicated.rows(on_wikipedia(), MINILM))


def precisions() -> str:
    return lined(_replicated.precisions(read("replicate")))


def replicated_translated() -> str:
    return lined(_replicated.short_rows(trained_on(TRANSLATED, read("replicate")), MINILM))


def ablations() -> str:
    return lined(_ablations.rows(on_wikipedia(), MINILM))


def ablations_translated() -> str:
    return lined(_ablations.rows(trained_on(TRANSLATED, read("replicate")), MINILM))


def spaces() -> str:
    return lined(_spaces.rows(on_wikipedia(), MINILM))


def again() -> str:
    return lined(_replicated.rows(read("transfer"), MINILM))


def in_short() -> str:
    return lined(_replicated.summary(read("transfer"), MINILM, "cls", IN_SHORT))


def by_default() -> str:
    """Each loss as it is without arguments; ``test_defaults`` compares the changes with the constructors."""
    return lined(_replicated.summary(read("transfer"), MINILM, "mean", BY_DEFAULT))


def transfer() -> str:
    return lined(_spaces.transferred(read("transfer"), MINILM))


def transfer_language() -> str:
    return lined(_help.transferred(read("transfer_language"), "language"))


def adaptation() -> str:
    return lined(_adapted.rows(read("adaptation"), MINILM))


def baselines() -> str:
    """CT and DCLR beside SimCSE, in the same setting."""
    found: dict[str, dict[int, Any]] = {}
    for cell in read("baselines")["cells"]:
        found.setdefault(cell["recipe"], {})[cell["seed"]] = cell
    simcse = found["mini-simcse"]
    tests = _replicated.tests_of(next(iter(simcse.values()))["scores"])
    rows = []
    for name, own in found.items():
        scores = [_replicated.scores_of(cell, tests) for cell in own.values()]
        means = [_replicated.spread([one[of] for one in scores]) for of in ("dev", "mean")]
        over = [_replicated.over(_replicated.differences(own, simcse, of, tests)) for of in ("dev", "mean")]
        steps = ", ".join(str(cell["best_step"]) for cell in own.values())
        rows.append([BASELINES[name], str(len(own)), *means, *(over if own is not simcse else ["", ""]), steps])
    return table("method | seeds | dev | mean of the tests | dev over SimCSE's | tests over SimCSE's | best step", rows)


def base_curve() -> str:
    return lined(_help.base_curve(read("language_base")["curve"]))


def base_tests() -> str:
    return lined(_help.base_tests(read("language_base")["tests"]))


def chosen() -> str:
    return lined(_help.chosen(read("choose")))


def helped() -> str:
    return lined(_help.rows(read("do_they_help"), "language"))


def helped_parts() -> str:
    return lined(_help.pairs(read("do_they_help")))


def why() -> str:
    return lined(_why.changed(read("why")))


def why_gradients() -> str:
    return lined(_why.gradients(read("why")))


def keep_share() -> str:
    return lined(_adapted.shares(read("keep_share")))


def sweeps() -> str:
    return lined(_replicated.changed(read("replicate")))


def expected_short() -> str:
    """Of docs/reproducing.md: one row of each method and size."""
    return expected(re.compile(r"(simcse|conisi-s|twins|infocse)-bert-(base|large)(, stage 1)?"))


def expected(shown: re.Pattern[str] = re.compile(".*")) -> str:
    rows = []
    for row in read("expected")["rows"]:
        if not shown.fullmatch(row["recipe"]):
            continue
        minutes = row["petaflop"] * 1e15 / (RATE * 1e12) / 60
        rows.append(
            [
                f"`{row['recipe']}`" if "," not in row["recipe"] else row["recipe"],
                f"{row['batch_size']} x {row['length']}",
                f"{row['steps']:,}",
                f"{row['teraflop_a_step']:.2f}",
                f"{minutes:.0f}",
                f"{row['state_gib']:.1f}",
                f"{row['held_gib']:.1f}",
            ]
        )
    columns = ["sentences x tokens", "steps", "TFLOP a step", f"minutes at {RATE} TFLOP/s", "GiB of state", "GiB held"]
    return table(" | ".join(["recipe", *columns]), rows)


def short_runs() -> str:
    return lined(_experiments.short_run({loop: read(f"short_run_{loop}") for loop in ("fit", "trainer")}))


def experiment(made: Callable[[dict[str, Any]], _experiments.Table]) -> Callable[[], str]:
    """The table of one, from the results of the same name."""
    return lambda: lined(made(read(made.__name__)))


def share() -> str:
    rows = []
    for row in read("evaluation_share"):
        found = [100 * statistics.median(row["share"][kind]) for kind in ("ours", "library")]
        rows.append([SHAPES[row["encoder"]], f"{row['seconds_a_step']:.2f}", *(f"{value:.1f} %" for value in found)])
    return table("encoder | seconds per step | `STSEvaluator` | `EmbeddingSimilarityEvaluator`", rows)


BASELINES = {"mini-simcse": "SimCSE", "ct": "Contrastive Tension", "dclr": "DCLR"}
LIBRARY = "library"
#: Of the forms that the raw results call passes, straightforward and library; benchmarks/README.md says what each is.
RATIOS = ("time over the encoder alone", "speed over the unoptimised form", "speed over sentence-transformers' loss")
#: The recipes of README's table, and how it names them.
IN_SHORT = {
    ("mini-simcse", ""): "`SimCSELoss`",
    ("mini-infocse-tanh", ""): "`InfoCSELoss`",
    ("mini-infocse", ""): '`InfoCSELoss(head="projector")`',
    ("mini-conisi-s", ""): "`ConIsILoss`",
    ("mini-twins-one-column", ""): "`TwinsLoss`, one column",
}
#: What of the small recipe is changed so that the loss is as it is by default.
BY_DEFAULT = {
    ("mini-simcse", "temperature=0.05"): "`SimCSELoss(model)`",
    ("mini-twins-one-column", "train_pooling=None"): "`TwinsLoss(model)`, one column",
    ("mini-infocse-tanh", "temperature=0.05 mlm_weight=1e-5"): "`InfoCSELoss(model)`, no stage 1",
    ("mini-conisi-s", "temperature=0.1 interaction_weight=0.8"): "`ConIsILoss(model)`",
}
#: How the names of scores end, and which module makes the table of cells that have such.
MADE_OF: dict[tuple[str, ...], Any] = {(" spearman",): _replicated, (" ndcg@10",): _adapted, _spaces.ENDS: _spaces}
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"by_default": by_default},
    "docs/do-they-help.md": {"in_short": in_short, "by_default": by_default},
    "docs/speed.md": {"speed": short},
    "docs/reproducing.md": {"expected": expected_short},
    "benchmarks/README.md": {
        "speed_time": timed,
        "speed_flops": flops,
        "speed_memory": memory,
        "speed_ways": ways,
        "growth": growth,
        "queue": queue,
        "flat": flat,
        "replicate": replicated,
        "precisions": precisions,
        "again": again,
        "by_default": by_default,
        "ablations": ablations,
        "spaces": spaces,
        "transfer": transfer,
        "transfer_language": transfer_language,
        "base_curve": base_curve,
        "base_tests": base_tests,
        "chosen": chosen,
        "do_they_help": helped,
        "do_they_help_parts": helped_parts,
        "why": why,
        "why_gradients": why_gradients,
        "keep_share": keep_share,
        "replicate_translated": replicated_translated,
        "ablations_translated": ablations_translated,
        "adaptation": adaptation,
        "sweeps": sweeps,
        "baselines": baselines,
        "evaluation_share": share,
        "expected": expected,
        "short_run": short_runs,
        **{made.__name__: experiment(made) for made in _experiments.TABLES},
    },
}


def rendered(text: str, name: str, made: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"there are no marks for {name}")
    return pattern.sub(lambda found: f"{found[1]}{made}\n{found[2]}", text)


def picture(path: Path) -> None:
    """How many times as fast as the unoptimised form, and the time over the encoder alone; each shape by itself."""
    import matplotlib.pyplot as plt

    rows = [row for row in read("speed_time") if row["precision"] == "fp32"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    found = [setting(row) for row in rows]
    settings = [name for name in dict.fromkeys(found) if found.count(name) == len(methods)]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=False)
    for axis, kind, title in ((axes[0], "straightforward", RATIOS[1]), (axes[1], "passes", RATIOS[0])):
        for place, name in enumerate(settings):
            own = {row["method"]: row["ours_over"][kind] for row in rows if setting(row) == name}
            medians = [own[method]["median"] for method in methods]
            heights = [1 / value for value in medians] if kind == "straightforward" else medians
            spots = [index + 0.25 * (place - len(settings) / 2) for index in range(len(methods))]
            axis.bar(spots, heights, width=0.23, label=name)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(methods)), methods)
        axis.set_title(title)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="FILE", help="print the tables of this file, and write nothing")
    args = parser.parse_args()
    if args.show:
        print(shown(args.show))
        return
    for name, tables in TABLES.items():
        path = HERE.parent / name
        text = path.read_text(encoding="utf-8")
        for mark, make in tables.items():
            text = rendered(text, mark, make())
        path.write_text(text, encoding="utf-8")
    picture(RESULTS / "speed.png")
    _pictures.curves(on_wikipedia(), MINILM, RESULTS / "replicate_curves.png")
    _pictures.forest(_replicated.compared(on_wikipedia(), MINILM), RESULTS / "replicate_differences.png")
    _pictures.forest(_help.compared(read("do_they_help"), "mean"), RESULTS / "do_they_help.png")
    _why.picture(read("why"), RESULTS / "why.png")
    _adapted.shares_picture(read("keep_share"), RESULTS / "keep_share.png")


if __name__ == "__main__":
    main()
