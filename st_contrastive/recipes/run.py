"""Runs a recipe from start to end: trains its stages, scores the model before and after, and saves the best weights."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback

from st_contrastive._checks import warn
from st_contrastive.evaluation import CorpusEvaluator, Judgement, compare_paired, title_agreement
from st_contrastive.inputs.tables import Source
from st_contrastive.recipes.build import build_trainer, rename_prompts
from st_contrastive.recipes.plan import RunPlan, require_same_plan, write_plan
from st_contrastive.recipes.recipe import Recipe, dump
from st_contrastive.recipes.result import Run
from st_contrastive.recipes.starting_model import has_pooling
from st_contrastive.training import ContrastiveTrainer, interpolate_weights
from st_contrastive.training.card import add_to_card, describe_start, original_card, public_settings, run_text
from st_contrastive.training.loss_state import checkpoint_to_resume
from st_contrastive.training.same_run import require_initial_weights

#: The file of settings that each run writes into its output folder.
PLAN_FILE = "run.yaml"
#: Files that mark a folder as used.
_RUN_FILES = (PLAN_FILE, "modules.json", "README.md", "checkpoint-*")
#: How many pairs are drawn to check that their texts belong together.
_PAIRS = 2000


def run(
    recipe: str | Recipe,
    *,
    data: Source | None = None,
    output_dir: str | Path,
    on_trainer: Callable[[ContrastiveTrainer], None] = lambda trainer: None,
    on_score: Callable[[float, float], None] = lambda score, seconds: None,
    **overrides: Any,
) -> Run:
    """Train a recipe, both stages if it has two, and save the model in ``output_dir``.

    Stage 1 is saved in ``output_dir/stage1``. It uses the run's settings, with the changes that the recipe and
    ``stage1={...}`` make for it. If ``auxiliary`` is set, to a folder or to None, there is no stage 1.

    With ``soup=N``, N runs start from the same weights with the seeds ``seed``, ``seed + 1`` and so on. Each trains for
    the full number of steps, and their weights are averaged (model soups, Wortsman et al., 2022). The second run keeps
    its checkpoints in ``output_dir/run2``, and so on. With ``mix``, the result is a weighted average of the trained and
    the initial weights: ``mix`` is the share of the trained weights.

    With ``dev``, the start and the result of training are scored, and the better one is saved. With ``dev="corpus"``,
    the start is saved unless the result is better by ``Comparison.decision``. ``output_dir/verdict.json`` holds the
    scores and the verdict. Without ``dev``, the result is saved.

    ``output_dir/run.yaml`` holds the settings, for ``st-contrastive train``. ``resume_from_checkpoint="true"`` resumes
    from the newest checkpoint, if there is one. The settings must stay the same, except that steps and epochs may grow,
    and logging, saving and scoring may change. Without ``resume_from_checkpoint``, a folder that holds another run is
    refused.

    Args:
        data: the training text, as for :func:`trainer`.
        output_dir: folder of the model and its checkpoints.
        on_trainer: called with the Trainer of each stage before it trains.
        on_score: called with the score before training, and the duration of scoring in seconds.
        overrides: as for :func:`trainer`.
    """
    plan = RunPlan.from_recipe(recipe, {**overrides, "data": data, "output_dir": output_dir})
    return run_plan(plan, on_trainer=on_trainer, on_score=on_score)


def run_plan(
    plan: RunPlan,
    *,
    on_trainer: Callable[[ContrastiveTrainer], None] = lambda trainer: None,
    on_score: Callable[[float, float], None] = lambda score, seconds: None,
) -> Run:
    """:func:`run` with the settings of a plan."""
    training = _RecipeRun(plan, on_trainer=on_trainer, on_score=on_score)
    for step in (training.prepare, training.train_stage1, training.train, training.judge, training.save):
        step()
        if training.collapsed:
            break
    return training.result


class _RecipeRun:
    """A run of a recipe. Its methods are called in their order, until the run has ``collapsed``."""

    def __init__(
        self,
        plan: RunPlan,
        *,
        on_trainer: Callable[[ContrastiveTrainer], None],
        on_score: Callable[[float, float], None],
    ) -> None:
        self.plan = self.last_stage = plan
        self.on_trainer, self.on_score = on_trainer, on_score
        self.trainer: ContrastiveTrainer
        self.candidates = _Candidates()
        self.saved: str | None = None
        self.collapsed: str | None = None

    @property
    def result(self) -> Run:
        """The result so far."""
        return Run(self.trainer, self.candidates.scores, self.saved, self.collapsed, self.candidates.judgements)

    def prepare(self) -> None:
        """Read the data, build the Trainer of the last stage, and score the start."""
        plan = self.plan
        resumed = self._resumed_folder()
        if resumed is not None:
            require_same_plan(plan, resumed / PLAN_FILE)
        # Errors in stage 2 should be raised before stage 1 trains for hours.
        with warnings.catch_warnings():
            if plan.run.stage1 is not None:  # stage 1 trains the network
                warnings.filterwarnings("ignore", message=".*starts with an untrained network")
            self.trainer = build_trainer(plan)
        if resumed is not None and plan.run.stage1 is None and (plan.run.dev, plan.run.mix) != (None, None):
            require_initial_weights(self.trainer.model, checkpoint_to_resume(resumed, plan.resume or True))
        self.original_card = original_card(self.trainer.model)
        texts: Any = self.trainer.train_dataset
        if resumed is None and "other" in texts.column_names and plan.run.pairs is None:
            _check_pairs(self.trainer, is_trained=has_pooling(str(plan.run.model)))
        if plan.recipe.name == "own-text" and "other" not in texts.column_names:
            raise ValueError(
                "own-text is for pairs. With single texts, it made search worse in all our runs. Name two columns, "
                "such as column='title,body', or set pairs='first'."
            )
        self.recorder = _Recorder(plan, may_overwrite=plan.resume is True or self._is_own(resumed))
        if plan.run.stage1 is None:
            self._begin(self.trainer)
        began = time.monotonic()
        self.candidates.add("start", self.trainer)
        if self.candidates.scores:
            self.on_score(self.candidates.scores["start"], time.monotonic() - began)

    def train_stage1(self) -> None:
        """Train the first stage if there is one and it is not finished, and build the second on it."""
        first = self.plan.first_stage()
        if first is None:
            return
        if not (self.plan.resume and (first.folder / "modules.json").is_file()):
            if self.plan.run.dev == "corpus":  # stage 1 does not see the held-out documents either
                prompts = rename_prompts(first.training.get("prompts"), first, ["sentence"])
                settings = {} if prompts is None else {"prompts": prompts}
                texts = self.trainer.train_dataset
                first = first.with_settings(data=texts, column="sentence", segment="lines", **settings)
            done = run_plan(first, on_trainer=self._begin)
            if done.collapsed:
                self.trainer, self.collapsed = done.trainer, done.collapsed
                return
        # The encoder and the auxiliary network both start from the first stage (InfoCSE, section 3.2).
        folder = str(first.folder)
        self.last_stage = self.plan.with_settings(model=folder, auxiliary=folder)
        self.trainer = build_trainer(self.last_stage)
        self._begin(self.trainer)

    def train(self) -> None:
        """Train the last stage and load its best weights. In a soup, train the other runs too, and average them all."""
        _train(self.trainer, self.plan.resume)
        if self.candidates.scores:
            metric, before = self.trainer.evaluator.primary_metric, self.candidates.scores["start"]  # type: ignore[union-attr]
            self.trainer.state.log_history.insert(0, {"epoch": 0.0, "step": 0, f"eval_{metric}": before})
            logs: Any = self.trainer.model.model_card_data.training_logs
            logs.insert(0, {"Epoch": 0.0, "Step": 0, metric: before})
        self.trainer.save_state()
        self.collapsed = self.trainer.collapsed
        for number, plan in enumerate(self.last_stage.other_soup_runs(), start=1):
            if self.collapsed:
                return
            other = build_trainer(plan, prepared=self.trainer.train_dataset)
            self._begin(other)
            _train(other, bool(self.plan.resume))
            self.collapsed = other.collapsed
            weights = {name: weight.to("cpu", copy=True) for name, weight in other.model.state_dict().items()}
            interpolate_weights(self.trainer.model, weights, number / (number + 1))

    def judge(self) -> None:
        """Score the trained weights, mixed with the start if ``mix`` is set, and load the weights to save."""
        # This removes the wrapper for bf16 or fp16 from the model, because the start was scored without one.
        self.trainer.accelerator.unwrap_model(self.trainer.model, keep_fp32_wrapper=False)
        if self.plan.run.mix is not None:
            interpolate_weights(self.trainer.model, self.candidates.weights["start"], self.plan.run.mix)
        self.candidates.add("trained" if self.plan.run.mix is None else "mixture", self.trainer)
        self.saved = self.candidates.best()
        if self.candidates.scores:  # the card holds the last score, of weights that may not be saved
            evaluator: Any = self.trainer.evaluator
            results: Any = self.trainer.model.model_card_data.eval_results_dict
            results[evaluator] = {evaluator.primary_metric: self.candidates.scores[self.saved]}
        self.trainer.model.load_state_dict(self.candidates.weights[self.saved])

    def save(self) -> None:
        """Save the model, its card and the verdict, and publish the model if ``push_to_hub`` is set."""
        trainer, folder, result = self.trainer, self.plan.folder, self.result
        if self.saved == "start":
            describe_start(trainer.model, self.original_card, result.reason)
        else:
            settings = dump(public_settings(self.plan.settings()))
            add_to_card(trainer.model, run_text(self.plan.recipe.name, settings, f"{result}\nSaved: {result.saved}."))
        if trainer.is_world_process_zero():
            result.write_verdict(folder)
            if hasattr(trainer.loss, "save_auxiliary"):
                trainer.loss.save_auxiliary(str(folder))
            # The model is saved last, because modules.json marks a stage as finished.
            trainer.model.save_pretrained(str(folder))
        trainer.accelerator.wait_for_everyone()
        if trainer.args.push_to_hub:
            trainer.push_to_hub()

    def _resumed_folder(self) -> Path | None:
        """The folder of the run to resume. None for a new run, whose folder must not contain another run."""
        folder, resume = self.plan.folder, self.plan.resume
        if resume is True:
            began = ("checkpoint-*/trainer_state.json", "stage1/modules.json", "stage1/checkpoint-*/trainer_state.json")
            if any(path for names in began for path in folder.glob(names)):
                return folder
            if (folder / "modules.json").is_file():
                raise ValueError(
                    f"output_dir {folder} holds a finished model and no checkpoint to resume from: this run would "
                    "overwrite the model. Name another folder."
                )
            warn(f"resume_from_checkpoint: {folder} has no checkpoint, so training begins at the first step.")
            return None
        resumed = checkpoint_to_resume(folder, resume).parent if resume else None  # refuses an incomplete checkpoint
        if self._is_own(resumed):
            return resumed
        if folder.is_file():
            raise ValueError(f"output_dir {folder} is a file: name a folder.")
        found = next((name for name in _RUN_FILES if any(folder.glob(name))), None)
        if found is not None:
            raise ValueError(
                f"output_dir {folder} holds {found}: this run would overwrite it, or another run is writing there. "
                "Name another folder, or resume that run with the same settings and resume_from_checkpoint=true."
            )
        return resumed

    def _is_own(self, resumed: Path | None) -> bool:
        """Whether the run to resume is in the output folder."""
        return resumed is not None and resumed.resolve() == self.plan.folder.resolve()

    def _begin(self, trainer: ContrastiveTrainer) -> None:
        trainer.add_callback(self.recorder)
        self.on_trainer(trainer)


def _train(trainer: ContrastiveTrainer, resume: bool | str) -> None:
    """Train, or resume from the checkpoint ``resume``. True means the newest one in the Trainer's folder, if any."""
    if resume is True:  # a run that was killed before its first checkpoint has none
        resume = any(Path(trainer.args.output_dir or "").glob("checkpoint-*/trainer_state.json"))
    trainer.train(resume_from_checkpoint=resume or None)


