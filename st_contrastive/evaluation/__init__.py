"""Scores for anything with ``encode``."""

from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSError, STSPairs, evaluate_sts, read_sts, sts_files, sts_spearman

__all__ = ["Report", "STSError", "STSPairs", "Score", "evaluate_sts", "read_sts", "sts_files", "sts_spearman"]
