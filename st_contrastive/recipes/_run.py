"""A recipe, trained whole: both stages, the score before and after, and the model that is worth saving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from st_contrastive.recipes._build import Data, build, metric_of, settings_of, takes
from st_contrastive.recipes._recipe import Recipe, load
from st_contrastive.training import ContrastiveTrainer

#: Settings of stage 2 that stage 1 has no use for.
_LATER = set("loss dev eval_strategy eval_steps load_best_model_at_end metric_for_best_model push_to_hub".split())


@dataclass(frozen=True)
class Run:
    """What came of a run.

    Args:
        trainer: the Trainer of the last stage that was trained.
        before: the score of the encoder that the run started from; None without ``dev``.
        after: the score of the trained weights.
        collapsed: how the run collapsed; nothing was saved then.
        margin: a smaller difference between the scores is none; that of the CorpusEvaluator, and 0 for STS.
    """

    trainer: ContrastiveTrainer
    before: float | None = None
    after: float | None = None
    collapsed: str | None = None
    margin: float = 0.0

    @property
    def helped(self) -> bool | None:
        """Whether the score rose, by more than the margin; None without ``dev``. Where it did not, the saved model is
        the starting one."""
        return None if self.before is None or self.after is None else self.after - self.before > self.margin


def run(
    recipe: str | Recipe,
    *,
    data: Data | None = None,
    output_dir: str | Path,
    on_trainer: Callable[[ContrastiveTrainer], None] = lambda trainer: None,
    **overrides: Any,
) -> Run:
    """Train a recipe, both stages where it has two, and save the model in ``output_dir``.

    Stage 1 goes to ``output_dir/stage1``. It takes the settings of the run, but for those that the recipe, or
    ``stage1={...}``, names for it; with ``auxiliary``, a folder or None, there is no stage 1. With ``dev``, the encoder
    is scored before and after training, and the starting weights are saved if it did not gain.
    ``resume_from_checkpoint="true"`` continues from the newest checkpoint, if there is one.

    Args:
        recipe: as for :func:`trainer`.
        data: as for :func:`trainer`.
        output_dir: folder of the model and its checkpoints.
        on_trainer: called with each stage's Trainer before it trains.
        overrides: as for :func:`trainer`.

    Raises:
        TypeError, ValueError, OSError: as for :func:`trainer`; or ``output_dir`` holds another run.
    """
    folder = Path(output_dir).expanduser()
    chosen = load(recipe) if isinstance(recipe, str) else recipe
    if chosen.stage1 is None and "stage1" in overrides:
        raise TypeError(f"stage1 is for a recipe with two stages, and {chosen.name or chosen.loss} has one.")
    of_stage1 = {**(chosen.stage1 or {}), **overrides.pop("stage1", {})}
    settings = settings_of(chosen, overrides)
    resume = settings.pop("resume_from_checkpoint", None) or False
    if not resume and ((folder / "modules.json").exists() or any(folder.glob("checkpoint-*"))):
        raise ValueError(
            f"output_dir {folder} holds a model or checkpoints: name another folder, or continue that run with "
            "resume_from_checkpoint=true."
        )
    start = None
    if chosen.stage1 is not None and "auxiliary" not in overrides:
        first = folder / "stage1"
        # What is wrong with stage 2 is said before hours of stage 1, which may be what does harm.
        start = _start(build(settings, data, folder)[0])
        if not (resume and (first / "modules.json").is_file()):
            pretraining = Recipe("", "pretraining", {})
            shared = {name: settings[name] for name in settings.keys() - _LATER if takes(pretraining, name)}
            stage1 = settings_of(pretraining, {**shared, **of_stage1})
            trained = _trained(build(stage1, data, first), resume, on_trainer)
            if trained.collapsed:
                return trained
        # The encoder and the auxiliary network both start from the first stage (InfoCSE, section 3.2).
        settings |= {"model": str(first), "auxiliary": str(first)}
    return _trained(build(settings, data, folder), resume, on_trainer, start)


def _start(trainer: ContrastiveTrainer) -> tuple[float | None, dict[str, Any]]:
    """The score of a model that is not trained yet, and its weights; nothing without an evaluator."""
    if trainer.evaluator is None:
        return None, {}
    # Trainer.evaluate would prepare the model without the wrapper that averages gradients over devices.
    scores: Any = trainer.evaluator(trainer.model)
    weights = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    return float(scores[trainer.evaluator.primary_metric]), weights


def _trained(
    built: tuple[ContrastiveTrainer, int | None],
    resume: str | bool,
    on_trainer: Callable[..., None],
    start: tuple[float | None, dict[str, Any]] | None = None,
) -> Run:
    trainer, own_length = built
    model, folder = trainer.model, Path(str(trainer.args.output_dir))
    on_trainer(trainer)
    before, weights = start or _start(trainer)
    if str(resume).lower() == "true":
        resume = any(folder.glob("checkpoint-*/trainer_state.json"))  # none if it was killed before the first
    trainer.train(resume_from_checkpoint=resume or None)
    run = Run(trainer, collapsed=trainer.collapsed)
    if before is not None:
        evaluator: Any = trainer.evaluator
        metric = metric_of(evaluator)
        run = Run(trainer, before, float(trainer.evaluate()[metric]), trainer.collapsed, evaluator.margin)
        trainer.state.log_history.insert(0, {"epoch": 0.0, "step": 0, metric: before})
    trainer.save_state()
    if run.collapsed:
        return run
    if run.helped is False:
        model.load_state_dict(weights)
    model.max_seq_length = own_length  # texts were cut in training alone
    if trainer.is_world_process_zero():
        model.save_pretrained(str(folder))
        if hasattr(trainer.loss, "save_auxiliary"):
            trainer.loss.save_auxiliary(folder)
    trainer.accelerator.wait_for_everyone()
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    return run
