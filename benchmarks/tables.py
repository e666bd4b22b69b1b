"""Write the tables of the pages from the result lines, and README's picture: ``python -m benchmarks.tables``.

A table or a sentence stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``. The heading of a column names the kind of
its intervals: over seeds, half of Student's 95 % interval of the paired differences; over queries, what the result line
holds.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from scipy import stats

from benchmarks import RESULTS
from benchmarks.lines import BASELINE, ENCODERS, ROOT, runs_of
from benchmarks.merging import LOWEST_RATE
from benchmarks.own_text import CHANGES
from benchmarks.picture import LANGUAGE_MODEL, trained_encoder
from benchmarks.picture import main as draw_pictures
from st_contrastive.evaluation import Comparison
from st_contrastive.evaluation.paired import LEAST_LEAD, Change
from st_contrastive.methods import METHODS

PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{page}.md" for page in ("results", "training")),
    ROOT / "benchmarks" / "README.md",
)
#: Rows of own text whose mixtures are shown too.
MIXED = ("sentences, learning rate 3e-5",)
#: The corpora that choose a learning rate and share, and those that confirm the choice.
CHOOSING, CONFIRMING = ("scifact-1500", "cisi", "cacm"), ("lisa", "cf")
#: Stands for the share that Model Stock computes for each weight matrix.
STOCK = -1.0
#: Rows that are only shown with the decision of the test.
JUDGED = {*CHANGES, "own-text, 150 steps", "learning rate 3e-4", "untrained"} - {"pairs under a guide"}
#: Names that fit a narrow screen.
SHORT = {"MultipleNegativesRankingLoss": "MNRL, built in"}
#: Rows of encoders before training, which come first.
STARTS = ("untrained", "after stage 1")


def mean_and_half(row: pd.Series, baseline: pd.Series | float) -> tuple[float, float]:
    """Mean difference by seed, and half of its interval: NaN for one seed. Both are NaN without seeds."""
    paired = (row - baseline).dropna()
    return paired.mean(), stats.t.ppf(0.975, len(paired) - 1) * paired.std(ddof=1) / len(paired) ** 0.5


def difference(row: pd.Series, baseline: pd.Series | float) -> str:
    """Mean difference and half of its interval, as ``+0.24 ± 0.45``."""
    mean, half = mean_and_half(row, baseline)
    if pd.isna(mean):
        return ""
    return f"{mean:+.2f}" if pd.isna(half) else f"{mean:+.2f} ± {half:.2f}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [" | ".join(cells).rstrip() for cells in (head, *rows)]
    return "\n".join([lines[0], "|".join(["---"] * len(head)), *lines[1:]])


def two_encoders() -> str:
    """What each loss brings from each of two trained encoders, on the test sets."""
    runs = runs_of("two_encoders.jsonl", "two encoders").set_index("seed")
    tests = {(row, encoder): part["tests"] for (row, encoder), part in runs.groupby(["row", "encoder"])}
    last = [*ENCODERS][-1]
    best = {row: scores.mean() for (row, encoder), scores in tests.items() if encoder == last}
    rows = sorted(runs["row"].unique(), key=lambda row: (row != "untrained", row != BASELINE, -best.get(row, 0)))
    table = []
    for row in rows:
        seeds = "/".join(str(len(tests.get((row, encoder), ()))) for encoder in ENCODERS)
        cells = []
        for encoder in ENCODERS:
            scores = tests.get((row, encoder), pd.Series(dtype=float))
            cells.append(f"{scores.mean():.1f}" if len(scores) else "")
            if len(scores) and row not in ("untrained", BASELINE):
                cells[-1] += f", {difference(scores, tests[BASELINE, encoder])}"
        table.append([SHORT.get(row, row), "" if row == "untrained" else seeds, *cells])
    heads = [f"{title} (± over seeds)" for title in ENCODERS.values()]
    return markdown(["loss", "seeds", *heads], table)


def language_model() -> str:
    """What each loss brings from a small language model, on the test sets."""
    runs = runs_of("language_model.jsonl", "language-model").set_index("seed")
    tests = {row: part["tests"] for row, part in runs.groupby("row")}
    order = sorted(tests, key=lambda row: (row not in STARTS, row != STARTS[0], row != "SimCSE", -tests[row].mean()))
    table = []
    for row in order:
        scores, base = tests[row], tests["SimCSE"]
        seeds = "" if row in STARTS else str(len(scores.index.intersection(base.index)))
        change = "" if row in ("SimCSE", *STARTS) else difference(scores, base)
        table.append([row, seeds, f"{scores.mean():.1f}", change])
    return markdown(["loss", "seeds", "tests", "from SimCSE (± over the same seeds)"], table)


def own_text_runs() -> pd.DataFrame:
    """What training brought to a corpus's search ("gain", "gain with bm25"), and what BM25 adds before training."""
    runs = pd.read_json(RESULTS / "own_text.jsonl", lines=True)
    for scored in ("", " with bm25"):
        runs[f"gain{scored}"] = runs[f"trained{scored}"] - runs[f"start{scored}"]
    # By today's rule; the intervals that "worse" needs are not recorded, so that decision stays.
    is_better = (runs["corpus trained"] > runs["corpus start"]) & (runs["lead"] >= LEAST_LEAD)
    known = runs["lead"].notna()
    runs.loc[known & is_better, "decision"] = "better"
    runs.loc[known & ~is_better & (runs["decision"] == "better"), "decision"] = "no difference"
    return runs.assign(bm25=runs["start with bm25"] - runs["start"])


