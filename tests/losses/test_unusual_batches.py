"""Batches with more in them than text, of one sentence, and in forms that others make."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.losses.gradcache import RandContext
from sentence_transformers.base.modules import Transformer
from transformers import DataCollatorWithFlattening

from st_contrastive import (
    ConIsILoss,
    DiffCSELoss,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
    text_dataset,
)
from st_contrastive.encoder.model_facts import ModelState
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses import Step
from st_contrastive.training import ContrastiveTrainer
from tests.cases import CASES, ONE_OF_EACH, SMALL, arguments_of, build_loss, columns, crossed, with_encoder


class GlobalFirst(Transformer):
    """A user's first module, which adds a tensor per token, as Longformer's global attention asks for."""

    @classmethod
    def of(cls, model, key="global_attention_mask"):
        first = model[0]
        first.__class__, first.key = cls, key
        return model

    def preprocess(self, *args, **kwargs):
        features = super().preprocess(*args, **kwargs)
        first = torch.zeros_like(features["input_ids"])
        first[:, :2] = 1
        return {**features, self.key: first}

    def forward(self, features, **kwargs):
        if self.key not in features:
            raise KeyError(self.key)
        named = {name: features[name] for name in ("input_ids", "attention_mask", self.key)}
        return {**features, "token_embeddings": self.model(**named).last_hidden_state}


def longformer(build):
    sizes = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.LongformerConfig(vocab_size=109, max_position_embeddings=66, attention_window=4, **sizes)
    return GlobalFirst.of(with_encoder(build(dropout=False), transformers.LongformerModel(config)))


def bert_with_types(build):
    """Token types that say more than which sentence."""
    return GlobalFirst.of(build(dropout=False), "token_type_ids")


def vectors_of(loss, batch):
    """The sentence vectors of a loss's own passes."""
    seen, in_chunks = [], Step.in_chunks
    with mock.patch.object(Step, "in_chunks", lambda *given: seen.append(in_chunks(*given)) or seen[-1]):
        loss([dict(column) for column in batch])
    return [view for views in seen for view in views if view is not None]


@pytest.mark.parametrize("make", [longformer, bert_with_types])
@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_tensors_with_an_entry_per_token_follow_their_rows(build, sentences, no_pass_costs, make, mini_batch_size):
    model = make(build)
    batch = model.preprocess(sentences)
    expected = model(dict(batch))["sentence_embedding"]
    key = model[0].key
    without = model({**batch, key: torch.zeros_like(batch[key])})["sentence_embedding"]
    assert not torch.allclose(expected, without, atol=1e-3)  # it matters
    for loss in (
        SimCSELoss(model, head=None, mini_batch_size=mini_batch_size),
        TwinsLoss(model, queue_batches=0, fraternal_weight=0, twins_weight=0, mini_batch_size=mini_batch_size),
        MomentumContrastLoss(model, head=None, queue_size=3, mini_batch_size=mini_batch_size),
    ):
        views = vectors_of(loss, [batch])
        assert len(views) >= 2
        for view in views:
            torch.testing.assert_close(view, expected, rtol=1e-4, atol=1e-5)


class PerRow(torch.nn.Module):
    """A user's module behind the pooling that reads an entry of each row."""

    def __init__(self, key):
        super().__init__()
        self.key = key

    def forward(self, features):
        assert len(features[self.key]) == len(features["sentence_embedding"])
        extra = torch.tensor([[float(value)] for value in features[self.key]])
        return {**features, "sentence_embedding": features["sentence_embedding"] + extra}


@pytest.mark.parametrize("kind", [list, torch.tensor])
@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_tensors_with_an_entry_per_row_follow_their_rows(build, sentences, kind, mini_batch_size):
    model = build(dropout=False)
    model.append(PerRow("year"))
    batch = {**model.preprocess(sentences), "year": kind([0.1 * number for number in range(len(sentences))])}
    expected = model(dict(batch))["sentence_embedding"]
    loss = SimCSELoss(model, head=None, mini_batch_size=mini_batch_size)
    for view in vectors_of(loss, [batch]):
        torch.testing.assert_close(view, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [torch.zeros(3), torch.zeros(2, 5), torch.tensor(1.0), ["a", "b"]])
