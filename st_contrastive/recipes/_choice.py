"""The weights that a run may save (before training, after it, and mixed), with their scores."""

from __future__ import annotations

from typing import Any

from accelerate.utils import broadcast_object_list
from torch import Tensor

from st_contrastive.evaluation import CorpusEvaluator, Judgement, compare_paired
from st_contrastive.training import ContrastiveTrainer


class Choice:
    """Weights by name, of which "start" is the first, and their scores, if the run has an evaluator."""

    def __init__(self) -> None:
        self.weights: dict[str, dict[str, Tensor]] = {}
        self.scores: dict[str, float] = {}
        self.judgements: dict[str, Judgement] = {}

    def add(self, name: str, trainer: ContrastiveTrainer) -> None:
        """Keep a copy of the model's weights, and score them: rank 0's score on all ranks, and in no log."""
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
            card.training_logs = steps  # to which the evaluator has added a row
            (self.scores[name],) = broadcast_object_list([float(scores[evaluator.primary_metric])])

    def best(self) -> str:
        """The best-scoring weights that are better than the start, or "start". Without scores, the last ones."""
        if not self.scores:
            return [*self.weights][-1]
        better = [name for name in self.scores if name != "start" and self._is_better(name)]
        return max(better, key=self.scores.__getitem__, default="start")

    def _is_better(self, name: str) -> bool:
        if self.judgements:
            return compare_paired(self.judgements["start"], self.judgements[name]).decision == "better"
        return self.scores[name] > self.scores["start"]
