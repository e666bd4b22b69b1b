"""Runs MTEB's own tasks and evaluators, on the hub's data or on local files of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from st_contrastive._files import sha256
from st_contrastive.evaluation._data_files import EvaluationDataError, folders_in, require_folder
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.retrieval_data import read_retrieval
from st_contrastive.evaluation.sts import ALL, SICK_ALL, plain, read_split, split_files

#: BEIR's names of sets by MTEB's names.
_BEIR = {"fiqa2018": "fiqa", "quoraretrieval": "quora", "dbpedia": "dbpediaentity", "touche2020": "webistouche2020"}


def evaluate_mteb(
    model: Any,
    tasks: Sequence[str],
    output: str | Path | None,
    *,
    name: str = "model",
    data: str | Path | None = None,
    batch_size: int = 64,
    overwrite: bool = False,
    progress: bool = False,
) -> Report:
    """Score a model on tasks of MTEB with ``mteb.evaluate``.

    Args:
        model: a SentenceTransformer.
        tasks: their names, such as STSBenchmark, STS12, SICK-R, SciFact.
        output: folder for MTEB's own result files (``results/<model>/<revision>/<task>.json``); None writes none. Tasks
            with a result of the same model, read in the same way, on the same data are not run again.
        name: the model's name in the report and the result files.
        data: folder with local files of the tasks: sets as :func:`evaluate_sts` and :func:`evaluate_retrieval` read
            them, named like the tasks (stsb for STSBenchmark), in it or in its folders sts, retrieval and zh. Tasks
            without a set there come from the hub.
        batch_size: of encoding.
        overwrite: also run tasks that have a result.
        progress: show MTEB's bars.

    Returns:
        The main score of each task and split.

    Raises:
        ImportError: mteb is not installed.
        EvaluationDataError: a task is unknown, or its data can't be loaded.
    """
    try:
        import mteb
        from mteb.cache import ResultCache
        from mteb.models import SentenceTransformerEncoderWrapper
    except ImportError as error:
        raise ImportError("MTEB's tasks need mteb: install st_contrastive with its extra 'eval'.") from error

    made = [mteb_task(task) for task in dict.fromkeys(tasks)]
    folders = {task.metadata.name: None if data is None else _folder(Path(data), task) for task in made}
    sizes = {task.metadata.name: _load(task, folders[task.metadata.name]) for task in made}
    wrapped = SentenceTransformerEncoderWrapper(model)
    own_revision = model_fingerprint(model)
    scores = []
    for task in made:
        # mteb gives every local model the same name, and would take the results of one for another's.
        folder = folders[task.metadata.name]
        revision = own_revision if folder is None else f"{own_revision}-{_folder_hash(folder)}"
        wrapped.mteb_model_meta = wrapped.mteb_model_meta.model_copy(
            update={"name": f"local/{Path(name).absolute().name}", "revision": revision}
        )
        try:
            found = mteb.evaluate(
                wrapped,
                task,
                cache=None if output is None else ResultCache(output),
                overwrite_strategy="always" if overwrite else "only-missing",
                encode_kwargs={"batch_size": batch_size, "show_progress_bar": False},
                show_progress_bar=progress,
                co2_tracker=False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            if task.data_loaded:
                raise
            raise EvaluationDataError(
                f"The data of {task.metadata.name} can't be loaded from the hub ({type(error).__name__}): name a "
                "folder that holds it."
            ) from error
        (result,) = found.task_results
        for split, subsets in result.scores.items():
            metric = str(task.metadata.main_score)
            own = [entry["main_score"] for entry in subsets]
            # mteb may not know the size of a split on the hub.
            size = sizes[task.metadata.name].get(split) or int((task.metadata.n_samples or {}).get(split, 0))
            scores.append(Score(task.metadata.name, split, metric, float(sum(own) / len(own)), size))
    local = {task: "local" if own else "hub" for task, own in sizes.items()}
    return Report(name, tuple(scores), {"suite": "mteb", "mteb": mteb.__version__, "data": local})


def model_fingerprint(model: Any) -> str:
    """A revision for a model without one: sixteen digits of a hash over its weights and how it reads.

    How it reads: each module's configuration (pooling, length), the encoder's and the tokenizer's, the prompts, and the
    number of dimensions kept.
    """
    weights = (
        part
        for key, tensor in sorted(model.state_dict().items())
        for part in (key.encode(), tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    )
    modules = [
        [
            type(module).__name__,
            module.get_config_dict() if hasattr(module, "get_config_dict") else None,
            _settings(module),
        ]
        for module in model
    ]
    names = ("max_seq_length", "prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name")
    reads = {name: getattr(model, name, None) for name in names}
    return sha256(itertools.chain(weights, [json.dumps([modules, reads], sort_keys=True, default=str).encode()]))[:16]


def _settings(module: Any) -> Any:
    """A module's own settings of encoder and tokenizer; of neither, where they are kept and under which version."""
    config: Any = getattr(getattr(module, "model", None), "config", None)
    encoder = config.to_dict() if hasattr(config, "to_dict") else {}
    tokenizer = getattr(module, "tokenizer", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    whole = json.loads(backend.to_str()) if backend is not None else {}
    return (
        {name: value for name, value in encoder.items() if name[0] != "_" and name != "transformers_version"},
        # Truncation and padding are those of the last call.
        {name: value for name, value in whole.items() if name not in ("truncation", "padding")},
        [getattr(tokenizer, side, None) for side in ("padding_side", "truncation_side")],
    )


def _folder_hash(folder: Path) -> str:
    """Eight digits of a hash over the files of a set."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return sha256(part for path in files for part in (str(path.relative_to(folder)).encode(), path))[:8]


def mteb_task(name: str) -> Any:
    """MTEB's task of that name.

    Raises:
        EvaluationDataError: it has none.
    """
    import mteb

    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise EvaluationDataError(
            f"mteb has no task {name!r}: {error.args[0] if error.args else error!s:.300}"
        ) from error


def _load(task: Any, folder: Path | None) -> dict[str, int]:
    """Give a task its local data, if there is any, and return the number of items of each split."""
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.sts import AbsTaskSTS

    if folder is None:
        return {}
    subsets = list(task.hf_subsets or ["default"])
    if subsets != ["default"]:
        raise EvaluationDataError(
            f"{folder} can't be given to {task.metadata.name}, which is made of {len(subsets)} subsets, such as "
            f"{subsets[0]}: local data is one set. Move the folder away to take the task's data from the hub."
        )
    if isinstance(task, AbsTaskSTS):
        return _load_sts(task, folder)
    if isinstance(task, AbsTaskRetrieval):
        return _load_retrieval(task, folder)
    raise EvaluationDataError(
        f"{folder} can't be given to {task.metadata.name}: local data is only read for tasks of STS and retrieval."
    )


def _folder(data: Path, task: Any) -> Path | None:
    """The folder of the task's set, if there is one. An English and a Chinese set may have the same name."""
    require_folder(data, "the tasks' sets, such as stsb/test.jsonl.gz")
    english = "eng" in task.metadata.languages
    wanted = plain(task.metadata.name.split(".")[0])
    names = (wanted, _BEIR.get(wanted, wanted))
    for place in (data, data / "sts", data / "retrieval") if english else (data / "zh", data):
        for folder in folders_in(place) if place.is_dir() else ():
            if plain(folder.name.removeprefix("cnsd_")) in names:
                return folder
    return None


def _load_sts(task: Any, folder: Path) -> dict[str, int]:
    """Load the task's splits that the folder has, at least one."""
    from datasets import Dataset, DatasetDict

    whole = task.metadata.name == "SICK-R"  # mteb's test split is the whole set
    splits: dict[str, Any] = {}
    for split in task.eval_splits:
        for wanted in (ALL, split) if whole else ("dev" if split == "validation" else split, split):
            files = split_files(folder, wanted)
            if files and split not in splits:
                pairs = read_split(files)
                if whole and wanted != ALL and len(pairs) != SICK_ALL:
                    continue
                first, second = task.column_names
                splits[split] = Dataset.from_dict({first: pairs.first, second: pairs.second, "score": pairs.scores})
    if not splits:
        names = ALL if whole else " or ".join(task.eval_splits)
        raise EvaluationDataError(
            f"{folder} holds no {names} split (.jsonl, .jsonl.gz), which {task.metadata.name} needs."
        )
    task.filter_eval_splits(list(splits))
    task.dataset = DatasetDict(splits)
    task.data_loaded = True
    return {split: len(rows) for split, rows in splits.items()}


def _load_retrieval(task: Any, folder: Path) -> dict[str, int]:
    from datasets import Dataset

    found: dict[str, Any] = {}
    for split in task.eval_splits:
        data = read_retrieval(folder, split)
        tables = ({"id": list(texts), "text": list(texts.values())} for texts in (data.documents, data.queries))
        corpus, queries = (Dataset.from_dict(table) for table in tables)
        if not all(gain.is_integer() for own in data.relevant.values() for gain in own.values()):
            raise EvaluationDataError(f"{folder} has judgements that are not whole numbers, which MTEB requires.")
        gains = {query: {document: int(gain) for document, gain in own.items()} for query, own in data.relevant.items()}
        found[split] = {"corpus": corpus, "queries": queries, "relevant_docs": gains, "top_ranked": None}
    task.dataset = {"default": found}
    task.data_loaded = True
    return {split: len(part["queries"]) for split, part in found.items()}