def own_text() -> str:
    """What training on SciFact brought to its search, as differences from untrained encoders in nDCG@10."""
    runs = own_text_runs()
    runs = runs[(runs["corpus"] == "scifact") & ~runs["row"].isin(JUDGED)]
    parts = {encoder: runs[runs["encoder"] == encoder] for encoder in ENCODERS}
    table = [["untrained", *(f"{part['start'].median():.1f}" for part in parts.values())]]
    for row in dict.fromkeys(runs["row"]):
        for kind, title in (("trained", row), ("mixed", f"{row}, half mixed")):
            if kind == "trained" or row in MIXED:
                cells = (part[part["row"] == row] for part in parts.values())
                table.append([title, *(difference(part[kind] - part["start"], 0.0) for part in cells)])
    return markdown(["training", *(f"{title} (± over seeds)" for title in ENCODERS.values())], table)


def steps() -> str:
    """What a step costs, as ratios to SimCSE: a column for each line of steps.jsonl with batches for training."""
    runs = pd.read_json(RESULTS / "steps.jsonl", lines=True)
    runs = runs[runs["batch"] >= 64].reset_index(drop=True)
    times = pd.DataFrame(runs["seconds"].tolist())
    ratios = times.div(times["simcse"], axis=0).T.drop("simcse").dropna(how="all")
    ratios = ratios[~ratios.index.str.contains("bare")]  # the passes of a loss without the loss
    heads = (
        f"{Path(run['encoder']).name}, {'CPU' if run['device'] == 'cpu' else 'H100'}, {run['batch']}"
        for _, run in runs.iterrows()
    )
    table = [["SimCSE", *(f"{1000 * second:.0f} ms" for second in times["simcse"])]]
    for name, row in ratios.sort_values(0).iterrows():
        title = METHODS[name].title if name in METHODS else str(name)
        title += ", two columns" if name == "twins" else ""
        table.append([title, *("" if pd.isna(ratio) else f"{ratio:.2f}" for ratio in row)])
    return markdown(["loss", *heads], table)


def long_runs() -> str:
    """Dev scores during long runs: a row for each method, with all of its seeds."""
    runs = pd.read_json(RESULTS / "long_runs.jsonl", lines=True).dropna(subset="dev_at")
    shown = ["0", "1000", "5000", "7000"]
    table = []
    for row, part in runs.sort_values("seed").groupby("row"):
        scores = part["dev_at"].tolist()
        table.append([row, *(", ".join(f"{dev[step]:.1f}" for dev in scores if step in dev) for step in shown)])
    return markdown(["loss", *(f"step {int(step):,}" for step in shown)], table)


def memory() -> str:
    """Memory of a step of SimCSE, and its time, with and without glibc's setting."""
    runs = pd.read_json(RESULTS / "memory.jsonl", lines=True)
    runs["size"] = [run["options"].get("mini_batch_size", "None") for _, run in runs.iterrows()]
    table = []
    for (batch, size), part in runs.groupby(["batch", "size"]):
        cells = []
        for is_set in (True, False):
            run = part[part["MALLOC_MMAP_THRESHOLD_"].notna() == is_set].iloc[0]
            cells.append(f"{run['peak_gb']:.1f} GB")
        part = part.sort_values("MALLOC_MMAP_THRESHOLD_")
        with_setting, without = (run["seconds"]["simcse"] for _, run in part.iterrows())
        table.append([f"{batch:,}", str(size), *cells, f"{with_setting / without:.1f} times as long"])
    heads = ["sentences", "`mini_batch_size`", "peak with the setting", "peak without it", "time with the setting"]
    return markdown(heads, table)


