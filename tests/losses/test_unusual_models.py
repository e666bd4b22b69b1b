"""Encoders that are not as others: refused with a reason, or trained as any."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling
from transformers import BertForMaskedLM

from st_contrastive import (
    AuxiliaryMLMPretrainingLoss,
    ConIsILoss,
    DiffCSELoss,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
)
from st_contrastive.encoder.model_facts import get_encoder, has_dropout, learned_positions
from tests.cases import LOSSES, SMALL, with_encoder

# Texts longer than the positions.

LIMIT = 64


SIZES = {"vocab_size": 109, "max_position_embeddings": LIMIT, **SMALL}
#: BERT's and RoBERTa's, and tables that begin with no gap, with a gap for padding, and with a gap of two.
TABLES = {
    "bert": lambda build: build(),
    "roberta": lambda build: build("roberta"),
    "gpt2": lambda build: with_encoder(build(pooling="mean"), transformers.GPT2Model(transformers.GPT2Config(
        vocab_size=109, n_embd=32, n_layer=2, n_head=4, n_positions=LIMIT))),
    "opt": lambda build: with_encoder(build(pooling="mean"), transformers.OPTModel(transformers.OPTConfig(
        word_embed_proj_dim=32, ffn_dim=64, pad_token_id=0, **SIZES))),
    "yoso": lambda build: with_encoder(build(), transformers.YosoModel(transformers.YosoConfig(**SIZES))),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_length_beyond_the_positions_is_refused(build, name):
    model = TABLES[name](build)
    assert learned_positions(get_encoder(model)) == LIMIT
    for loss_class in [SimCSELoss, TwinsLoss] if name in ("gpt2", "opt", "yoso") else LOSSES:
        model.max_seq_length = LIMIT
        loss = loss_class(model)
        assert torch.isfinite(loss([model.preprocess(["rain falls " * LIMIT, "the lake is cold"])]).total)
        model.max_seq_length = LIMIT + 1
        with pytest.raises(ValueError, match=rf"max_seq_length is {LIMIT + 1}.*{LIMIT}, or less"):
            loss_class(model)


def test_the_generator_may_have_fewer_positions(build):
    model = build()
    short = copy.deepcopy(get_encoder(model).config)
    short.max_position_embeddings = LIMIT // 2
    for loss_class, arguments in ((DiffCSELoss, {}), (InfoCSELoss, {"rtd_weight": 0.005})):
        with pytest.raises(ValueError, match=r"BertModel can read.*32, or less"):
            loss_class(model, generator=BertForMaskedLM(short), **arguments)


@pytest.mark.parametrize("family", ["deberta", "modernbert", "xlnet"])
def test_encoders_without_a_position_table_accept_any_length(build, family):
    model = build(family)
    model.max_seq_length = 2 * LIMIT
    texts = ["rain falls " * LIMIT, "the lake is cold"]
    assert torch.isfinite(ConIsILoss(model)([model.preprocess(texts)]).total)


# Encoders that are not as others.


def test_an_encoder_without_an_embedding_matrix_trains_as_it_does_elsewhere(build, sentences):
    """CANINE, which hashes characters."""
    config = transformers.CanineConfig(
        max_position_embeddings=512, num_hash_functions=2, num_hash_buckets=64, downsampling_rate=2,
        local_transformer_stride=8, upsampling_kernel_size=2, **SMALL,
    )  # fmt: skip
    model = with_encoder(build(pooling="mean"), transformers.CanineModel(config))
    columns = [model.preprocess(part) for part in (sentences, sentences[::-1])]
    MultipleNegativesRankingLoss(model)([dict(column) for column in columns], None).backward()
    for loss in (SimCSELoss(model), MomentumContrastLoss(model), ConIsILoss(model)):
        terms = loss(columns[:1])
        terms.backward()
        assert math.isfinite(terms.item())
    for loss_class, options in ((SimCSELoss, {"mlm_weight": 0.1}), (InfoCSELoss, {}), (DiffCSELoss, {})):
        with pytest.raises(ValueError, match="no matrix of token embeddings"):
            loss_class(model, **options)


@pytest.mark.parametrize(("family", "refused"), [
    ("funnel", "does not expose its layers|no suitable masked-LM head"), ("xlnet", "no suitable masked-LM head"),
])  # fmt: skip
def test_families_that_some_losses_refuse(build, sentences, family, refused):
    model = build(family, "mean")
    for loss_class in (InfoCSELoss, AuxiliaryMLMPretrainingLoss, DiffCSELoss):
        with pytest.raises(ValueError, match=refused) as caught:
            loss_class(model)
        assert "Use an encoder" in str(caught.value)
    for loss_class in (SimCSELoss, ConIsILoss, TwinsLoss, MomentumContrastLoss):
        terms = loss_class(model)([model.preprocess(sentences)])
        terms.backward()
        assert math.isfinite(terms.item())


def test_a_copy_gives_the_states_of_all_layers(checkpoint, sentences):
    """Also after the encoder has: transformers' hooks for it are put in once."""
    transformer = Transformer(str(checkpoint("bert")), config_kwargs={"output_hidden_states": True})
    depth = transformer.model.config.num_hidden_layers
    modules = [transformer, WeightedLayerPooling(32, num_hidden_layers=depth), Pooling(32, "mean")]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.encode(sentences)
    assert torch.isfinite(MomentumContrastLoss(model.train())([model.preprocess(sentences)]).total)


