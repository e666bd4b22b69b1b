from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
)

from st_contrastive.components import AuxiliaryMLM
from st_contrastive.encoder.layers import get_layers
from st_contrastive.encoder.partial import capture_states

FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra", "modernbert", "deberta"]


@pytest.fixture
def batch(checkpoint, sentences):
    """``batch(family)``: the tokenized sentences."""

    def make(family):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint(family))
        return dict(tokenizer(sentences, padding=True, return_tensors="pt"))

    return make


def load(checkpoint, family):
    return AutoModel.from_pretrained(checkpoint(family), attn_implementation="eager").train()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", [1, 3])
def test_the_two_parts_are_the_network(checkpoint, batch, family, split):
    """The frozen part computes the encoder's states. The upper part then computes the same as a single pass."""
    encoder, features = load(checkpoint, family), batch(family)
    auxiliary = AuxiliaryMLM.from_encoder(encoder, split_layer=split, extra_layers=1).train()
    with capture_states(auxiliary.encoder, split) as captured:
        auxiliary(features, torch.ones(len(features["input_ids"]), 32))
    (lower,) = captured
    attended = features["attention_mask"].bool()
    assert attended.sum() > 20
    assert not lower.requires_grad
    auxiliary.eval(), encoder.eval()
    with torch.no_grad():
        expected = encoder(**features, output_hidden_states=True).hidden_states[split]
        torch.testing.assert_close(lower[attended], expected[attended])
        whole = auxiliary.encoder(**features).last_hidden_state
        torch.testing.assert_close(auxiliary(features, lower[:, 0]), whole, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(auxiliary.forward_upper(lower, features, {}), whole, rtol=1e-4, atol=1e-5)
        other = auxiliary(features, torch.ones(len(lower), 32))
    assert (other - whole).abs().amax(dim=(1, 2)).min() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_without_detaching_the_encoders_lower_part_learns(checkpoint, batch, family):
    """The lower part runs with the encoder's weights, or its states are taken from a pass of the encoder."""
    encoder, features = load(checkpoint, family).eval(), batch(family)
    auxiliary = AuxiliaryMLM.from_encoder(encoder).eval()
    chosen = features["attention_mask"].bool() & (torch.rand(features["input_ids"].shape) < 0.4)
    places = chosen.flatten().nonzero()[:, 0]
    found, gradients = [], []
    with torch.no_grad():  # other weights than the copy's, so that the wrong ones would be noticed
        for parameter in encoder.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    frozen = {name: parameter.clone() for name, parameter in auxiliary.named_parameters()}
    for passed in (False, True):
        encoder.zero_grad()
        vectors = torch.ones(len(chosen), 32).requires_grad_()
        if passed:
            lower = encoder(**features, output_hidden_states=True).hidden_states[auxiliary.split_layer]
            edited = torch.cat([vectors[:, None], lower[:, 1:]], dim=1)
            states = auxiliary.forward_upper(edited, features, auxiliary.encoder_weights(encoder, lower=False))
        else:
            states = auxiliary(features, vectors, auxiliary.encoder_weights(encoder, lower=True))
        states = states.flatten(0, 1)[places]
        found.append(states)
        states.square().sum().backward()
        lowest = next(get_layers(encoder)[0].parameters())
        gradients.append([vectors.grad, lowest.grad, encoder.get_input_embeddings().weight.grad])
        assert all(p.grad is None for p in get_layers(encoder)[-1].parameters()) or passed
    assert all(torch.equal(parameter, frozen[name]) for name, parameter in auxiliary.named_parameters())
    torch.testing.assert_close(*found)
    for live, from_pass in zip(*gradients, strict=True):
        assert live.abs().sum() > 0
        torch.testing.assert_close(live, from_pass, rtol=1e-4, atol=1e-5)
    # A network with a copy of the encoder's lower part computes the same.
    auxiliary.sync_frozen(encoder)
    with torch.no_grad():
        again = auxiliary(features, torch.ones(len(chosen), 32)).flatten(0, 1)[places]
    torch.testing.assert_close(again, found[0].detach())
    assert not torch.equal(next(iter(frozen.values())), next(auxiliary.parameters()))


def test_only_the_trainable_part_has_dropout(checkpoint):
    auxiliary = AuxiliaryMLM.from_encoder(load(checkpoint, "bert"), split_layer=2, extra_layers=1).train()
    lower, upper = get_layers(auxiliary.encoder)[:2], get_layers(auxiliary.encoder)[2:]
    frozen = [module for part in (*lower, auxiliary.encoder.embeddings) for module in part.modules()]
    assert len(frozen) > 20
    assert not any(module.training for module in frozen)
    assert all(module.training for layer in upper for module in layer.modules())
    assert not any(module.training for module in auxiliary.eval().modules())
    dropping = AuxiliaryMLM.from_encoder(load(checkpoint, "bert"), lower_dropout=True).train()
    assert all(module.training for module in dropping.modules())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_read_from_the_checkpoint(checkpoint, batch, family, tied):
    name = checkpoint(f"{family}-mlm")
    reference = AutoModelForMaskedLM.from_pretrained(name).eval()
    encoder = AutoModel.from_pretrained(name).eval()
    auxiliary = AuxiliaryMLM.from_encoder(encoder, tied_head=tied).eval()
    assert auxiliary.head.source == "checkpoint"
    features = batch(family)
    with torch.no_grad():
        hidden = encoder(**features).last_hidden_state[features["attention_mask"].bool()]
        expected = reference(**features).logits[features["attention_mask"].bool()]
        torch.testing.assert_close(auxiliary.head(hidden, auxiliary.encoder), expected)
    decoder = [p for p in auxiliary.head.parameters() if p.shape == encoder.get_input_embeddings().weight.shape]
    assert len(decoder) == (0 if tied else 1)
    assert all(p.requires_grad for p in auxiliary.head.parameters())


def test_a_new_head_starts_as_the_embeddings(checkpoint):
    encoder = load(checkpoint, "bert")
    matrix = encoder.get_input_embeddings().weight
    head = AuxiliaryMLM.from_encoder(encoder).head
    decoder = head.network.get_output_embeddings().weight
    assert head.source == "new"
    assert decoder.requires_grad
    assert decoder is not matrix
    assert torch.equal(decoder, matrix)
    # A tied head uses the frozen copy, because the encoder's matrix would get a second gradient.
    tied = AuxiliaryMLM.from_encoder(encoder, tied_head=True)
    assert not any(p.shape == matrix.shape for p in tied.head.parameters())
    tied.head(torch.randn(3, 32), tied.encoder).sum().backward()
    assert matrix.grad is tied.encoder.get_input_embeddings().weight.grad is None


@pytest.mark.parametrize(("depth", "shape"), [(2, (1, 1)), (4, (2, 1)), (6, (3, 2)), (12, (6, 2)), (24, (12, 2))])
def test_the_network_has_fewer_layers_than_the_encoder(depth, shape):
    small = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=depth, num_attention_heads=2, intermediate_size=8
    )
    auxiliary = AuxiliaryMLM.from_encoder(BertModel(small))
    assert (auxiliary.split_layer, auxiliary.extra_layers) == shape
    assert auxiliary.head.source == "new"  # there is no checkpoint