class _Candidates:
    """The weights "start" and "trained" or "mixture", in this order, and their scores if the run has an evaluator."""

    def __init__(self) -> None:
        self.weights: dict[str, dict[str, Tensor]] = {}
        self.scores: dict[str, float] = {}
        self.judgements: dict[str, Judgement] = {}

    def add(self, name: str, trainer: ContrastiveTrainer) -> None:
        """Copy the model's weights, and score them. All ranks get the score of rank 0. It is not logged."""
        model, evaluator = trainer.model, trainer.evaluator
        self.weights[name] = {key: weight.detach().to("cpu", copy=True) for key, weight in model.state_dict().items()}
        # Trainer.evaluate would prepare the model without the wrapper that averages gradients over devices.
        if isinstance(evaluator, CorpusEvaluator):
            (self.judgements[name],) = broadcast_object_list([evaluator.judge(model)])
            self.scores[name] = self.judgements[name].ndcg
        elif evaluator is not None:
            card: Any = model.model_card_data
            steps = [*card.training_logs]
            scores: Any = evaluator(model)
            card.training_logs = steps  # the evaluator has added a row
            (self.scores[name],) = broadcast_object_list([float(scores[evaluator.primary_metric])])

    def best(self) -> str:
        """The name of the weights after training, or "start" if they have a score that is not better."""
        result = [*self.weights][-1]
        return result if not self.scores or self._is_better(result) else "start"

    def _is_better(self, name: str) -> bool:
        if self.judgements:
            return compare_paired(self.judgements["start"], self.judgements[name]).decision == "better"
        return self.scores[name] > self.scores["start"]


