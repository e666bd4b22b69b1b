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
    lines = [
        str(result),
        f"Saved in {plan.folder}: {names[str(result.saved)]}{reason}",
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
    # A start without a pooling is compared with the pooling of the trained model.
    pooling = [] if has_pooling(start) else ["--pooling", *modes[:1]] if modes else []
    search = _search_command(plan, [start, str(plan.folder)], pooling)
    return f"{loading}; to compare it with the start: {search}" if search else f"{loading}."


def _another_try(result: Run, plan: RunPlan) -> str:
    """A suggestion after a run that kept its start."""
    start, language = result.judgements.get("start"), get_language(plan.run.segment or "sentences") or "en"
    options = ["--bm25", *([] if language == "en" else ["--language", language])]
    command = _search_command(plan, [str(plan.folder)], options)
    if command and start is not None and start.mixed_ndcg is not None and start.mixed_ndcg > start.ndcg:
        return f"add BM25, which raises the score to {100 * start.mixed_ndcg:.2f}: {command}"
    if plan.recipe.name == "own-text" and len(plan.columns) < 2 and plan.run.pairs is None:
        return "train pairs, in another folder: --column with two columns that belong together, or --pairs first."
    if {result.after, result.mixed} <= {result.before, None}:
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
