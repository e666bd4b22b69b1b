"""Suggests a next step after a run, as a sentence with a command."""

from __future__ import annotations

import shlex
from typing import Any

from st_contrastive.inputs.segments import get_language
from st_contrastive.recipes import Run, RunPlan, has_pooling


def describe_result(result: Run, plan: RunPlan) -> str:
    """The scores, the saved weights with the reason, the next step and the verdict, one per line."""
    names = {
        "trained": "the trained weights",
        "mixture": "the mixture of the trained weights with the start",
        "start": "the encoder that the run started from, unchanged",
    }
    reason = f", because {result.reason}" if result.reason else "."
    size = sum(file.stat().st_size for file in plan.folder.glob("**/checkpoint-*/**/*") if file.is_file())
    use = "hold only models" if plan.training.get("save_only_model") else "are only needed to resume"
    rest = f" Its checkpoints ({size / 1e6:,.0f} MB) {use}." if size else ""
    lines = [
        str(result),
        f"Saved in {plan.folder}: {names[str(result.saved)]}{reason}{rest}",
        f"Next: {next_step(result, plan)}",
    ]
    if result.verdict is not None:
        lines.append(f"VERDICT: {result.verdict}")
    return "\n".join(lines)


def next_step(result: Run, plan: RunPlan) -> str:
    """The next step as a sentence. Its commands only use files that the run has read, and work offline."""
    if hasattr(plan.method.loss_class, "save_auxiliary"):
        folder = str(plan.folder)
        words = ["--loss", "infocse", "--model", folder, "--auxiliary", folder, "--output_dir", f"{folder}-stage2"]
        texts = {"data": plan.run.data, "column": ",".join(plan.columns), "segment": plan.run.segment}
        words += [word for name, value in texts.items() if value for word in (f"--{name}", str(value))]
        return shlex.join(["st-contrastive", "train", *words])
    if result.saved == "start":
        return _another_try(result, plan)
    loading = f"SentenceTransformer({str(plan.folder)!r}) loads it"
    start = str(plan.run.model)
    modes = [mode for module in result.trainer.model if (mode := getattr(module, "pooling_mode", None))]
    # If the start has no saved pooling, search with the trained model's.
    pooling = [] if has_pooling(start) else ["--pooling", *modes[:1]] if modes else []
    search = _search_command(plan, [start, str(plan.folder)], pooling)
    return f"{loading}; to compare it with the start: {search}" if search else f"{loading}."


def _another_try(result: Run, plan: RunPlan) -> str:
    """A suggestion after a run that kept its start."""
    start, language = result.judgements.get("start"), get_language(plan.run.segment or "sentences") or "en"
    options = ["--bm25", *([] if language == "en" else ["--language", language])]
    command = _search_command(plan, [str(plan.folder)], options)
    by_bm25 = None if start is None else start.gain_by_bm25
    if command and by_bm25 is not None and by_bm25.high > 0:
        gain = by_bm25.describe(100)
        advice = "mix in BM25, which changes the score by"
        if by_bm25.low <= 0:
            advice = "try BM25, although its effect on this test is within chance:"
        return f"{advice} {gain}. Compare with and without --bm25 on your own queries: {command}"
    if result.after in (result.before, None):
        return "the score has not changed: train for more steps, or with a higher --learning_rate, in another folder."
    rate: Any = plan.training.get("learning_rate", 5e-5)
    mix = "" if plan.run.mix is not None else " or --mix 0.5"
    return f"try --learning_rate {rate / 3:.0e}{mix}, in another folder."


def _search_command(plan: RunPlan, models: list[str], options: list[str]) -> str:
    """A command that searches the user's documents with the models. "" if the documents are not in a file."""
    if not isinstance(plan.run.data, str):
        return ""
    columns = ["--column", ",".join(plan.columns)] if plan.columns else []
    return shlex.join(["st-contrastive", "search", plan.run.data, *models, "a query", *columns, *options])