def bm25() -> str:
    """What mixing the untrained MiniLM with BM25 brings."""
    runs = own_text_runs().dropna(subset="bm25 interval")
    table = [
        [
            run["corpus"],
            f"{run['queries']:,.0f}",
            f"{run['start']:.1f}",
            f"{run['bm25']:+.1f} ± {run['bm25 interval']:.1f}",
        ]
        for _, run in runs.iterrows()
    ]
    return markdown(["corpus", "queries", "encoder", "gain with BM25 (± over queries)"], table)


def judge() -> str:
    """Decisions of the test on a corpus about altered encoders, and the change by judged queries."""
    runs = pd.read_json(RESULTS / "judge.jsonl", lines=True)
    names = ["gain", "low", "high", "lead", "lead low", "lead high"]
    changes = runs[names].itertuples(index=False, name=None)
    runs["decision"] = [Comparison(0, 0, 0, Change(*row[:3]), Change(*row[3:])).decision for row in changes]
    table = []
    for decision in ("better", "no difference", "worse"):
        judged = runs[runs["decision"] == decision]["judged"]
        counts = (len(judged), (judged < -0.3).sum(), (judged >= 1).sum())
        table.append([decision, *(str(count) for count in counts), f"{judged.mean():+.1f}"])
    return markdown(["the test says", "changes", "fell by more than 0.3", "rose by 1 or more", "mean"], table)


def whole_runs() -> str:
    """What own-text brought to judged search, the mean of seeds, and what the test on the corpus said."""
    runs = own_text_runs().dropna(subset="decision")
    runs = runs[runs["row"] == "own-text"]
    runs["corpus"] += runs["encoder"].map(lambda name: "" if ENCODERS[name] == "MiniLM" else f", {ENCODERS[name]}")
    table = []
    for corpus, part in runs.groupby("corpus"):
        cells = [f"{corpus} ({len(part)})" if len(part) > 1 else corpus]
        for scored in ("", " with bm25"):
            cells.append(f"{round(part[f'gain{scored}'].mean(), 1) + 0.0:+.1f}")  # no -0.0
            if pd.notna(half := part[f"trained{scored} interval"].mean()):
                cells[-1] += f" ± {half:.1f}"
        table.append([*cells, ", ".join(part["decision"].unique())])
    heads = ["encoder (± over queries)", "with BM25 (± over queries)"]
    return markdown(["corpus (seeds)", *heads, "the test says"], table)


def other_runs() -> str:
    """What other settings with several runs brought: the mean, the lowest and the highest."""
    runs = own_text_runs().dropna(subset="decision")
    table = []
    for row, part in runs[runs["row"] != "own-text"].groupby("row"):
        if len(part) == 1:
            continue
        cells = [f"{row}", str(len(part))]
        for gains in (part["gain"], part["gain with bm25"]):
            spread = f" ({gains.min():+.1f} to {gains.max():+.1f})"
            cells.append(f"{gains.mean():+.1f}{spread}")
        table.append([*cells, str((part["decision"] == "better").sum())])
    heads = ["encoder (lowest to highest)", "with BM25 (lowest to highest)"]
    return markdown(["training", "runs", *heads, "called better"], table)


def verdicts() -> str:
    """How often the test on a corpus was right, on the runs that chose its rule and on later ones."""
    first = own_text_runs().dropna(subset=["decision", "lead"])
    later = merging_runs().dropna(subset="decision")
    chosen_on = _decided(first, where="in judged search, ")
    return f"The test called {chosen_on}\nSince its rule was chosen, it has called {_decided(later)}"


def _decided(runs: pd.DataFrame, where: str = "") -> str:
    better, refused = (runs[(runs["decision"] == "better") == called]["gain"] for called in (True, False))
    return (
        f"{len(better)} of {len(runs)} runs better: {where}{(better > 0).sum()} gained and {(better < 0).sum()} lost "
        f"up to {-better.min():.1f} points. Of the others, {(refused > 0).sum()} gained and {(refused < 0).sum()} lost."
    )


def interval(row: pd.Series, baseline: pd.Series | float) -> set[str]:
    """A mean difference and the ends of its interval, without signs."""
    mean, half = mean_and_half(row, baseline)
    return {f"{abs(value):.1f}" for value in (mean, mean - half, mean + half) if pd.notna(value)}


