"""``st-contrastive report``: training runs as one HTML page, with the pictures in it."""

from __future__ import annotations

import argparse
import html
import io
import json
import warnings
from pathlib import Path
from typing import Any

from st_contrastive._checks import first_line
from st_contrastive._files import complete_file
from st_contrastive.cli._arguments import UserError, name, user_error, writing
from st_contrastive.cli._saving import report_file

_MARK = '<meta name="generator" content="st-contrastive report">'
_DEV = "eval_dev_spearman"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; margin: 0.5rem 0; } td, th { padding: 0.15rem 0.8rem 0.15rem 0; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } th { border-bottom: 1px solid #999; }
figure { margin: 0.5rem 0; } svg { max-width: 100%; height: auto; } figcaption, .small { color: #666; font-size: 0.9em;
}
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="show how a training run went",
        description="Write a page about training runs: curves, terms of the loss, the queue, similarities before and "
        "after, scores and settings. Needs matplotlib, which the extra 'plots' installs.",
    )
    parser.add_argument("runs", nargs="+", type=name, metavar="RUN_DIR", help="output of train or pretrain-infocse")
    parser.add_argument("--html", required=True, type=name, metavar="FILE", help="file of the page")
    parser.add_argument(
        "--scores", nargs="*", default=[], type=name, metavar="FILE", help="scores that evaluate --json wrote"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the records and write the page."""
    from st_contrastive.cli._record import NAME, read

    target = report_file("--html", args.html, ours=_is_page, what="page of st-contrastive report")
    with user_error(OSError, ValueError):
        folders = list(dict.fromkeys(Path(folder).resolve() for folder in args.runs))
        records = {run_name: read(folder) for run_name, folder in zip(_names(folders), folders, strict=True)}
        reports = [_scores(file) for file in args.scores]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # a run's name that matplotlib's font does not have
            page = rendered(records, reports)
    except ImportError as error:
        raise UserError("report needs matplotlib: install it, or this package with its extra 'plots'.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        files = ", ".join([*(str(Path(folder, NAME)) for folder in args.runs), *args.scores])
        raise UserError(
            f"one of {files} is not as st-contrastive wrote it ({type(error).__name__}: {first_line(error)})."
        ) from error
    with writing(f"--html {args.html}"), complete_file(target) as partial:
        partial.write_text(page, encoding="utf-8")
    print(f"Written to {target}.")
    return 0


def _names(folders: list[Path]) -> list[str]:
    """The last part of each folder's path, or as many parts as make the names differ."""
    for count in range(1, max([1, *(len(folder.parts) for folder in folders)]) + 1):
        names = ["/".join(folder.parts[-count:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def _is_page(file: Path) -> bool:
    try:
        return _MARK in file.read_text(encoding="utf-8")[:1000]
    except (OSError, ValueError):
        return False


def _scores(file: str) -> dict[str, Any]:
    try:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--scores {file} can't be read: {error.strerror or error}.") from error
    except ValueError:  # no JSON
        report = None
    if not isinstance(report, dict) or not isinstance(report.get("scores"), list):
        raise UserError(f"--scores {file} was not written by st-contrastive evaluate --json.")
    return report


def rendered(records: dict[str, dict[str, Any]], reports: list[dict[str, Any]]) -> str:
    """The page about the records, by the name of their run, and the reports of ``evaluate --json``."""
    names = html.escape(", ".join(records))
    parts = [
        f"<h1>{names}</h1>",
        _overview(records),
        _section("Development split", _scores_in_training(records), "Spearman x 100 at each evaluation, and the best."),
    ]
    suffixes = {run_name: f" of {html.escape(run_name)}" if len(records) > 1 else "" for run_name in records}
    for run_name, record in records.items():
        parts += [
            _section(f"Terms{suffixes[run_name]}", _terms(record), "The loss's weighted terms, as they were logged."),
            _figure(_queue(record), "Entries of the queue of past negatives."),
            _section(
                f"Similarity against gold{suffixes[run_name]}",
                _similarities(record),
                "Cosine similarity of the development pairs, by their gold score.",
            ),
        ]
    if reports:
        parts += ["<h2>Scores</h2>", _score_table(reports)]
    for run_name, record in records.items():
        parts += [f"<h2>Settings{suffixes[run_name]}</h2>", _settings("", record["options"])]
        parts += [_settings("SHA-256", record["files"])] if record.get("files") else []
        parts += [_settings("loss", record["loss"]), _settings("versions", record["versions"])]
    body = "\n".join(filter(None, parts))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{_MARK}<title>{names}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _overview(records: dict[str, dict[str, Any]]) -> str:
    rows = []
    for run_name, record in records.items():
        best = record.get("best") or {}
        value = f"{100 * best['value']:.2f} at step {best['step']}" if best.get("value") is not None else "not measured"
        if record.get("share", 1) < 1:
            value += f"; {record['share']:g} of these weights saved"
        losses = [entry["loss"] for entry in record["log"] if "loss" in entry]
        shown = ["nan" if value is None else f"{value:.4g}" for value in losses]
        ends = f"{shown[0]} to {shown[-1]}" if shown else ""
        rows.append(
            [run_name, record["loss"]["class"], f"{record['steps']:,}", f"{record['seconds']:,.0f}", ends, value]
        )
    return _table(["run", "loss", "steps", "seconds", "loss from, to", "best on dev"], rows)


def _settings(head: str, values: dict[str, Any]) -> str:
    return _table([head, ""], [[name, str(value)] for name, value in values.items()], numbers=False)


def _table(head: list[str], rows: list[list[str]], *, numbers: bool = True) -> str:
    def cell(value: str) -> str:
        kind = ' class="number"' if numbers and value[:1].isdigit() and " " not in value else ""
        return f"<td{kind}>{html.escape(value)}</td>"

    lines = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    names = "".join(f"<th>{html.escape(part)}</th>" for part in head)
    return f"<table><tr>{names}</tr>{lines}</table>" if any(head) else f"<table>{lines}</table>"


def _score_table(reports: list[dict[str, Any]]) -> str:
    from st_contrastive.evaluation import Score

    keys: dict[tuple[str, str, str], None] = {}
    found: list[dict[tuple[str, str, str], str]] = []
    for report in reports:
        own = {}
        for entry in report["scores"]:
            key = (str(entry["task"]), str(entry["split"]), str(entry["metric"]))
            keys[key] = None
            own[key] = Score(**{**entry, "value": float("nan") if entry["value"] is None else entry["value"]}).shown
        found.append(own)
    rows = [[*key, *(own.get(key, "") for own in found)] for key in keys]
    return _table(["task", "split", "metric", *_models(reports)], rows)


def _models(reports: list[dict[str, Any]]) -> list[str]:
    """A name for each report's model; two reports of one model have the same name."""
    models = [Path(str(report.get("model", ""))) for report in reports]
    names = dict(zip(dict.fromkeys(models), _names(list(dict.fromkeys(models))), strict=True))
    return [names[model] for model in models]


def _section(heading: str, drawing: str, caption: str) -> str:
    return f"<h2>{heading}</h2>\n{_figure(drawing, caption)}" if drawing else ""


def _figure(drawing: str, caption: str) -> str:
    return f"<figure>{drawing}<figcaption>{html.escape(caption)}</figcaption></figure>" if drawing else ""


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def new_axes(width: float = 8, height: float = 2.8) -> tuple[Any, Any]:
    """A figure, and its axes with steps along x; the size is in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("step")
    return figure, axis


def _scores_in_training(records: dict[str, dict[str, Any]]) -> str:
    """A line for each run that was evaluated, its best point marked; "" if none was."""
    drawn = {
        run_name: [(entry["step"], 100 * entry[_DEV]) for entry in record["log"] if entry.get(_DEV) is not None]
        for run_name, record in records.items()
    }
    if not any(drawn.values()):
        return ""
    figure, axis = new_axes()
    lines = {}
    for run_name, points in drawn.items():
        if points:
            (line,) = axis.plot(*zip(*points, strict=True), marker=".")
            lines[_literal(run_name)] = line
            best = max(points, key=lambda point: point[1])
            axis.plot(*best, marker="o", markersize=9, fillstyle="none", color=line.get_color())
    axis.legend(lines.values(), lines, fontsize=8)
    return _svg(figure)


def _literal(text: str) -> str:
    """Text for matplotlib: "$" starts no formula, and a leading "_" does not hide it from the legend."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _terms(record: dict[str, Any]) -> str:
    """A line for each term of the loss; "" if fewer than two steps were logged."""
    entries = [entry for entry in record["log"] if entry.get("loss") is not None]
    if len(entries) < 2:
        return ""
    from st_contrastive.cli._progress import NO_TERMS

    names = dict.fromkeys(key for entry in entries for key in entry if key not in NO_TERMS)
    figure, axis = new_axes()
    for key in ("loss", *names):
        points = [(entry["step"], entry[key]) for entry in entries if entry.get(key) is not None]
        if points:
            label = "sum" if key == "loss" else key
            axis.plot(*zip(*points, strict=True), label=label, linewidth=2 if key == "loss" else 1)
    values = [entry[key] for entry in entries for key in ("loss", *names) if entry.get(key)]
    if values and max(values) > 30 * min(values) > 0:
        axis.set_yscale("log")
    axis.legend(fontsize=8)
    return _svg(figure)


def _queue(record: dict[str, Any]) -> str:
    if not record.get("queue"):
        return ""
    figure, axis = new_axes(height=1.8)
    axis.plot(*zip(*record["queue"], strict=True))
    axis.set_ylim(bottom=0)
    return _svg(figure)


def _similarities(record: dict[str, Any]) -> str:
    """Similarities of the pairs before and after; "" if none after is known, as in a run that diverged."""
    bands = (record.get("similarities") or {}).get("after") or []
    if not any(map(_known, bands)):
        return ""
    figure, axis = new_axes(height=3.2)
    axis.set_xlabel("gold score")
    for shift, when, colour in ((-0.18, "before", "#999999"), (0.18, "after", "#1f77b4")):
        known = map(_known, record["similarities"].get(when) or [])
        filled = [(place, own) for place, own in enumerate(known) if len(own) > 1]
        if filled:
            drawn = axis.violinplot(
                [own for _, own in filled], [place + shift for place, _ in filled], widths=0.34, showmedians=True
            )
            for part in (*drawn["bodies"], drawn["cmedians"], drawn["cbars"], drawn["cmins"], drawn["cmaxes"]):
                part.set_color(colour)
            axis.plot([], [], color=colour, label=when)
    axis.set_xticks(range(len(bands)), [f"{band['from']:g} to {band['to']:g}" for band in bands])
    axis.set_ylabel("cosine similarity")
    axis.legend(fontsize=8)
    return _svg(figure)


def _known(band: dict[str, Any]) -> list[float]:
    return [one for one in band["similarities"] if one is not None]
