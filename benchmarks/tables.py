"""Write the tables of the docs and of benchmarks/README.md from the result lines: ``python -m benchmarks.tables``.

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``. Each row has the mean over its seeds; the rows after
the baseline have the difference from it, paired by seed, with Student's 95 % interval.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from scipy import stats

from benchmarks import RESULTS
from st_contrastive.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "training.md", ROOT / "benchmarks" / "README.md")
TESTS = ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
TRANSFER = ["mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"]
#: Rows of encoders before training, which come first.
STARTS = ("untrained", "after stage 1")
#: File of the result lines, table in it, the baseline's row, and the columns.
TABLES = {
    "minilm-last": ("sentence_encoder.jsonl", "minilm-mean, last step", "SimCSE without head"),
    "minilm-recipe": ("sentence_encoder.jsonl", "minilm-mean, temperature 0.05", "SimCSE without head"),
    "minilm-mean": ("sentence_encoder.jsonl", "minilm-mean", "SimCSE"),
    "minilm-cls": ("sentence_encoder.jsonl", "minilm-cls", "SimCSE"),
    "language-model": ("language_model.jsonl", "language-model", "SimCSE"),
    "language-model-papers": ("language_model.jsonl", "language-model, papers' values", "SimCSE"),
    "language-model-transfer": ("language_model.jsonl", "language-model, transfer", "SimCSE"),
}


def lines(file: str, table: str) -> pd.DataFrame:
    """One row a run: its name, its seed, and the means over dev, the tests and the transfer tasks."""
    raw = pd.read_json(RESULTS / file, lines=True)
    raw = raw[raw["table"] == table].reset_index(drop=True)
    scores = pd.json_normalize(raw["scores"].tolist())
    runs = raw[["row", "seed"]].copy()
    runs["dev"] = scores["dev"]
    for name, columns in (("tests", TESTS), ("transfer", TRANSFER)):
        if present := [column for column in columns if column in scores]:
            runs[name] = scores[present].mean(axis=1, skipna=False)
    return runs.dropna(axis=1, how="all")


def difference(row: pd.Series, baseline: pd.Series | float) -> str:
    """Mean difference by seed with its interval, as ``+0.24 (-0.21 to +0.70)``."""
    paired = (row - baseline).dropna()
    if paired.empty:
        return ""
    mean = paired.mean()
    if len(paired) < 2:
        return f"{mean:+.2f}"
    half = stats.t.ppf(0.975, len(paired) - 1) * paired.std(ddof=1) / len(paired) ** 0.5
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def table(file: str, name: str, baseline: str) -> str:
    """A Markdown table of the runs."""
    runs = lines(file, name)
    scores = [column for column in ("dev", "tests", "transfer") if column in runs]
    base = runs[runs["row"] == baseline].set_index("seed")
    text = ["| loss | seeds | " + " | ".join(scores) + " |", "|---|---|" + "---|" * len(scores)]
    means = runs.groupby("row")["tests"].mean()
    for row in sorted(means.index, key=lambda row: (row not in STARTS, row != STARTS[0], row != baseline, -means[row])):
        part = runs[runs["row"] == row].set_index("seed")
        cells = []
        for column in scores:
            if row in (baseline, *STARTS):
                mean = part[column].mean()
                cells.append("" if pd.isna(mean) else f"{mean:.1f}")
            else:
                cells.append(difference(part[column], base[column]))
        seeds = "" if row in STARTS else str(len(part.index.intersection(base.index)))
        text.append(f"| {row} | {seeds} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def steps(on_gpu: bool) -> str:
    """A Markdown table of what a step costs: a column for each line of steps.jsonl, as ratios to SimCSE."""
    runs = pd.read_json(RESULTS / "steps.jsonl", lines=True)
    runs = runs[(runs["device"] != "cpu") == on_gpu].reset_index(drop=True)
    times = pd.DataFrame(runs["seconds"].tolist())
    ratios = times.div(times["simcse"], axis=0).T.drop("simcse").dropna(how="all")
    if not on_gpu:  # where the bare passes, which are not grouped by length, cost more than the losses
        ratios = ratios[~ratios.index.str.contains("bare")]
    heads = [
        f"{Path(encoder).name}, batch {batch}" for encoder, batch in zip(runs["encoder"], runs["batch"], strict=True)
    ]
    text = ["| loss | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    seconds = (f"1 ({1000 * second:.0f} ms)" for second in times["simcse"])
    text.append("| SimCSE | " + " | ".join(seconds) + " |")
    for name, row in ratios.sort_values(0).iterrows():
        method, *bare = str(name).split(", ")
        title = METHODS[method].title if method in METHODS else method
        title += (", two columns" if method == "twins" else "") + "".join(f", its {part}" for part in bare)
        cells = ("" if pd.isna(ratio) else f"{ratio:.2f}" for ratio in row)
        text.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def own_text() -> str:
    """A Markdown table of what training on a corpus brought there, as differences from the untrained encoders."""
    runs = pd.read_json(RESULTS / "own_text.jsonl", lines=True)
    starts = runs[runs["encoder"] == "untrained"].set_index("model").sort_index()
    scores = [(model, judge) for model in starts.index for judge in ("judged", "corpus")]
    judges = {"judged": "judged queries", "corpus": "CorpusEvaluator"}
    names = {"lm": "language model"}
    heads = (f"{names.get(model, model)}, {judges[judge]}" for model, judge in scores)
    text = ["| training | " + " | ".join(heads) + " |"]
    text.append("|---|" + "---|" * len(scores))
    text.append("| untrained | " + " | ".join(f"{starts.loc[model, judge]:.1f}" for model, judge in scores) + " |")
    for encoder, part in runs[runs["encoder"] != "untrained"].groupby("encoder", sort=False):
        method, *rest = str(encoder).split()
        title = METHODS[method].title + (" without head" if "head=null" in rest else "")
        title += " with the projector" if "head=projector" in rest else ""
        title += ", after stage 1" if any(word.startswith("stage1") for word in rest) else ""
        title += "".join(f", {word.replace('=', ' ')}" for word in rest if word.startswith(("mlm_weight", "pairs")))
        title += ", half mixed with the start" if "half" in rest else ""
        cells = (
            difference(part[part["model"] == model].set_index("seed")[judge], starts.loc[model, judge])
            for model, judge in scores
        )
        text.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def long_runs() -> str:
    """A Markdown table of dev during long runs, one row a method and seed."""
    runs = pd.read_json(RESULTS / "long_runs.jsonl", lines=True).dropna(subset="dev_at")
    shown = ["0", "1000", "3000", "5000", "7000"]
    text = ["| loss | seed | " + " | ".join(f"step {int(step):,}" for step in shown) + " | tests |"]
    text.append("|---|---|" + "---|" * (len(shown) + 1))
    for _, run in runs.sort_values(["row", "seed"]).iterrows():
        cells = (f"{run['dev_at'][step]:.1f}" if step in run["dev_at"] else "" for step in shown)
        scores = run["scores"] if isinstance(run["scores"], dict) else {}
        tests = [scores[name] for name in TESTS if name in scores]
        end = f"{sum(tests) / len(tests):.1f}" if tests else ""
        text.append(f"| {run['row']} | {run['seed']} | " + " | ".join(cells) + f" | {end} |")
    return "\n".join(text)


def logged() -> str:
    """A Markdown table of the loss that is logged early and late in runs from a sentence encoder, lowest to highest."""
    runs = pd.read_json(RESULTS / "sentence_encoder.jsonl", lines=True)
    runs = runs[(runs["table"] == TABLES["minilm-last"][1]) & runs["losses"].notna()]
    text = ["| loss | seeds | steps 1 to 10 | steps 91 to 100 |", "|---|---|---|---|"]
    for row, part in runs.groupby("row"):
        losses = pd.DataFrame(part["losses"].tolist())
        ends = ([f"{bound(losses[step]):.2g}" for bound in (min, max)] for step in ("10", "100"))
        cells = (low if low == high else f"{low} to {high}" for low, high in ends)
        text.append(f"| {row} | {len(part)} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def memory() -> str:
    """A Markdown table of what a step of SimCSE holds, with and without glibc's setting."""
    runs = pd.read_json(RESULTS / "memory.jsonl", lines=True)
    runs["size"] = [run["options"].get("mini_batch_size", "None") for _, run in runs.iterrows()]
    text = ["| sentences | `mini_batch_size` | memory | as glibc is by default |", "|---|---|---|---|"]
    for (batch, size), part in runs.groupby(["batch", "size"]):
        own, default = (
            part[part["MALLOC_MMAP_THRESHOLD_"].notna() == told]["peak_gb"].item() for told in (True, False)
        )
        text.append(f"| {batch:,} | {size} | {own:.1f} GB | {default:.1f} GB |")
    return "\n".join(text)


def every_table() -> dict[str, str]:
    """The tables by their names in the pages."""
    rest = {"steps": steps(False), "steps-gpu": steps(True), "own-text": own_text(), "long-runs": long_runs()}
    rest |= {"logged": logged(), "memory": memory()}
    return {name: table(*arguments) for name, arguments in TABLES.items()} | rest


def main() -> None:
    """Replace the tables of the pages."""
    tables = every_table()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, rows in tables.items():
            marks = f"<!-- {name} -->", f"<!-- /{name} -->"
            replacement = f"{marks[0]}\n{rows}\n{marks[1]}"
            text = re.sub(f"{marks[0]}.*?{marks[1]}", lambda _, new=replacement: new, text, flags=re.DOTALL)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
