"""Tiny tokenizers of the classes that the families' real checkpoints load with, their vocabularies passed in code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _wordpieces(specials: list[str], words: Sequence[str]) -> dict[str, int]:
    pieces = [*LETTERS, *(f"##{letter}" for letter in LETTERS), "##s", "##ing"]
    return {token: index for index, token in enumerate(dict.fromkeys([*specials, *words, *pieces]))}


def _unigram(specials: list[str], words: Sequence[str], last: Sequence[str] = ()) -> list[tuple[str, float]]:
    """Whole words are likelier than their letters, so that each is one token."""
    pieces = [(f"▁{word}", -1.0) for word in words]
    pieces += [(piece, -20.0) for piece in ("▁", *LETTERS) if f"▁{piece}" not in words]
    return [*((token, 0.0) for token in specials), *pieces, *((token, 0.0) for token in last)]


def _byte_pairs(specials: list[str], sentences: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(list(sentences) * 5, trainer)
    model = json.loads(bpe.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def _bert(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary = _wordpieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], words)
    return transformers.BertTokenizer(vocab=vocabulary, model_max_length=64)


def _distilbert(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary = _wordpieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], words)
    return transformers.DistilBertTokenizer(vocab=vocabulary, model_max_length=64)


def _electra(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary = _wordpieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], words)
    return transformers.ElectraTokenizer(vocab=vocabulary, model_max_length=64)


def _funnel(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary = _wordpieces(["<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<s>", "</s>"], words)
    return transformers.FunnelTokenizer(vocab=vocabulary, model_max_length=64)


def _mpnet(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary = _wordpieces(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"], words)
    return transformers.MPNetTokenizer(vocab=vocabulary, model_max_length=64)


def _roberta(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary, merges = _byte_pairs(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], sentences)
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges, model_max_length=64)


def _xlm_roberta(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary = _unigram(["<s>", "<pad>", "</s>", "<unk>"], words, last=["<mask>"])
    return transformers.XLMRobertaTokenizer(vocab=vocabulary, model_max_length=64)


def _albert(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary = _unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], words)
    return transformers.AlbertTokenizer(vocab=vocabulary, model_max_length=64)


def _deberta(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    vocabulary = _unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]"], words, last=["[MASK]"])
    return transformers.DebertaV2Tokenizer(vocab=vocabulary, model_max_length=64)


def _xlnet(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    specials = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    return transformers.XLNetTokenizer(vocab=_unigram(specials, words), model_max_length=64)


def _modernbert(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    """No class of its own: its checkpoints name the general one, around byte-level pairs in BERT's template."""
    vocabulary, merges = _byte_pairs(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], sentences)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token=AddedToken("[MASK]", lstrip=True, special=True),
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=64,
    )


def _qwen(sentences: Sequence[str], words: Sequence[str]) -> PreTrainedTokenizerBase:
    """As Qwen3-Embedding: padded on the left, and one token for the end and for padding."""
    vocabulary, merges = _byte_pairs(["<|endoftext|>"], sentences)
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges, padding_side="left", model_max_length=64)
    end = ("<|endoftext|>", vocabulary["<|endoftext|>"])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end[0]}", pair=f"$A {end[0]} $B {end[0]}", special_tokens=[end]
    )
    return tokenizer


#: The tokenizer of each family, made of sentences (byte-pair vocabularies) or their words (the others).
TOKENIZERS: dict[str, Callable[[Sequence[str], Sequence[str]], PreTrainedTokenizerBase]] = {
    "albert": _albert,
    "bert": _bert,
    "deberta": _deberta,
    "distilbert": _distilbert,
    "electra": _electra,
    "funnel": _funnel,
    "modernbert": _modernbert,
    "mpnet": _mpnet,
    "qwen": _qwen,
    "roberta": _roberta,
    "xlm-roberta": _xlm_roberta,
    "xlnet": _xlnet,
}
