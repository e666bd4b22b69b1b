"""MTEB tasks, run by mteb itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from st_contrastive._checks import import_extra
from st_contrastive.evaluation.report import Report, Score


def evaluate_mteb(
    model: Any, tasks: Sequence[Any], *, name: str = "model", batch_size: int = 64, **options: Any
) -> Report:
    """Score a model on MTEB tasks by ``mteb.evaluate``: the main score of each task and split.

    Args:
        model: a SentenceTransformer.
        tasks: names of tasks, such as "SciFact", whose data comes from the hub or its local cache; or task objects.
        options: more arguments of ``mteb.evaluate``. By default no result file is read or written (``cache=None``),
            because mteb gives all models that are not on the hub the same name, and would confuse their results.

    Raises:
        ImportError: mteb is not installed.
        ValueError: ``tasks`` is empty.
        KeyError: mteb has no task with this name.
    """
    if not tasks:
        raise ValueError("tasks is empty: name one or more MTEB tasks, such as 'STSBenchmark'.")
    mteb = import_extra("mteb", "eval")
    chosen = [mteb.get_task(task) if isinstance(task, str) else task for task in tasks]
    options = {"cache": None, "show_progress_bar": False, "co2_tracker": False, **options}
    results = mteb.evaluate(model, chosen, encode_kwargs={"batch_size": batch_size}, **options)
    scores = []
    by_name = {task.metadata.name: task for task in chosen}
    for result in results.task_results:
        task = by_name[result.task_name]
        for split, subsets in result.scores.items():
            values = [float(subset["main_score"]) for subset in subsets]
            size = int((task.metadata.n_samples or {}).get(split, 0))
            mean = sum(values) / len(values)
            scores.append(Score(task.metadata.name, split, str(task.metadata.main_score), mean, size))
    return Report(name, tuple(scores), {"suite": "mteb", "mteb": mteb.__version__})
