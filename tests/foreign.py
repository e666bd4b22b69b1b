"""A small German checkpoint with another width than the encoders of conftest."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß"
GERMAN = [
    "die kleine katze schläft auf einem warmen stuhl",
    "zwei hunde laufen den fluss entlang",
    "regen fällt",
    "ein mann liest im garten das alte buch während die sonne untergeht und der abend kommt",
    "sie kauft brot und milch",
    "der zug ist wieder spät",
    "vögel singen am morgen",
    "ein kind malt ein blaues haus mit einer roten tür",
    "wir gehen zum bahnhof",
    "der see ist im winter kalt",
]
#: Number of tokens that BERT's vocabulary in conftest has too: 26 letters twice, five special tokens, two words.
SHARED = 26 + 26 + 5 + 2


def tokenizer() -> transformers.PreTrainedTokenizerBase:
    words = sorted({word for sentence in GERMAN for word in sentence.split()} - set("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = "[UNK] [MASK] [SEP] [CLS] [PAD]".split() + words + [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary += ["garden", "winters"]  # the first is in the English vocabulary too
    ids = {token: index for index, token in enumerate(dict.fromkeys(vocabulary))}
    return transformers.BertTokenizer(vocab=ids, strip_accents=False, model_max_length=64)


def checkpoint(folder: Path, width: int = 8) -> Path:
    german = tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.AlbertConfig(vocab_size=len(german), embedding_size=width, **sizes)
        model = transformers.AlbertModel(config)
    model.save_pretrained(folder)
    german.save_pretrained(folder)
    return folder
