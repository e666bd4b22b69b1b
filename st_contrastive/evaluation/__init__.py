"""Scores anything with ``encode``."""

from st_contrastive.evaluation._data_files import EvaluationDataError
from st_contrastive.evaluation._encoding import Encoder
from st_contrastive.evaluation.baselines import FirstLastAverage, Whitened
from st_contrastive.evaluation.geometry import (
    SimilarityByScore,
    evaluate_geometry,
    plot_similarity_by_score,
    similarity_by_score,
)
from st_contrastive.evaluation.in_training import STSEvaluator
from st_contrastive.evaluation.information import evaluate_information
from st_contrastive.evaluation.mteb_tasks import evaluate_mteb
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.retrieval import evaluate_in_domain_retrieval, evaluate_retrieval
from st_contrastive.evaluation.retrieval_data import RetrievalSet, read_documents, read_retrieval
from st_contrastive.evaluation.sts import STSPairs, evaluate_sts, read_sts, sts_files, sts_spearman
from st_contrastive.evaluation.transfer import evaluate_transfer, read_transfer
from st_contrastive.evaluation.twins import dropout_views, fraternal_views, twins_information

__all__ = [
    "Encoder",
    "EvaluationDataError",
    "FirstLastAverage",
    "Report",
    "RetrievalSet",
    "STSEvaluator",
    "STSPairs",
    "Score",
    "SimilarityByScore",
    "Whitened",
    "dropout_views",
    "evaluate_geometry",
    "evaluate_in_domain_retrieval",
    "evaluate_information",
    "evaluate_mteb",
    "evaluate_retrieval",
    "evaluate_sts",
    "evaluate_transfer",
    "fraternal_views",
    "plot_similarity_by_score",
    "read_documents",
    "read_retrieval",
    "read_sts",
    "read_transfer",
    "similarity_by_score",
    "sts_files",
    "sts_spearman",
    "twins_information",
]
