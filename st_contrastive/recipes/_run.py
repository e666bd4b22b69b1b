"""A recipe, trained whole: both stages, the scores before and after, and the weights that are worth saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from torch import Tensor

from st_contrastive import __version__
from st_contrastive._files import complete_file, is_path
from st_contrastive.recipes._build import Data, build, resolve_settings, takes
from st_contrastive.recipes._recipe import Recipe, dump, load
from st_contrastive.training import ContrastiveTrainer, interpolate_weights
from st_contrastive.training.card import add_to_card

#: Settings of stage 2 that stage 1 has no use for, and those that a model card doesn't show.
_LATER = set("loss dev mix eval_strategy eval_steps load_best_model_at_end metric_for_best_model push_to_hub".split())
_PRIVATE = {"data", "translations", "output_dir", "prompts", "hub_token"}


@dataclass(frozen=True)
class Run:
    """What came of a run; ``str`` gives the scores in a line.

    With ``dev``, ``before``, ``after`` and ``mixed`` are the scores of the start, of the trained weights of the best
    step, and of their mixture; what gains no more than ``margin`` is not saved. ``saved`` is "start", "trained" or
    "mixture". Of a run that ``collapsed``, which says how, nothing is saved. ``trainer`` is that of the last stage.
    """

    trainer: ContrastiveTrainer
    before: float | None = None
    after: float | None = None
    mixed: float | None = None
    saved: str | None = None
    collapsed: str | None = None
    margin: float = 0.0

    @property
    def helped(self) -> bool | None:
        """Whether what is saved scored higher than the start, by more than the margin; None without ``dev``."""
        return None if self.before is None else self.saved in ("trained", "mixture")

    def __str__(self) -> str:
        scores = {"before training": self.before, "after": self.after, "mixed": self.mixed}
        said = ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items() if score is not None)
        return f"Score {said}." if said else "No dev was given, so whether training helped is not known."


def run(
    recipe: str | Recipe,
    *,
    data: Data | None = None,
    output_dir: str | Path,
    on_trainer: Callable[[ContrastiveTrainer], None] = lambda trainer: None,
    on_score: Callable[[float], None] = lambda score: None,
    **overrides: Any,
) -> Run:
    """Train a recipe, both stages where it has two, and save the model in ``output_dir``.

    Stage 1 goes to ``output_dir/stage1``. It takes the settings of the run, but for those that the recipe, or
    ``stage1={...}``, names for it; with ``auxiliary``, a folder or None, there is no stage 1.
    ``mix`` is the share of the trained weights in a mixture with those of the start. With ``dev``, the start, the
    trained weights and the mixture are scored, and the best is saved if it gains more than ``margin``, or else the
    evaluator's; otherwise the start is. Without ``dev``, the mixture is saved, or the trained weights if there is none.
    ``output_dir/run.yaml`` holds the settings, for ``st-contrastive train``. ``resume_from_checkpoint="true"``
    continues from the newest checkpoint, if there is one. Without it, a folder with another run is refused.

    The other arguments are those of :func:`trainer`. ``on_trainer`` is called with each stage's Trainer before it
    trains, and ``on_score`` with the score before training.
    """
    # The settings.
    chosen = load(recipe) if isinstance(recipe, str) else recipe
    stage1 = None
    if chosen.stage1 is not None and "auxiliary" not in overrides:
        stage1 = {**chosen.stage1, **overrides.pop("stage1", {})}
    settings = resolve_settings(chosen, {**overrides, "data": data, "output_dir": output_dir})
    folder, share = Path(output_dir).expanduser(), settings.get("mix")
    resume = settings.pop("resume_from_checkpoint", None) or False
    resume = {"true": True, "false": False}.get(str(resume).lower(), resume)  # of the command line
    if not resume and any(path for name in ("modules.json", "README.md", "checkpoint-*") for path in folder.glob(name)):
        raise ValueError(
            f"output_dir {folder} holds a model, its README.md or checkpoints: name another folder, or continue that "
            "run with resume_from_checkpoint=true."
        )
    trainer = build(settings)  # what is wrong with stage 2 is said before hours of stage 1
    texts: Any = trainer.train_dataset
    if "margin" not in overrides and "other" not in texts.column_names:
        settings.pop("margin", None)  # a recipe's is for pairs
    if trainer.is_world_process_zero():
        _write_settings(
            folder / "run.yaml", chosen.name, settings if stage1 is None else {**settings, "stage1": stage1}
        )

    # The start, scored.
    if stage1 is None:
        on_trainer(trainer)
    start, before = _weights(trainer), _score(trainer)
    if before is not None:
        on_score(before)

    # The stages, trained.
    if stage1 is not None:
        first = folder / "stage1"
        if not (resume and (first / "modules.json").is_file()):
            pretraining = Recipe("", "pretraining", {})
            shared = {name: settings[name] for name in settings.keys() - _LATER if takes(pretraining, name)}
            if settings.get("dev") == "corpus":  # stage 1 leaves the held-out documents alone too
                shared |= {"data": trainer.train_dataset, "column": "sentence", "segment": "lines"}
            shared |= {**stage1, "output_dir": first, "resume_from_checkpoint": resume}
            done = run(pretraining, on_trainer=on_trainer, **shared)
            if done.collapsed:
                return done
        # The encoder and the auxiliary network both start from the first stage (InfoCSE, section 3.2).
        trainer = build({**settings, "model": str(first), "auxiliary": str(first)})
        on_trainer(trainer)
    if resume is True:  # none if it was killed before the first
        resume = any(folder.glob("checkpoint-*/trainer_state.json"))
    trainer.train(resume_from_checkpoint=resume or None)
    evaluator: Any = trainer.evaluator
    card: Any = trainer.model.model_card_data
    if before is not None:
        metric = evaluator.primary_metric
        trainer.state.log_history.insert(0, {"epoch": 0.0, "step": 0, f"eval_{metric}": before})
        card.training_logs.insert(0, {"Epoch": 0.0, "Step": 0, metric: before})
    trainer.save_state()
    if trainer.collapsed:
        return Run(trainer, before, collapsed=trainer.collapsed)

    # What is worth saving, decided.
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)  # to be scored in the start's precision
    weights, scores = {"start": start, "trained": _weights(trainer)}, {"start": before, "trained": _score(trainer)}
    if share is not None:
        interpolate_weights(trainer.model, start, share)
        weights["mixture"], scores["mixture"] = _weights(trainer), _score(trainer)
    margin = settings.get("margin", getattr(evaluator, "margin", 0.0))
    if before is None:
        saved = "trained" if share is None else "mixture"
    else:
        gains = {name: score - before for name, score in scores.items() if score is not None}
        saved = max((name for name, gain in gains.items() if gain > margin), key=gains.__getitem__, default="start")
        # The card has the score of what was scored last.
        card.eval_results_dict[evaluator] = {evaluator.primary_metric: scores[saved]}
    trainer.model.load_state_dict(weights[saved])
    done = Run(trainer, before, scores["trained"], scores.get("mixture"), saved, margin=margin)

    # Saved.
    add_to_card(trainer.model, _card(chosen.name, settings, done))
    if trainer.is_world_process_zero():
        trainer.model.save_pretrained(str(folder))
        if hasattr(trainer.loss, "save_auxiliary"):
            trainer.loss.save_auxiliary(str(folder))
    trainer.accelerator.wait_for_everyone()
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    return done


def _write_settings(path: Path, recipe: str, settings: Mapping[str, Any]) -> None:
    """Write the settings as a file that ``st-contrastive train`` reads."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "transformers", "torch"))
    lines = [f"# Recipe: {recipe or 'none'}", f"# st_contrastive {__version__}, {versions}"]
    kept = {name: value for name, value in settings.items() if name != "hub_token"}
    if not isinstance(kept.get("data", ""), (str, PathLike)):
        kept["data"] = object()  # no texts
    with complete_file(path) as partial:
        partial.write_text("\n".join([*lines, *dump(kept), ""]), encoding="utf-8")