def test_tensors_of_another_shape_are_refused_by_name(build, sentences, value):
    model = build()
    with pytest.raises(ValueError, match="'year'"):
        SimCSELoss(model)([{**model.preprocess(sentences), "year": value}])


def test_conisi_refuses_further_tensors_per_token(build, sentences):
    model = longformer(build)
    with pytest.raises(ValueError, match="global_attention_mask"):
        ConIsILoss(model)([model.preprocess(sentences)])


# Padding, and grouping by length.


def bigbird(build):
    config = transformers.BigBirdConfig(vocab_size=109, max_position_embeddings=512, block_size=4, num_random_blocks=1,
                                        **SMALL)  # fmt: skip
    return with_encoder(build(pooling="mean"), transformers.BigBirdModel(config, add_pooling_layer=False))


@pytest.mark.parametrize("kind", [SimCSELoss, ConIsILoss])
def test_unknown_families_are_not_grouped_by_length(build, sentences, no_pass_costs, kind):
    """BigBird leaves its sparse attention for good under a short text."""
    model = bigbird(build)
    model.max_seq_length = 64
    long = ["the small cat sleeps on a warm chair while rain falls " * 5]
    before = model.eval()({**model.preprocess(long)})["sentence_embedding"]
    assert model[0].model.attention_type == "block_sparse"
    model.train()
    assert not ModelState.of(model).ignores_padding
    widths = []
    model[0].model.embeddings.register_forward_hook(lambda _, __, output: widths.append(output.shape[1]))
    loss = kind(model)
    batch = model.preprocess([*sentences, *long])
    loss([dict(batch)]).backward()
    assert widths
    assert min(widths) >= batch["input_ids"].shape[1]
    assert model[0].model.attention_type == "block_sparse"
    after = model.eval()({**model.preprocess(long)})["sentence_embedding"]
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "electra", "albert", "deberta"]
)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_does_not_change_vectors_of_known_families(build, sentences, family, pooling):
    model = build(family, pooling, dropout=False)
    assert ModelState.of(model).ignores_padding
    whole = model(model.preprocess([*sentences, "rain " * 50]))["sentence_embedding"]
    alone = torch.cat([model(model.preprocess([sentence]))["sentence_embedding"] for sentence in sentences])
    torch.testing.assert_close(whole[:-1], alone, rtol=1e-4, atol=1e-5)
    model[1] = type("Pooling", (torch.nn.Module,), {"forward": lambda self, features: features})()  # a user's own
    assert not ModelState.of(model).ignores_padding


# Mini-batches on other devices.


