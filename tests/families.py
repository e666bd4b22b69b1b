"""Tiny encoders of several families. Each has the tokenizer class that real checkpoints of its family use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import transformers
from tokenizers import AddedToken, ByteLevelBPETokenizer, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tests.cases import SENTENCES, SMALL, WORDS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _wordpieces(name: str, first_tokens: list[str]) -> PreTrainedTokenizerBase:
    pieces = [*LETTERS, *(f"##{letter}" for letter in LETTERS), "##s", "##ing"]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys([*first_tokens, *WORDS, *pieces]))}
    return getattr(transformers, name)(vocab=vocabulary, model_max_length=64)


def _bert_30k() -> PreTrainedTokenizerBase:
    """BERT's tokenizer with 30,000 tokens. As in its checkpoints, unused tokens follow [PAD].

    Training changes only the last rows of the embedding matrix.
    """
    padding, *others = BERT_TOKENS
    unused = 30_000 - len(_wordpieces("BertTokenizer", BERT_TOKENS))
    return _wordpieces("BertTokenizer", [padding, *(f"[unused{number}]" for number in range(unused)), *others])


def _unigram(name: str, specials: str, last: str = "") -> PreTrainedTokenizerBase:
    """Each word is one token, because words are likelier than letters."""
    pieces = [(f"▁{word}", -1.0) for word in WORDS]
    pieces += [(piece, -20.0) for piece in ("▁", *LETTERS) if f"▁{piece}" not in WORDS]
    vocabulary = [*((token, 0.0) for token in specials.split()), *pieces, *((token, 0.0) for token in last.split())]
    return getattr(transformers, name)(vocab=vocabulary, model_max_length=64)


def _byte_pairs(specials: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(SENTENCES * 5, vocab_size=400, show_progress=False, special_tokens=specials)
    model = json.loads(bpe.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def _roberta() -> PreTrainedTokenizerBase:
    vocabulary, merges = _byte_pairs(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges, model_max_length=64)


def _modernbert() -> PreTrainedTokenizerBase:
    """The general class, as in ModernBERT's checkpoints, with byte-level pairs and BERT's template."""
    vocabulary, merges = _byte_pairs(BERT_TOKENS)
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
        mask_token=AddedToken("[MASK]", lstrip=True, special=True),
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=64,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")},
    )


def _qwen() -> PreTrainedTokenizerBase:
    """As in Qwen3-Embedding: padding on the left, with the token that ends a text."""
    vocabulary, merges = _byte_pairs(["<|endoftext|>"])
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges, padding_side="left", model_max_length=64)
    end = ("<|endoftext|>", vocabulary["<|endoftext|>"])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end[0]}", pair=f"$A {end[0]} $B {end[0]}", special_tokens=[end]
    )
    return tokenizer


#: The tokenizer of each family. Its tokens are words or byte pairs of the sentences.
TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "albert": lambda: _unigram("AlbertTokenizer", "<pad> <unk> [CLS] [SEP] [MASK]"),
    "bert": lambda: _wordpieces("BertTokenizer", BERT_TOKENS),
    "bert-30k": _bert_30k,
    "deberta": lambda: _unigram("DebertaV2Tokenizer", "[PAD] [CLS] [SEP] [UNK]", last="[MASK]"),
    "distilbert": lambda: _wordpieces("DistilBertTokenizer", BERT_TOKENS),
    "electra": lambda: _wordpieces("ElectraTokenizer", BERT_TOKENS),
    "funnel": lambda: _wordpieces("FunnelTokenizer", "<pad> <unk> <cls> <sep> <mask> <s> </s>".split()),
    "modernbert": _modernbert,
    "mpnet": lambda: _wordpieces("MPNetTokenizer", "<s> <pad> </s> [UNK] <mask>".split()),
    "qwen": _qwen,
    "roberta": _roberta,
    "xlm-roberta": lambda: _unigram("XLMRobertaTokenizer", "<s> <pad> </s> <unk>", last="<mask>"),
    "xlnet": lambda: _unigram("XLNetTokenizer", "<unk> <s> </s> <cls> <sep> <pad> <mask> <eod> <eop>"),
}
_LIKE_ROBERTA = {"max_position_embeddings": 66, "pad_token_id": 1}
#: Each family's encoder: its class and its configuration.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("Albert", {"embedding_size": 16, "hidden_dropout_prob": 0.1, **SMALL}),
    "bert": ("Bert", SMALL),
    "bert-30k": ("Bert", SMALL),
    "deberta": ("DebertaV2", {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"],
                              "position_biased_input": False, **SMALL}),
    "distilbert": ("DistilBert", {"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 64}),
    "electra": ("Electra", {"embedding_size": 16, **SMALL}),
    "funnel": ("Funnel", {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [2, 1, 1],
                          "pad_token_id": 0}),
    "modernbert": ("ModernBert", {"local_attention": 8, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3,
                                  "bos_token_id": 2, "eos_token_id": 3, **SMALL}),
    "mpnet": ("MPNet", {**_LIKE_ROBERTA, **SMALL}),
    "qwen": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 0, **SMALL}),
    "roberta": ("Roberta", {**_LIKE_ROBERTA, "type_vocab_size": 1, **SMALL}),
    "xlm-roberta": ("XLMRoberta", {**_LIKE_ROBERTA, "type_vocab_size": 1, **SMALL}),
    "xlnet": ("XLNet", {"d_model": 32, "n_layer": 4, "n_head": 4, "d_inner": 64}),
}  # fmt: skip


def tiny_tokenizer(family: str) -> PreTrainedTokenizerBase:
    return TOKENIZERS[family.removesuffix("-mlm")]()


def tiny_encoder(family: str, vocabulary: int) -> PreTrainedModel:
    """A random encoder. Families with the suffix "-mlm" have a masked-LM head."""
    name, options = ENCODERS[family.removesuffix("-mlm")]
    positions = {} if name in ("Funnel", "XLNet") else {"max_position_embeddings": 64}
    config = getattr(transformers, f"{name}Config")(vocab_size=vocabulary, **{**positions, **options})
    encoder = getattr(transformers, f"{name}Model")(config)
    return transformers.AutoModelForMaskedLM.from_config(encoder.config) if family.endswith("-mlm") else encoder
