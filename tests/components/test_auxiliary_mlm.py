from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from st_contrastive.components import AuxiliaryMLM
from st_contrastive.components.layer_stack import editing_input, embedding_outputs, layers_of

FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra", "modernbert", "deberta"]


@pytest.fixture
def batch(checkpoint, sentences):
    def make(family):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint(family))
        return dict(tokenizer(sentences, padding=True, return_tensors="pt"))

    return make


def load(checkpoint, family):
    return AutoModel.from_pretrained(checkpoint(family), attn_implementation="eager").train()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", [1, 3])
def test_frozen_part_gives_the_encoders_hidden_states(checkpoint, batch, family, split):
    encoder, features = load(checkpoint, family), batch(family)
    auxiliary = AuxiliaryMLM.from_encoder(encoder, split_layer=split, extra_layers=1).train()
    seen = []
    boundary = layers_of(auxiliary.network)[split]
    with editing_input(boundary, lambda hidden: seen.append(hidden) or hidden):
        vectors = torch.randn(len(features["input_ids"]), 32, requires_grad=True)
        auxiliary(features, features["attention_mask"].bool(), vectors)
    with torch.no_grad():
        expected = encoder.eval()(**features, output_hidden_states=True).hidden_states[split]
    attended = features["attention_mask"].bool()
    assert len(seen) == 1
    assert attended.sum() > 20
    torch.testing.assert_close(seen[0][attended], expected[attended])
    assert not seen[0].requires_grad


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_the_vector_the_extra_layers_and_the_head_alone(checkpoint, batch, family):
    encoder, features = load(checkpoint, family), batch(family)
    auxiliary = AuxiliaryMLM.from_encoder(encoder).train()
    vectors = torch.randn(len(features["input_ids"]), 32, requires_grad=True)
    chosen = features["attention_mask"].bool() & (torch.rand(features["input_ids"].shape) < 0.5)
    logits = auxiliary(features, chosen, vectors)
    assert logits.shape == (int(chosen.sum()), len(AutoTokenizer.from_pretrained(checkpoint(family))))
    logits.square().sum().backward()
    assert (vectors.grad.abs().sum(1) > 0).all()
    assert all(parameter.grad is None for parameter in encoder.parameters())
    trained = {name for name, parameter in auxiliary.named_parameters() if parameter.requires_grad}
    assert trained
    for name, parameter in auxiliary.named_parameters():
        assert (parameter.grad is not None and parameter.grad.abs().sum() > 0) == (name in trained), name
    lower = {id(p) for layer in layers_of(auxiliary.network)[:2] for p in layer.parameters()}
    assert not any(p.requires_grad for p in auxiliary.parameters() if id(p) in lower)


def test_frozen_part_has_no_dropout_and_the_rest_has(checkpoint):
    auxiliary = AuxiliaryMLM.from_encoder(load(checkpoint, "bert"), split_layer=2, extra_layers=1).train()
    lower, upper = layers_of(auxiliary.network)[:2], layers_of(auxiliary.network)[2:]
    frozen = [module for part in (*lower, auxiliary.network.embeddings) for module in part.modules()]
    assert len(frozen) > 20
    assert not any(module.training for module in frozen)
    assert all(module.training for layer in upper for module in layer.modules())
    auxiliary.eval()
    assert not any(module.training for module in auxiliary.modules())


def test_the_head_is_the_checkpoints_where_it_has_one(checkpoint):
    reference = AutoModelForMaskedLM.from_pretrained(checkpoint("bert-mlm")).eval()
    auxiliary = AuxiliaryMLM.from_encoder(AutoModel.from_pretrained(checkpoint("bert-mlm"))).eval()
    assert auxiliary.head.source == "checkpoint"
    hidden = torch.randn(5, 32)
    torch.testing.assert_close(auxiliary.head(hidden), reference.cls(hidden))


def test_otherwise_a_new_head_tied_to_the_copied_embeddings(checkpoint):
    encoder = load(checkpoint, "bert")
    auxiliary = AuxiliaryMLM.from_encoder(encoder)
    assert auxiliary.head.source == "tied"
    matrix = auxiliary.head.network.get_output_embeddings().weight
    assert matrix is auxiliary.network.get_input_embeddings().weight
    assert matrix is not encoder.get_input_embeddings().weight
    assert torch.equal(matrix, encoder.get_input_embeddings().weight)


def test_an_encoder_made_in_code_needs_no_checkpoint():
    from transformers import BertConfig, BertModel

    small = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    auxiliary = AuxiliaryMLM.from_encoder(BertModel(small), split_layer=1, extra_layers=1)
    assert auxiliary.head.source == "tied"
    assert auxiliary.split_layer == auxiliary.extra_layers == 1


def test_bad_input(checkpoint):
    encoder = load(checkpoint, "bert")
    for options in ({"split_layer": 0}, {"split_layer": 5}, {"extra_layers": 5}, {"extra_layers": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            AuxiliaryMLM.from_encoder(encoder, **options)
    with pytest.raises(ValueError, match="ALBERT"):
        AuxiliaryMLM.from_encoder(load(checkpoint, "albert"))


@pytest.mark.parametrize("family", [*FAMILIES, "albert"])
def test_embedding_output_is_captured_in_the_pass(checkpoint, batch, family):
    encoder, features = load(checkpoint, family).eval(), batch(family)
    with embedding_outputs(encoder) as captured:
        states = [encoder(**features, output_hidden_states=True).hidden_states[0] for _ in range(2)]
    encoder(**features)
    assert len(captured) == 2
    for found, expected in zip(captured, states, strict=True):
        torch.testing.assert_close(found, expected)
        assert not found.requires_grad