def test_a_configuration_with_one_entry_per_layer(build, sentences):
    """Longformer's window: the head and the auxiliary network have fewer layers."""
    config = transformers.LongformerConfig(
        vocab_size=109, max_position_embeddings=66, attention_window=[4, 4, 8, 8], **SMALL
    )
    model = with_encoder(build(), transformers.LongformerModel(config, add_pooling_layer=False))
    assert SimCSELoss(model, mlm_weight=0.1).mlm_head.network.config.attention_window == [4]
    loss = InfoCSELoss(model, split_layer=1, extra_layers=2)
    assert loss.auxiliary.encoder.config.attention_window == [4, 8, 8]
    assert torch.isfinite(loss([model.preprocess(sentences)]).total)


def test_a_model_that_was_cast_after_the_loss_was_built(build, sentences):
    """As the Trainer does for ``bf16_full_eval``."""
    for make in (lambda model: SimCSELoss(model, mlm_weight=0.1, mask_rate=0.9), AuxiliaryMLMPretrainingLoss,
                 lambda model: InfoCSELoss(model, detach=False)):  # fmt: skip
        model = build("bert-mlm")
        loss = make(model)
        model.to(torch.bfloat16).eval()
        with torch.no_grad():
            assert torch.isfinite(loss([model.preprocess(sentences)]).total)


# Dropout.


def test_dropout_without_a_module_counts(build):
    model = build(dropout=False)
    config = transformers.BloomConfig(vocab_size=109, hidden_size=32, n_layer=1, n_head=4)
    for rate in (0.0, 0.1):
        config.hidden_dropout, config.attention_dropout = rate, 0.0
        model[0].model = transformers.BloomModel(config)
        column = model.train().preprocess(["rain falls"])
        first, second = (model(dict(column))["sentence_embedding"] for _ in range(2))
        assert has_dropout(model) == (not torch.equal(first, second)) == bool(rate)


@pytest.mark.parametrize("family", ["modernbert", "qwen", "bert"])
def test_the_remedy_for_missing_dropout_works(checkpoint, build, sentences, family):
    def load(**settings):
        first = Transformer(str(checkpoint(family)), config_kwargs=settings)
        return SentenceTransformer(modules=[first, Pooling(32, "mean")], device="cpu").train()

    names = ("hidden_dropout_prob", "attention_probs_dropout_prob") if family == "bert" else ()
    with pytest.warns(UserWarning, match=r"config_kwargs=\{'(\w+)': 0\.1\}") as caught:
        SimCSELoss(load(**dict.fromkeys(names, 0.0)))
    (message,) = [str(warning.message) for warning in caught if "config_kwargs" in str(warning.message)]
    setting = message.split("{'")[1].split("'")[0]
    model = load(**{**dict.fromkeys(names, 0.0), setting: 0.1})
    first, second = (model(model.preprocess(sentences))["sentence_embedding"] for _ in range(2))
    assert not torch.allclose(first, second)