def _weights(trainer: ContrastiveTrainer) -> dict[str, Tensor]:
    return {name: weight.detach().to("cpu", copy=True) for name, weight in trainer.model.state_dict().items()}


def _score(trainer: ContrastiveTrainer) -> float | None:
    """The evaluator's score of the weights as they are: rank 0's on all ranks, and in no log. None without one."""
    if trainer.evaluator is None:
        return None
    card = trainer.model.model_card_data
    steps = [*card.training_logs]
    # Trainer.evaluate would prepare the model without the wrapper that averages gradients over devices.
    scores: Any = trainer.evaluator(trainer.model)
    card.training_logs = steps  # to which the evaluator has added a row
    (score,) = broadcast_object_list([float(scores[trainer.evaluator.primary_metric])])
    return float(score)


def _card(recipe: str, settings: Mapping[str, Any], run: Run) -> str:
    """What the model card says of the run; of a path, its last part."""
    shown = {
        name: Path(value).name if isinstance(value, (str, PathLike)) and is_path(value) else value
        for name, value in settings.items()
        if name not in _PRIVATE
    }
    title = f"Trained with the recipe `{recipe}`:" if recipe else "Trained with these settings:"
    return "\n".join([title, "", "```yaml", *dump(shown), "```", "", f"{run} Saved: {run.saved}."])