@pytest.mark.parametrize("kind", [SimCSELoss, InfoCSELoss])
def test_a_recomputation_draws_the_same_numbers_on_mps(build, sentences, monkeypatch, kind):
    """torch's checkpoint restores no state of MPS; the pretended one counts how often it was read."""
    model = build("bert-mlm")
    loss = kind(model, mini_batch_size=4)
    states, restored = [], []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: states.append(len(states)) or states[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", restored.append)
    on_mps = RandContext.__init__

    def remembered(self, *tensors):
        assert tensors
        assert all(isinstance(tensor, torch.Tensor) and tensor.device == loss.model.device for tensor in tensors)
        on_mps(self, *[tensor.as_subclass(OnMPS) for tensor in tensors])

    monkeypatch.setattr(RandContext, "__init__", remembered)
    loss([model.preprocess(sentences)]).backward()
    read = list(states)
    assert len(read) >= 3
    assert set(restored) >= set(read[:3])


class OnMPS(torch.Tensor):
    """A tensor that says it lies on MPS."""

    device = property(lambda _: torch.device("mps"))


# Batches of one sentence, and pairs that are none.


@pytest.mark.parametrize("loss_class", [SimCSELoss, ConIsILoss, DiffCSELoss, InfoCSELoss])
def test_batches_of_one_sentence(build, sentences, loss_class):
    """One is an epoch's last batch; as the first, or in an evaluation, it is warned of, once."""
    model = build("bert-mlm")
    lone, batch = model.preprocess(sentences[:1]), model.preprocess(sentences)
    loss = loss_class(model)
    loss([dict(batch)])
    for _ in range(2):
        assert loss([dict(lone)])["contrastive"].item() == 0
    loss([dict(batch)])
    assert all(part.training for part in loss.owned_modules())  # BatchNorm, which leaves one row out, learns again
    model.eval()
    with torch.no_grad():
        loss([dict(batch)])
    with pytest.warns(UserWarning, match="batch of one sentence"), torch.no_grad():
        loss([dict(lone)])
    with torch.no_grad():
        loss([dict(lone)])
    with pytest.warns(UserWarning, match="batch of one sentence"):
        loss_class(model.train())([dict(lone)])


def test_a_queue_provides_negatives_for_a_single_sentence(build, sentences):
    model = build()
    for loss in (TwinsLoss(model, fraternal_weight=0, twins_weight=0), MomentumContrastLoss(model)):
        for sentence in sentences[:3]:
            terms = loss([model.preprocess([sentence])])
        assert terms.item() > 0


@pytest.mark.parametrize("share", [1.0, 0.8])
def test_a_copy_instead_of_a_translation_gives_one_warning(build, sentences, share):
    model = build()
    loss = TwinsLoss(model)
    second = [text if i < share * len(sentences) else text + " rain" for i, text in enumerate(sentences)]
    batch = [model.preprocess(sentences), model.preprocess(second)]
    with pytest.warns(UserWarning, match=f"{share:.0%} of a batch the second column equals the first"):
        loss([dict(column) for column in batch])
    loss([dict(column) for column in batch])
    TwinsLoss(model)([model.preprocess(sentences), model.preprocess(sentences[::-1])])


# Flat batches, as sentence-transformers makes them for flash attention.


def flatten_batches(model):
    """The model makes flat batches, as one does that was loaded with flash attention."""
    model[0].data_collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    model[0].can_flatten_inputs, model[0]._flatten_position_offset = True, 0
    return model


@pytest.mark.filterwarnings("ignore:TwinsLoss trains the vector of the first token")
@pytest.mark.parametrize("family", ["bert-mlm", "roberta", "qwen"])
@pytest.mark.parametrize("name", crossed(CASES, quick=ONE_OF_EACH.__contains__))
def test_a_flat_batch_is_read_as_rows_and_the_model_stays_as_it_was(build, sentences, name, family):
    if family == "qwen" and name.startswith(("infocse", "diffcse", "pretraining", "simcse-mlm")):
        pytest.skip("a decoder has no mask token")
    terms = []
    for is_flat in (False, True):
        model = build(family)
        torch.manual_seed(0)
        loss = build_loss(name, model)
        before = dict(vars(flatten_batches(model)[0]))
        model[0].can_flatten_inputs = is_flat
        batches = columns(model, sentences, name)
        assert (len(batches[0]["input_ids"]) == 1) == is_flat
        torch.manual_seed(1)
        terms.append({key: term.item() for key, term in loss(batches).items()})
        model[0].can_flatten_inputs = True
        assert before == vars(model[0])
    assert terms[0] == pytest.approx(terms[1])


@pytest.mark.parametrize("texts", [["rain falls"], ["a", "", "two dogs run along the river"]], ids=["one", "empty"])
def test_a_flat_batch_of_odd_texts(build, texts):
    model = flatten_batches(build())
    batch = TokenBatch.of(model.preprocess(texts), pad_token_id=model.tokenizer.pad_token_id)
    model[0].can_flatten_inputs = False
    expected = model.preprocess(texts)
    assert torch.equal(batch.ids, expected["input_ids"])
    assert torch.equal(batch.mask, expected["attention_mask"])


@pytest.mark.parametrize("trainer_class", [ContrastiveTrainer, SentenceTransformerTrainer])
def test_flat_batches_are_trained_on_and_stay_flat_for_encoding(build, sentences, tmp_path, trainer_class):
    model = flatten_batches(build())
    arguments = arguments_of(tmp_path, max_steps=2, save_strategy="no")
    trainer = trainer_class(model, arguments, text_dataset(sentences), loss=SimCSELoss(model))
    trainer.train()
    assert math.isfinite(trainer.state.log_history[0]["loss"])
    assert len(model.preprocess(sentences)["input_ids"]) == 1
