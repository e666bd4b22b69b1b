"""Training data for sentence-transformers: readers of files, InputExamples for ``fit``, Datasets for the Trainer."""

from st_contrastive.inputs.conisi import conisi_dataset, conisi_examples
from st_contrastive.inputs.report import DataReport, describe
from st_contrastive.inputs.sentences import load_sentences
from st_contrastive.inputs.text import text_dataset, text_examples
from st_contrastive.inputs.translation import translate_corpus
from st_contrastive.inputs.translations import load_translations
from st_contrastive.inputs.translator import Translator
from st_contrastive.inputs.twins import twins_dataset, twins_examples

__all__ = [
    "DataReport",
    "Translator",
    "conisi_dataset",
    "conisi_examples",
    "describe",
    "load_sentences",
    "load_translations",
    "text_dataset",
    "text_examples",
    "translate_corpus",
    "twins_dataset",
    "twins_examples",
]
