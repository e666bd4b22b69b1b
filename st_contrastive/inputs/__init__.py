"""Training data for sentence-transformers: readers of files, InputExamples for ``fit``, Datasets for the Trainer."""

from st_contrastive.inputs.builders import conisi_dataset, input_examples, text_dataset, twins_dataset
from st_contrastive.inputs.description import DataReport, describe
from st_contrastive.inputs.documents import Documents, load_documents
from st_contrastive.inputs.readers import load_graded_pairs, load_pairs, load_sentences, load_translations
from st_contrastive.inputs.translation import Translator, translate_corpus

__all__ = [
    "DataReport", "Documents", "Translator", "conisi_dataset", "describe", "input_examples", "load_documents",
    "load_graded_pairs", "load_pairs", "load_sentences", "load_translations", "text_dataset", "translate_corpus",
    "twins_dataset",
]  # fmt: skip