def test_bad_arguments_and_encoders(checkpoint):
    encoder = load(checkpoint, "bert")
    for options in ({"split_layer": 0}, {"split_layer": 4}, {"extra_layers": 5}, {"extra_layers": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            AuxiliaryMLM.from_encoder(encoder, **options)
    with pytest.raises(ValueError, match="ALBERT"):
        AuxiliaryMLM.from_encoder(load(checkpoint, "albert"))
    encoder = load(checkpoint, "bert-mlm")
    encoder.config.intermediate_size += 1
    with pytest.raises(ValueError, match=r"no suitable masked-LM head.*can't be loaded"):  # no new head is used
        AuxiliaryMLM.from_encoder(encoder)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_added_tokens_do_not_change_the_checkpoints_head(checkpoint, batch, family):
    name, features = checkpoint(f"{family}-mlm"), batch(family)
    reference = AutoModelForMaskedLM.from_pretrained(name).eval()
    encoder = AutoModel.from_pretrained(name).eval()
    size = encoder.config.vocab_size
    encoder.resize_token_embeddings(size + 3)
    with torch.no_grad():
        hidden, expected = encoder(**features).last_hidden_state[:, 1], reference(**features).logits[:, 1]
    for tied in (True, False):
        auxiliary = AuxiliaryMLM.from_encoder(encoder, tied_head=tied).eval()
        assert auxiliary.head.source == "checkpoint"
        logits = auxiliary.head(hidden, auxiliary.encoder)
        assert logits.shape == (len(hidden), size + 3)
        torch.testing.assert_close(logits[:, :size], expected)


def test_a_convolution_behind_the_lowest_layer(checkpoint, batch):
    """Large DeBERTa-v2 encoders count their layers, and compute a convolution between two of them."""
    config = DebertaV2Config.from_pretrained(checkpoint("deberta"), conv_kernel_size=3, conv_act="gelu")
    encoder, features = DebertaV2Model(config).eval(), batch("deberta")
    for split in (1, 2):
        auxiliary = AuxiliaryMLM.from_encoder(encoder, split_layer=split).eval()
        vectors = torch.randn(len(features["input_ids"]), 32)
        with torch.no_grad(), capture_states(encoder, split) as lower:
            encoder(**features)
            frozen = auxiliary(features, vectors)
            states = torch.cat([vectors[:, None], lower[0][:, 1:]], dim=1)
            passed = auxiliary.forward_upper(states, features, auxiliary.encoder_weights(encoder, lower=False))
        torch.testing.assert_close(passed, frozen)
