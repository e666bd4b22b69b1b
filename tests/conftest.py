"""Fixtures: tiny encoders, which are built in code without a network, and sentences."""

from __future__ import annotations

import copy
import functools
import os
from pathlib import Path

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from st_contrastive.encoder import passes
from tests import foreign
from tests.cases import SENTENCES, switch_off_dropout
from tests.families import tiny_encoder, tiny_tokenizer
from tests.snippets import write_rows


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """``checkpoint(family)``: folder with a tiny encoder and its tokenizer. Each is saved once."""
    folders: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in folders:
            folder = tmp_path_factory.mktemp(family)
            tokenizer = tiny_tokenizer(family)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                encoder = tiny_encoder(family, len(tokenizer))
                for parameter in encoder.parameters():  # no zero biases or unit scales
                    if parameter.requires_grad:
                        parameter.data += 0.1 * torch.randn_like(parameter)
            encoder.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            folders[family] = folder
        return folders[family]

    return make


@pytest.fixture(scope="session")
def seq2seq(tmp_path_factory):
    """Folder of a tiny translation model, whose configuration has a task from English to German."""
    folder = tmp_path_factory.mktemp("t5")
    words = ["<pad>", "</s>", "<unk>", *foreign.LETTERS, *(f"##{letter}" for letter in foreign.LETTERS), ":", "regen"]
    named = {"pad_token": "<pad>", **dict.fromkeys(("sep_token", "cls_token", "eos_token"), "</s>")}
    named |= dict.fromkeys(("unk_token", "mask_token"), "<unk>")
    tokenizer = transformers.BertTokenizer(vocab={token: index for index, token in enumerate(words)}, **named)
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4}
    tasks = {"translation_en_to_de": {"prefix": "translate english to german : ", "max_length": 300}}
    config = transformers.T5Config(
        vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        task_specific_params=tasks, **sizes,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.T5ForConditionalGeneration(config)
        for parameter in model.parameters():  # without noise it generates only one token
            parameter.data += torch.randn_like(parameter)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def german(tmp_path_factory) -> Path:
    """Folder of a tiny German checkpoint."""
    return foreign.checkpoint(tmp_path_factory.mktemp("german"))


@pytest.fixture(scope="session")
def loaded_model(checkpoint):
    """``loaded_model(family, pooling)``: a SentenceTransformer that all tests share. Copy it."""

    @functools.cache
    def load(family: str, pooling: str) -> SentenceTransformer:
        with torch.random.fork_rng():  # the test that loads it gets the same random numbers as the others
            transformer = Transformer(str(checkpoint(family)))
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
        return SentenceTransformer(modules=modules, device="cpu")

    return load


@pytest.fixture
def build(loaded_model):
    """``build(family, pooling, dropout)``: a fresh SentenceTransformer in training mode."""

    def make(family: str = "bert", pooling: str = "cls", dropout: bool = True) -> SentenceTransformer:
        model = copy.deepcopy(loaded_model(family, pooling))
        if not dropout:
            switch_off_dropout(model)
        return model.train()

    return make


@pytest.fixture
def no_pass_costs(monkeypatch):
    """Passes cost nothing, so that rows of different lengths are always encoded in different groups."""
    cheapest = passes.cheapest_groups
    monkeypatch.setattr(passes, "cheapest_groups", lambda lengths: cheapest(lengths, pass_cost=0))


@pytest.fixture
def sentences() -> list[str]:
    return list(SENTENCES)


@pytest.fixture
def sts(tmp_path, sentences):
    """Folder of graded pairs with one dataset of one split."""
    rows = [
        {"sentence1": a, "sentence2": b, "score": score}
        for score, (a, b) in enumerate(zip(sentences, sentences[::-1], strict=True))
    ]
    write_rows(tmp_path / "sts" / "tiny" / "test.jsonl", rows)
    return tmp_path / "sts"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of real data, which contains sts/. Its name is in the environment variable ST_CONTRASTIVE_DATA."""
    folder = os.environ.get("ST_CONTRASTIVE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("ST_CONTRASTIVE_DATA is not a folder with real data")
    return Path(folder)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
