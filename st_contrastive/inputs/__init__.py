"""Sentences to what sentence-transformers trains on: InputExample lists for ``fit``, Datasets for the Trainer."""

from st_contrastive.inputs.conisi import conisi_dataset, conisi_examples
from st_contrastive.inputs.corpus import (
    Corpus,
    CorpusError,
    CorpusReport,
    CorpusStream,
    read_corpus,
    stream_corpus,
)
from st_contrastive.inputs.documentation import documentation_sentences
from st_contrastive.inputs.fresh import FreshAugmentation
from st_contrastive.inputs.infocse import infocse_dataset, infocse_examples
from st_contrastive.inputs.parallel import ParallelCorpus, is_pairs_file, read_parallel
from st_contrastive.inputs.simcse import simcse_dataset, simcse_examples
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
    "infocse_dataset",
    "infocse_examples",
    "is_pairs_file",
    "read_corpus",
    "read_parallel",
    "simcse_dataset",
    "simcse_examples",
    "stream_corpus",
    "translate_corpus",
    "twins_dataset",
    "twins_examples",
]
