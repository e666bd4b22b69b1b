"""Scores, comparisons and pictures of anything that has ``encode``; BM25, and its mixture with an encoder."""

from st_contrastive.evaluation.analyses import evaluate_geometry, evaluate_in_domain_retrieval, evaluate_information
from st_contrastive.evaluation.bm25 import BM25, mix
from st_contrastive.evaluation.corpus import CorpusEvaluator
from st_contrastive.evaluation.encoding import Encoder
from st_contrastive.evaluation.mteb_tasks import evaluate_mteb
from st_contrastive.evaluation.paired import Comparison, Judgement, compare_paired
from st_contrastive.evaluation.plots import plot_similarities, plot_training
from st_contrastive.evaluation.report import Report, Score, compare, write
from st_contrastive.evaluation.sts import STSEvaluator, STSPairs, evaluate_sts, read_sts, sts_sets, sts_spearman
from st_contrastive.evaluation.titles import TitleAgreement, title_agreement
from st_contrastive.evaluation.transfer import evaluate_transfer, read_transfer

__all__ = [
    "BM25", "Comparison", "CorpusEvaluator", "Encoder", "Judgement", "Report", "STSEvaluator", "STSPairs", "Score",
    "TitleAgreement", "compare", "compare_paired", "evaluate_geometry", "evaluate_in_domain_retrieval",
    "evaluate_information", "evaluate_mteb", "evaluate_sts", "evaluate_transfer", "mix", "plot_similarities",
    "plot_training", "read_sts", "read_transfer", "sts_sets", "sts_spearman", "title_agreement", "write",
]  # fmt: skip
