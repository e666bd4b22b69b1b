"""Tiny encoders of several families, built in code with their real tokenizer classes: no test needs a network."""

from __future__ import annotations

import copy
import functools
import json
import os
from pathlib import Path

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from tests import foreign
from tests.cases import SENTENCES, SMALL, WORDS, switch_off_dropout
from tests.tokenizers import TOKENIZERS


def _encoder(family: str, vocabulary: int) -> transformers.PreTrainedModel:
    common = {"vocab_size": vocabulary, **SMALL}
    if family == "bert":
        return transformers.BertModel(transformers.BertConfig(max_position_embeddings=64, **common))
    if family.endswith("-mlm"):
        config = _encoder(family.removesuffix("-mlm"), vocabulary).config
        return transformers.AutoModelForMaskedLM.from_config(config)
    if family == "roberta":
        return transformers.RobertaModel(
            transformers.RobertaConfig(max_position_embeddings=66, pad_token_id=1, type_vocab_size=1, **common)
        )
    if family == "xlm-roberta":
        return transformers.XLMRobertaModel(
            transformers.XLMRobertaConfig(max_position_embeddings=66, pad_token_id=1, type_vocab_size=1, **common)
        )
    if family == "mpnet":
        return transformers.MPNetModel(transformers.MPNetConfig(max_position_embeddings=66, pad_token_id=1, **common))
    if family == "distilbert":
        return transformers.DistilBertModel(
            transformers.DistilBertConfig(
                vocab_size=vocabulary, dim=32, n_layers=4, n_heads=4, hidden_dim=64, max_position_embeddings=64
            )
        )
    if family == "electra":
        return transformers.ElectraModel(
            transformers.ElectraConfig(max_position_embeddings=64, embedding_size=16, **common)
        )
    if family == "modernbert":
        ends = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        return transformers.ModernBertModel(
            transformers.ModernBertConfig(max_position_embeddings=64, local_attention=8, **ends, **common)
        )
    if family == "deberta":
        return transformers.DebertaV2Model(
            transformers.DebertaV2Config(
                max_position_embeddings=64,
                relative_attention=True,
                position_buckets=16,
                pos_att_type=["p2c", "c2p"],
                position_biased_input=False,
                **common,
            )
        )
    if family == "albert":
        return transformers.AlbertModel(
            transformers.AlbertConfig(max_position_embeddings=64, embedding_size=16, hidden_dropout_prob=0.1, **common)
        )
    if family == "qwen":
        return transformers.Qwen3Model(
            transformers.Qwen3Config(
                max_position_embeddings=64,
                num_key_value_heads=2,
                head_dim=8,
                pad_token_id=0,
                eos_token_id=0,
                **common,
            )
        )
    if family == "funnel":
        return transformers.FunnelModel(
            transformers.FunnelConfig(
                vocab_size=vocabulary, d_model=32, n_head=4, d_head=8, d_inner=64, block_sizes=[2, 1, 1], pad_token_id=0
            )
        )
    if family == "xlnet":
        return transformers.XLNetModel(
            transformers.XLNetConfig(vocab_size=vocabulary, d_model=32, n_layer=4, n_head=4, d_inner=64)
        )
    raise KeyError(family)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """``checkpoint(family)``: folder with a tiny encoder and its tokenizer; made once."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            tokenizer = TOKENIZERS[family.removesuffix("-mlm")](SENTENCES, WORDS)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                encoder = _encoder(family, len(tokenizer))
                for parameter in encoder.parameters():  # away from zero biases and unit scales
                    if parameter.requires_grad:
                        parameter.data += 0.1 * torch.randn_like(parameter)
            encoder.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[family] = folder
        return made[family]

    return make


@pytest.fixture(scope="session")
def seq2seq(tmp_path_factory):
    """Folder of a tiny translation model, which knows English to German by name."""
    folder = tmp_path_factory.mktemp("t5")
    words = ["<pad>", "</s>", "<unk>", *foreign.LETTERS, *(f"##{letter}" for letter in foreign.LETTERS), ":", "regen"]
    tokenizer = transformers.BertTokenizer(
        vocab={token: index for index, token in enumerate(words)},
        pad_token="<pad>",
        sep_token="</s>",
        cls_token="</s>",
        unk_token="<unk>",
        mask_token="<unk>",
        eos_token="</s>",
    )
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=1,
        num_heads=4,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        task_specific_params={"translation_en_to_de": {"prefix": "translate english to german : ", "max_length": 300}},
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.T5ForConditionalGeneration(config)
        for parameter in model.parameters():  # else its first token is its last
            parameter.data += torch.randn_like(parameter)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def loaded(checkpoint):
    """``loaded(family, pooling)``: a SentenceTransformer that was loaded once; take a copy."""

    @functools.cache
    def load(family: str, pooling: str) -> SentenceTransformer:
        with torch.random.fork_rng():  # the first to load it draws no other numbers than the next
            transformer = Transformer(str(checkpoint(family)))
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
        return SentenceTransformer(modules=modules, device="cpu")

    return load


@pytest.fixture
def build(loaded):
    """``build(family, pooling, dropout)``: a fresh SentenceTransformer in training mode."""

    def make(family: str = "bert", pooling: str = "cls", dropout: bool = True) -> SentenceTransformer:
        model = copy.deepcopy(loaded(family, pooling))
        if not dropout:
            switch_off_dropout(model)
        return model.train()

    return make


@pytest.fixture
def no_dropout():
    return switch_off_dropout


@pytest.fixture
def sentences() -> list[str]:
    return list(SENTENCES)


@pytest.fixture
def sts(tmp_path, sentences):
    """Folder of graded pairs: one set, one split."""
    folder = tmp_path / "sts" / "tiny"
    folder.mkdir(parents=True)
    rows = [
        {"sentence1": a, "sentence2": b, "score": score}
        for score, (a, b) in enumerate(zip(sentences, sentences[::-1], strict=True))
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real data, where they are at hand: $ST_CONTRASTIVE_DATA, with sts/ in it."""
    folder = os.environ.get("ST_CONTRASTIVE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("ST_CONTRASTIVE_DATA names no folder with real data")
    return Path(folder)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
