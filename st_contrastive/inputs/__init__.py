"""Training data for sentence-transformers: InputExamples for ``fit``, Datasets for the Trainer, readers of files."""

from st_contrastive.inputs.conisi import conisi_dataset, conisi_examples
from st_contrastive.inputs.corpus import Corpus, CorpusError, CorpusReport, CorpusStream, read_corpus, stream_corpus
from st_contrastive.inputs.documentation import documentation_sentences
from st_contrastive.inputs.fresh import FreshAugmentation
from st_contrastive.inputs.parallel import ParallelCorpus, is_pairs_file, read_parallel
from st_contrastive.inputs.text import text_dataset, text_examples
from st_contrastive.inputs.translation import translate_corpus
from st_contrastive.inputs.translator import TranslationError, Translator
from st_contrastive.inputs.twins import twins_dataset, twins_examples

__all__ = [
    "Corpus",
    "CorpusError",
    "CorpusReport",
    "CorpusStream",
    "FreshAugmentation",
    "ParallelCorpus",
    "TranslationError",
    "Translator",
    "conisi_dataset",
    "conisi_examples",
    "documentation_sentences",
    "is_pairs_file",
    "read_corpus",
    "read_parallel",
    "stream_corpus",
    "text_dataset",
    "text_examples",
    "translate_corpus",
    "twins_dataset",
    "twins_examples",
]
