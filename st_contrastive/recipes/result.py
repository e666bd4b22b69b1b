"""The result of a run: scores, which weights were saved, and the verdict on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from st_contrastive._files import complete_file
from st_contrastive.evaluation import Comparison, Judgement, compare_paired
from st_contrastive.evaluation.bm25 import describe_mixture
from st_contrastive.evaluation.report import to_json
from st_contrastive.training import ContrastiveTrainer

#: File of the output folder that holds the verdict.
VERDICT_FILE = "verdict.json"


@dataclass(frozen=True)
class Run:
    """The result of a run. ``str()`` of it shows the scores and the comparison with the start.

    Attributes:
        trainer: the Trainer of the last stage.
        scores: with ``dev``, the scores of "start" and of the result: "mixture" if ``mix`` is set, else "trained".
        saved: the name of the saved weights. None if the run collapsed.
        collapsed: how the run collapsed, or None.
        judgements: with ``dev="corpus"``, the results per question for each set of weights.
    """

    trainer: ContrastiveTrainer
    scores: Mapping[str, float] = field(default_factory=dict)
    saved: str | None = None
    collapsed: str | None = None
    judgements: Mapping[str, Judgement] = field(default_factory=dict)

    @property
    def before(self) -> float | None:
        """The score of the start."""
        return self.scores.get("start")

    @property
    def after(self) -> float | None:
        """The score after training: of the mixture if ``mix`` is set, else of the trained weights."""
        return None if self.compared is None else self.scores[self.compared]

    @property
    def compared(self) -> str | None:
        """Name of the weights that are compared with the start: "trained" or "mixture". None without scores."""
        return next((name for name in self.scores if name != "start"), None)

    @property
    def comparison(self) -> Comparison | None:
        """With ``dev="corpus"``, the compared weights against the start, question by question."""
        name = self.compared
        if name is None or "start" not in self.judgements or name not in self.judgements:
            return None
        return compare_paired(self.judgements["start"], self.judgements[name])

    @property
    def verdict(self) -> Literal["BETTER", "NO DIFFERENCE", "WORSE"] | None:
        """Whether training helped, according to ``dev``. None without scores."""
        if self.saved is None or self.compared is None:
            return None
        if self.saved != "start":
            return "BETTER"
        if self.comparison is not None:
            return "WORSE" if self.comparison.decision == "worse" else "NO DIFFERENCE"
        return "NO DIFFERENCE" if self.scores[self.compared] == self.before else "WORSE"

    @property
    def reason(self) -> str:
        """Why these weights were saved, with figures. Empty without scores."""
        if self.compared is None:
            return ""
        if self.comparison is not None:
            return self.comparison.reason
        before, after = (f"{100 * self.scores[name]:.2f}" for name in ("start", self.compared))
        return f"{after} is {'the best score' if self.saved != 'start' else f'not above {before}'}."

    def __str__(self) -> str:
        if not self.scores:
            return "No dev was set, so it is unknown whether training helped."
        lines = [f"Scores: {', '.join(f'{name} {100 * score:.2f}' for name, score in self.scores.items())}."]
        if self.comparison is not None:
            name = "trained weights" if self.compared == "trained" else self.compared
            lines.append(f"The {name} against the start: {self.comparison}")
            lines += self._with_bm25(self.comparison)
        return "\n".join(lines)

    def _with_bm25(self, comparison: Comparison) -> list[str]:
        before, after = (self.judgements[name].ndcg_with_bm25 for name in ("start", str(self.compared)))
        gain = comparison.gain_with_bm25
        if gain is None or before is None or after is None:
            return []
        scores = f"start {100 * before:.2f}, {self.compared} {100 * after:.2f}"
        formula = describe_mixture(str(self.trainer.model.similarity_fn_name))
        text = f"With BM25 ({formula}): {scores}, {gain.describe(100)}."
        if gain.high < 0:
            return [f"{text} With BM25, search is worse after training."]
        return [text if gain.low > 0 else f"{text} Training adds nothing to BM25 beyond chance."]

    def write_verdict(self, folder: Path) -> None:
        """Write ``verdict.json``: the verdict, the saved weights, the scores, and the changes with their intervals.

        Scores and changes are fractions, as in the Trainer's log. Without scores, an earlier run's file is removed.
        """
        if self.verdict is None:
            (folder / VERDICT_FILE).unlink(missing_ok=True)
            return
        comparison = self.comparison
        content: dict[str, Any] = {
            "verdict": self.verdict,
            "saved": self.saved,
            "reason": self.reason,
            "scores": dict(self.scores),
            "compared": self.compared,
        }
        if comparison is not None:
            content |= asdict(comparison)
            mixed = {name: judged.ndcg_with_bm25 for name, judged in self.judgements.items()}
            content["scores_with_bm25"] = {name: score for name, score in mixed.items() if score is not None}
        with complete_file(folder / VERDICT_FILE) as partial:
            partial.write_text(to_json(content) + "\n", encoding="utf-8")