class _Recorder(TrainerCallback):
    """Writes run.yaml just before the first step, because the run may be refused until then."""

    def __init__(self, plan: RunPlan, *, may_overwrite: bool) -> None:
        self.plan, self.may_overwrite = plan, may_overwrite

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        if not self.may_overwrite and (self.plan.folder / PLAN_FILE).exists():
            raise FileExistsError(
                f"output_dir {self.plan.folder}: another run began to write there while this one was preparing. "
                "Name another folder."
            )
        write_plan(self.plan, self.plan.folder / PLAN_FILE)
        self.may_overwrite = True  # when the second stage begins


def _check_pairs(trainer: ContrastiveTrainer, *, is_trained: bool) -> None:
    """Require that the two texts of a row match better than texts of different rows, to find shuffled columns.

    A weak match is refused if the start is a trained sentence encoder: with half of the titles shuffled, its scores on
    held-out documents can still rise. For a plain language model, even correct titles match weakly.
    """
    texts: Any = trainer.train_dataset
    if isinstance(texts, Dataset):
        texts = texts.shuffle(seed=0)
    pairs = ((row["sentence"], row["other"]) for row in islice(texts, _PAIRS))
    agreement = title_agreement(trainer.model, pairs)
    if agreement.decision == "equal" or (agreement.decision == "weak" and is_trained):
        raise ValueError(
            "column: the two texts of a row don't belong together in many rows, or the model can't read one of them, "
            f"for example because of its language. {agreement} At least {80 if is_trained else 60} % are needed. Check "
            "the order of the rows. recipes.trainer skips this check."
        )
    if agreement.decision == "weak":
        warn(f"The two texts of a row match only weakly. {agreement} Look at some rows before you use the model.")