def figures() -> set[str]:
    """The figures that README may quote: starts, means, gains and intervals."""
    found: set[str] = set()
    runs = runs_of("language_model.jsonl", "language-model")
    start = runs[runs["row"] == "untrained"]["tests"].item()
    found.add(f"{start:.1f}")
    simcse = runs[runs["row"] == "SimCSE"].set_index("seed")["tests"]
    for row in LANGUAGE_MODEL.values():
        tests = runs[runs["row"] == row].set_index("seed")["tests"]
        found.add(f"{tests.mean():.1f}")
        if not tests.equals(simcse):
            found |= {f"{value:.1f}" for value in mean_and_half(tests, simcse)}
    runs = runs_of("two_encoders.jsonl", "two encoders")
    found |= {f"{mean:.1f}" for mean in runs.groupby(["encoder", "row"])["tests"].mean()}
    runs = own_text_runs()
    for _, part in runs[runs["row"] == "own-text"].groupby(["corpus", "encoder"]):
        found |= interval(part["gain"], 0.0)
    gains = ["gain", "gain with bm25", "trained interval", "trained with bm25 interval"]
    judged = runs.dropna(subset="decision")
    means = judged.groupby(["row", "corpus", "encoder"])[gains].mean()
    for part in (judged[gains], means, runs.dropna(subset="bm25 interval")[["bm25", "bm25 interval"]]):
        found |= {f"{abs(value):.1f}" for value in part.to_numpy().ravel()}
    merged = merging_runs()
    gains = ["gain", "interval", "gain with bm25", "interval with bm25"]
    means = merged.groupby(["encoder", "kind", "rate", "share", "corpus"])[gains].mean()
    for part in (merged[gains], means):
        found |= {f"{abs(value):.1f}" for value in part.to_numpy().ravel()}
    return found | set(re.findall(r"\d+\.\d+", trained_encoder().message))


def merging_runs() -> pd.DataFrame:
    """Runs at higher learning rates, with what they brought to a corpus's search ("gain", "gain with bm25")."""
    runs = pd.read_json(RESULTS / "merging.jsonl", lines=True)
    for scored in ("", " with bm25"):
        runs[f"gain{scored}"] = runs[f"score{scored}"] - runs[f"start{scored}"]
    return runs.assign(share=runs["share"].fillna(STOCK))


def merging() -> str:
    """What own-text brought at higher learning rates and shares of the trained weights, by corpus: means of seeds."""
    runs = merging_runs()
    corpora = [*CHOOSING, *CONFIRMING]
    setting = ["encoder", "kind", "rate", "share"]
    groups = runs.groupby([*setting, "corpus"])
    means, sizes = groups[["gain", "gain with bm25"]].mean(), groups.size()
    table = []
    for (encoder, kind, rate, share), part in sorted(means.groupby(level=setting), key=_merging_order):
        found = part.droplevel(setting)
        cells = [
            ", ".join(f"{gain:+.1f}" for gain in found.loc[name]) if name in found.index else "" for name in corpora
        ]
        chosen = found["gain with bm25"].reindex(CHOOSING)
        cells.insert(len(CHOOSING), "" if chosen.isna().any() else f"{chosen.mean():+.2f}")
        name = (
            f"{rate:g}, Model Stock" if share == STOCK else f"{rate:g}, {'soup, ' if kind == 'soup' else ''}{share:g}"
        )
        if encoder != "all-MiniLM-L6-v2":
            name = f"{encoder}, {name}"
        seeds = sizes.loc[encoder, kind, rate, share].reindex(corpora).fillna(0).astype(int)
        table.append([name, "/".join(map(str, seeds)), *cells])
    return markdown(["rate, share", "seeds", *CHOOSING, "their mean with BM25", *CONFIRMING], table)


def _merging_order(group: tuple[tuple[str, str, float, float], pd.DataFrame]) -> tuple[str, bool, str, float, float]:
    """By encoder, with the lowest learning rate first, then whole runs, soups and Model Stock."""
    (encoder, kind, rate, share), _ = group
    return encoder, rate > LOWEST_RATE, {"whole": "1", "soup": "2", "stock": "3"}[kind], rate, share


def every_table() -> dict[str, str]:
    """The tables, by the names that the pages give them."""
    found = {"two-encoders": two_encoders(), "language-model": language_model()}
    found |= {"own-text": own_text(), "bm25": bm25(), "judge": judge(), "whole-runs": whole_runs()}
    found |= {"other-runs": other_runs(), "verdicts": verdicts(), "merging": merging()}
    return found | {"steps": steps(), "long-runs": long_runs(), "memory": memory()}


def main() -> None:
    """Replace the tables of the pages, and draw the picture."""
    tables = every_table()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, rows in tables.items():
            marks = f"<!-- {name} -->", f"<!-- /{name} -->"
            replacement = f"{marks[0]}\n{rows}\n{marks[1]}"
            text = re.sub(f"{marks[0]}.*?{marks[1]}", lambda _, new=replacement: new, text, flags=re.DOTALL)
        page.write_text(text, encoding="utf-8")
    draw_pictures()


if __name__ == "__main__":
    main()
