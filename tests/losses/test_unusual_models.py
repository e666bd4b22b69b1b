"""Models that a loss must refuse, or train as it does others."""

from __future__ import annotations

import warnings

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, WeightedLayerPooling
from transformers import BartConfig, BartModel, LongformerConfig, LongformerModel, YosoConfig, YosoModel

from st_contrastive import (
    AuxiliaryMLMPretrainingLoss,
    CombinedLoss,
    ConIsILoss,
    DiffCSELoss,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
)
from st_contrastive.encoder.model import Wrapping, encoder_of, has_dropout, position_table
from st_contrastive.evaluation import FirstLastAverage
from tests.filters import TRAINING

pytestmark = [*TRAINING, pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head")]

READERS = {
    "simcse": lambda model: SimCSELoss(model, mlm_weight=0.1),
    "infocse": InfoCSELoss,
    "diffcse": DiffCSELoss,
    "combined": CombinedLoss,
    "pretraining": AuxiliaryMLMPretrainingLoss,
    "twins": lambda model: TwinsLoss(model, train_pooling="cls"),
}


def with_encoder(model, encoder):
    model[0].model = encoder
    return model


@pytest.mark.parametrize("name", ["simcse", "infocse", "diffcse", "combined"])
def test_no_half_precision_copy_of_a_frozen_encoder_is_trained(build, name):
    model = build()
    encoder_of(model).half().requires_grad_(False)
    model.append(Dense(32, 32))
    with pytest.raises(ValueError, match=r"would train copies of the encoder's float16 weights.*torch\.float32"):
        READERS[name](model)
    SimCSELoss(model)  # which copies nothing


@pytest.mark.parametrize("name", READERS)
def test_token_vectors_that_are_changed_before_pooling_are_not_read(build, name):
    model = build()
    kinds = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    changed = SentenceTransformer(modules=[model[0], Dense(32, 16, **kinds), Pooling(16, "cls")], device="cpu")
    with pytest.raises(ValueError, match="reads the encoder's own token vectors, and Dense changes them"):
        READERS[name](changed)
    behind = SentenceTransformer(modules=[model[0], Pooling(32, "cls"), Dense(32, 16)], device="cpu")
    READERS[name](behind)


def test_a_copy_gives_the_states_of_all_layers(checkpoint, sentences):
    """Also after the encoder has: transformers' hooks for it are put in once."""
    transformer = Transformer(str(checkpoint("bert")), config_kwargs={"output_hidden_states": True})
    depth = transformer.model.config.num_hidden_layers
    modules = [transformer, WeightedLayerPooling(32, num_hidden_layers=depth), Pooling(32, "mean")]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.encode(sentences)
    loss = MomentumContrastLoss(model.train())
    assert torch.isfinite(loss([model.preprocess(sentences)]).total)


def test_reading_all_layers_once_costs_no_shortcut(build, sentences):
    model = build()
    before = Wrapping.of(model)
    FirstLastAverage(model).encode(sentences)
    assert Wrapping.of(model) == before
    encoder_of(model).register_forward_hook(lambda *_: None)
    assert Wrapping.of(model).hooked


@pytest.mark.parametrize("make", [ConIsILoss, CombinedLoss])
def test_tokens_without_an_embedding_are_not_drawn(build, sentences, make):
    model = build()
    rows = encoder_of(model).get_input_embeddings().num_embeddings
    model.tokenizer.add_tokens([f"word{number}" for number in range(400)])
    loss = make(model, strategy="subword")
    ids = loss.pairs.replacement.ordinary
    assert len(ids) > 0
    assert int(ids.max()) < rows
    assert torch.isfinite(loss([model.preprocess(sentences)]).total)


def test_position_tables_that_begin_with_a_gap(build):
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
    encoder = YosoModel(YosoConfig(vocab_size=90, max_position_embeddings=32, **sizes))
    assert encoder.embeddings.position_embeddings.num_embeddings == 34
    assert position_table(with_encoder(build(), encoder)) == 32


def test_dropout_without_a_module(build):
    config = BartConfig(
        vocab_size=90, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, attention_dropout=0.0, dropout=0.1,
    )  # fmt: skip
    model = with_encoder(build(), BartModel(config))
    assert has_dropout(model)
    config.dropout = 0.0
    assert not has_dropout(model)


def test_settings_with_one_entry_a_layer(build, sentences):
    """Longformer's window: the head and the auxiliary network have fewer layers."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 4, "intermediate_size": 32}
    config = LongformerConfig(vocab_size=90, max_position_embeddings=66, attention_window=[4, 4, 8, 8], **sizes)
    model = with_encoder(build(), LongformerModel(config, add_pooling_layer=False))
    loss = SimCSELoss(model, mlm_weight=0.1)
    assert loss.mlm_head.network.config.attention_window == [4]
    assert torch.isfinite(loss([model.preprocess(sentences)]).total)
    auxiliary = InfoCSELoss(model, extra_layers=2).auxiliary.eval()
    assert auxiliary.network.config.attention_window == [4, 4, 8, 8]
    features = model.preprocess(sentences[:3])
    inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
    places = torch.tensor([1, inputs["input_ids"].shape[1] + 2])
    with torch.no_grad():
        both = auxiliary.states(inputs, places, torch.randn(3, 32, generator=torch.Generator().manual_seed(0)))
        every = torch.arange(inputs["input_ids"].numel())
        whole = auxiliary.states(inputs, every, torch.randn(3, 32, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(both, whole[places])


def test_a_model_that_was_cast_after_the_loss_was_built(build, sentences):
    """As the Trainer does for ``bf16_full_eval``."""
    model = build()
    loss = SimCSELoss(model, mlm_weight=0.1, mask_rate=0.9)
    model.to(torch.bfloat16).eval()
    with torch.no_grad():
        assert torch.isfinite(loss([model.preprocess(sentences)]).total)


def test_a_constructor_that_fails_freezes_nothing(build):
    model = build(dropout=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="has none"):
            TwinsLoss(model)
    assert all(parameter.requires_grad for parameter in encoder_of(model).get_input_embeddings().parameters())
