"""A recipe, trained whole: both stages, the scores before and after, and the weights that are worth saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback

from st_contrastive._checks import warn
from st_contrastive._files import is_path
from st_contrastive.evaluation import Comparison, Judgement, compare_paired, title_agreement
from st_contrastive.inputs.tables import Source
from st_contrastive.recipes._build import build
from st_contrastive.recipes._choice import Choice
from st_contrastive.recipes._recipe import Recipe, dump, load
from st_contrastive.recipes._run_yaml import require_same_settings, write_record
from st_contrastive.recipes._settings import PRETRAINING, first_stage, resolve_settings
from st_contrastive.training import ContrastiveTrainer, interpolate_weights
from st_contrastive.training.card import add_to_card

#: Pairs that are drawn to see whether their texts belong together.
_PAIRS = 2000
#: Settings that a model card doesn't show.
_PRIVATE = {"data", "translations", "output_dir", "prompts", "hub_token"}


@dataclass(frozen=True)
class Run:
    """The result of a run; ``str`` gives the scores, and with ``dev="corpus"`` the comparison with the start.

    Attributes:
        trainer: of the last stage.
        before, after, mixed: with ``dev``, the scores of the start, of the trained weights of the best step, and of
            their mixture.
        saved: "start", "trained" or "mixture"; None of a run that collapsed.
        collapsed: how it did, or None.
        judgements: with ``dev="corpus"``, each question's result, by "start", "trained" and "mixture".
    """

    trainer: ContrastiveTrainer
    before: float | None = None
    after: float | None = None
    mixed: float | None = None
    saved: str | None = None
    collapsed: str | None = None
    judgements: Mapping[str, Judgement] = field(default_factory=dict)

    @property
    def comparison(self) -> Comparison | None:
        """What is saved against the start, question by question; of a saved start, the trained weights."""
        name = "mixture" if self.saved == "mixture" else "trained"
        return compare_paired(self.judgements["start"], self.judgements[name]) if name in self.judgements else None

    def __str__(self) -> str:
        scores = {"before training": self.before, "after": self.after, "mixed": self.mixed}
        said = ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items() if score is not None)
        if not said:
            return "No dev was given: whether training helped is unknown."
        lines = [f"Score {said}."]
        if self.comparison is not None:
            lines.append(f"{'Mixed' if self.saved == 'mixture' else 'After training'}: {self.comparison}")
        with_words = [judged.mixed_ndcg for name, judged in self.judgements.items() if name in ("start", "trained")]
        if len(with_words) == 2 and None not in with_words:
            before, after = (f"{100 * (score or 0):.2f}" for score in with_words)
            lines.append(
                f"Mixed with BM25 (0.7 cosine + 0.3 BM25): {before} before training, {after} after. By judged queries, "
                "training seldom adds to this mixture."
            )
        return "\n".join(lines)


def run(
    recipe: str | Recipe,
    *,
    data: Source | None = None,
    output_dir: str | Path,
    on_trainer: Callable[[ContrastiveTrainer], None] = lambda trainer: None,
    on_score: Callable[[float], None] = lambda score: None,
    **overrides: Any,
) -> Run:
    """Train a recipe, both stages where it has two, and save the model in ``output_dir``.

    Stage 1 goes to ``output_dir/stage1``. It takes the settings of the run, but for those that the recipe, or
    ``stage1={...}``, names for it; with ``auxiliary``, a folder or None, there is no stage 1.
    ``mix`` is the share of the trained weights in a mixture with those of the start. With ``dev``, the start, the
    trained weights and the mixture are scored, and the best is saved: with ``dev="corpus"``, if it is better beyond
    chance, and else the start. Without ``dev``, the mixture is saved, or the trained weights if there is none.

    ``output_dir/run.yaml`` holds the settings, for ``st-contrastive train``. ``resume_from_checkpoint="true"``
    continues from the newest checkpoint, if there is one, with the settings of that run: steps and epochs may be more,
    and what is logged, saved and scored may change. Without it, a folder with another run is refused.

    The other arguments are those of :func:`trainer`. ``on_trainer`` is called with each stage's Trainer before it
    trains, and ``on_score`` with the score before training.
    """
    given = {**overrides, "data": data, "output_dir": output_dir}
    training = _TrainingRun(recipe, given, on_trainer=on_trainer, on_score=on_score)
    for stage in (training.prepare, training.train_stage1, training.train, training.judge, training.save):
        stage()
        if training.collapsed:
            break
    return training.result


class _TrainingRun:
    """A run of a recipe; its methods are its stages, in their order. A run that ``collapsed`` ends there."""

    def __init__(
        self,
        recipe: str | Recipe,
        given: Mapping[str, Any],
        *,
        on_trainer: Callable[[ContrastiveTrainer], None],
        on_score: Callable[[float], None],
    ) -> None:
        self.recipe = load(recipe) if isinstance(recipe, str) else recipe
        self.on_trainer, self.on_score = on_trainer, on_score
        given = dict(given)
        resume = given.pop("resume_from_checkpoint", None) or False
        self.resume = {"true": True, "false": False}.get(str(resume).lower(), resume)  # of the command line
        self.stage1: dict[str, Any] | None = None
        own, has_two = given.pop("stage1", None) or {}, self.recipe.stage1 is not None and "auxiliary" not in given
        if not isinstance(own, Mapping) or (own and not has_two):
            raise ValueError(
                f"stage1={own!r:.80} must be settings, such as {{learning_rate: 1e-4}}, of a recipe that has a first "
                "stage; with auxiliary, there is none."
            )
        if has_two:
            self.stage1 = {**(self.recipe.stage1 or {}), **own}
        self.settings = resolve_settings(self.recipe, given)
        self.folder = Path(self.settings["output_dir"]).expanduser()
        self.trainer: ContrastiveTrainer
        self.choice = Choice()
        self.saved: str | None = None
        self.collapsed: str | None = None

    @property
    def result(self) -> Run:
        """The results so far."""
        before, after, mixed = (self.choice.scores.get(name) for name in ("start", "trained", "mixture"))
        return Run(self.trainer, before, after, mixed, self.saved, self.collapsed, self.choice.judgements)

    def prepare(self) -> None:
        """Read the data, build the Trainer of the last stage, and score the start."""
        settings = self.settings if self.stage1 is None else {**self.settings, "stage1": self.stage1}
        resumed = self._resumed_run()
        if resumed is not None:
            require_same_settings(resumed, self.recipe, settings)
        self.trainer = build(self.settings)  # what is wrong with stage 2 is said before hours of stage 1
        texts: Any = self.trainer.train_dataset
        if resumed is None and "other" in texts.column_names and "pairs" not in self.settings:
            _check_pairs(self.trainer)
        if self.recipe.name == "own-text" and "other" not in texts.column_names:
            warn(
                "own-text is for pairs, and trains single texts here, which made search worse in all our runs. Name "
                "two columns, such as column='title,body', or give pairs='first'."
            )
        self.recorder = _Recorder(lambda: write_record(self.folder, self.recipe, settings))
        if self.stage1 is None:
            self._begin(self.trainer)
        self.choice.add("start", self.trainer)
        if self.choice.scores:
            self.on_score(self.choice.scores["start"])

    def train_stage1(self) -> None:
        """Train the first stage, where there is one and it has not ended before, and build the second on it."""
        if self.stage1 is None:
            return
        first = self.folder / "stage1"
        if not (self.resume and (first / "modules.json").is_file()):
            given = first_stage(self.settings, self.stage1)
            if self.settings.get("dev") == "corpus":  # stage 1 leaves the held-out documents alone too
                given |= {"data": self.trainer.train_dataset, "column": "sentence", "segment": "lines"}
            given |= {"output_dir": first, "resume_from_checkpoint": bool(self.resume)}
            done = run(PRETRAINING, on_trainer=self._begin, **given)
            if done.collapsed:
                self.trainer, self.collapsed = done.trainer, done.collapsed
                return
        # The encoder and the auxiliary network both start from the first stage (InfoCSE, section 3.2).
        self.trainer = build({**self.settings, "model": str(first), "auxiliary": str(first)})
        self._begin(self.trainer)

    def train(self) -> None:
        """Train the last stage, and set its best weights."""
        resume = self.resume
        if resume is True:  # no checkpoint if it was killed before the first
            resume = any(self.folder.glob("checkpoint-*/trainer_state.json"))
        self.trainer.train(resume_from_checkpoint=resume or None)
        if self.choice.scores:
            metric, before = self.trainer.evaluator.primary_metric, self.choice.scores["start"]  # type: ignore[union-attr]
            self.trainer.state.log_history.insert(0, {"epoch": 0.0, "step": 0, f"eval_{metric}": before})
            logs: Any = self.trainer.model.model_card_data.training_logs
            logs.insert(0, {"Epoch": 0.0, "Step": 0, metric: before})
        self.trainer.save_state()
        self.collapsed = self.trainer.collapsed

    def judge(self) -> None:
        """Score the trained weights and the mixture, and set those that are worth saving."""
        # So that they are scored in the start's precision.
        self.trainer.accelerator.unwrap_model(self.trainer.model, keep_fp32_wrapper=False)
        self.choice.add("trained", self.trainer)
        if "mix" in self.settings:
            interpolate_weights(self.trainer.model, self.choice.weights["start"], self.settings["mix"])
            self.choice.add("mixture", self.trainer)
        self.saved = self.choice.best()
        if self.choice.scores:  # the card has the score of what was scored last
            evaluator: Any = self.trainer.evaluator
            results: Any = self.trainer.model.model_card_data.eval_results_dict
            results[evaluator] = {evaluator.primary_metric: self.choice.scores[self.saved]}
        self.trainer.model.load_state_dict(self.choice.weights[self.saved])

    def save(self) -> None:
        """Save the model, and its card."""
        trainer = self.trainer
        add_to_card(trainer.model, _card(self.recipe.name, self.settings, self.result))
        if trainer.is_world_process_zero():
            if hasattr(trainer.loss, "save_auxiliary"):
                trainer.loss.save_auxiliary(str(self.folder))
            # The model comes last: a stage whose folder has its modules.json is finished.
            trainer.model.save_pretrained(str(self.folder))
        trainer.accelerator.wait_for_everyone()
        if trainer.args.push_to_hub:
            trainer.push_to_hub()

    def _resumed_run(self) -> Path | None:
        """The folder of the run that this one continues; None for a new one, whose folder must hold no other."""
        if self.resume is True:
            began = ("checkpoint-*/trainer_state.json", "stage1/modules.json", "stage1/checkpoint-*/trainer_state.json")
            if any(path for names in began for path in self.folder.glob(names)):
                return self.folder
            warn(f"resume_from_checkpoint: {self.folder} has no checkpoint, so training begins at the first step.")
            return None
        if self.resume:
            return Path(self.resume).parent
        if any(path for name in ("modules.json", "README.md", "checkpoint-*") for path in self.folder.glob(name)):
            raise ValueError(
                f"output_dir {self.folder} holds a model, its README.md or checkpoints: name another folder, or "
                "continue that run, with its settings, by resume_from_checkpoint=true."
            )
        return None

    def _begin(self, trainer: ContrastiveTrainer) -> None:
        trainer.add_callback(self.recorder)
        self.on_trainer(trainer)


class _Recorder(TrainerCallback):
    """Writes run.yaml just before the first step, and not earlier, since the run may be refused."""

    def __init__(self, write: Callable[[], None]) -> None:
        self.write = write

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.write()


def _check_pairs(trainer: ContrastiveTrainer) -> None:
    """Require that the texts of a pair belong together more than those of different pairs: a column may be shuffled."""
    texts: Any = trainer.train_dataset
    if isinstance(texts, Dataset):
        texts = texts.shuffle(seed=0)
    pairs = ((row["sentence"], row["other"]) for row in islice(texts, _PAIRS))
    agreement = title_agreement(trainer.model, pairs)
    if agreement.decision == "equal":
        raise ValueError(
            "column: the two texts of a row don't belong together, or model can't read one, as in another language. "
            f"{agreement} Are the rows in order? If so, recipes.trainer trains them without this question."
        )
    if agreement.decision == "weak":
        warn(f"The two texts of a row hardly belong together. {agreement} Look at some rows before you trust the run.")


def _card(recipe: str, settings: Mapping[str, Any], run: Run) -> str:
    """What the model card says of the run; of a path, its last part."""
    shown = {
        name: Path(value).name if isinstance(value, (str, PathLike)) and is_path(value) else value
        for name, value in settings.items()
        if name not in _PRIVATE
    }
    title = f"Trained with the recipe `{recipe}`:" if recipe else "Trained with these settings:"
    return "\n".join([title, "", "```yaml", *dump(shown), "```", "", f"{run}\nSaved: {run.saved}."])
