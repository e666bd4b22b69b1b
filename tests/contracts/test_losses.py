"""The promises that every public loss keeps."""

from __future__ import annotations

import inspect
import json
import math
import warnings

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, MatryoshkaLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

import st_contrastive
from st_contrastive import InfoCSELoss, SimCSELoss, TwinsLoss
from st_contrastive.encoder.requirements import warn_of_training
from st_contrastive.losses.base import TextLoss
from tests.cases import CASES, CLASSES, ONE_OF_EACH, build_loss, columns, crossed, switch_off_dropout

a_case_of_each_loss = pytest.mark.parametrize("name", crossed(CASES, quick=ONE_OF_EACH.__contains__))
each_loss = pytest.mark.parametrize("name", ONE_OF_EACH)


@pytest.mark.parametrize("loss_class", CLASSES)
def test_constructors(build, loss_class):
    """Only the model is required. All other arguments are keywords with plain default values."""
    model, *arguments = inspect.signature(loss_class).parameters.values()
    assert model.name == "model"
    assert all(argument.kind is inspect.Parameter.KEYWORD_ONLY for argument in arguments)
    assert all(isinstance(argument.default, (str, float, int, bool, type(None))) for argument in arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = loss_class(build().bfloat16())
    assert {warning.filename for warning in caught if "bfloat16" in str(warning.message)} == {__file__}
    assert isinstance(loss, TextLoss)
    assert loss.citation.strip().startswith("@")
    assert loss.citation.count("{") == loss.citation.count("}")


def test_every_public_loss_is_tested_here():
    public = {getattr(st_contrastive, name) for name in st_contrastive.__all__ if name.endswith("Loss")}
    assert public == set(CLASSES), "tests/cases.py needs a case of each public loss"


@a_case_of_each_loss
def test_config_round_trips(build, name):
    loss_class, options, _, _ = CASES[name]
    config = build_loss(name, model := build()).get_config_dict()
    assert json.loads(json.dumps(config)) == config
    assert options.items() <= config.items()
    assert config.keys() == inspect.signature(loss_class).parameters.keys() - {"model"}
    assert loss_class(model, **config).get_config_dict() == config


@a_case_of_each_loss
def test_terms_gradients_and_their_sum(build, sentences, name):
    model = build(dropout=False)
    loss = build_loss(name, model)
    switch_off_dropout(loss)
    terms = loss(columns(model, sentences, name), torch.zeros(len(sentences)))
    assert list(terms) == CASES[name][3]
    assert all(term.ndim == 0 and math.isfinite(term.item()) for term in terms.values())
    assert terms.total.item() == pytest.approx(sum(term.item() for term in terms.values()))
    terms.backward()
    # The model's own pooler; positions behind the longest row; a bias that cancels in the difference of eq. 8.
    unused, reached = ["pooler", "position_embeddings", "classifier.bias"], 0
    unused += ["word_embeddings"] if name.startswith("twins") else []  # which it freezes
    for key, parameter in loss.named_parameters():
        if parameter.requires_grad and not any(part in key for part in unused):
            assert parameter.grad is not None, key
            assert parameter.grad.abs().sum() > 0, key
            reached += 1
    assert reached > 20


@a_case_of_each_loss
def test_evaluation_changes_nothing_and_training_does(build, sentences, name):
    model = build()
    loss = build_loss(name, model).train()
    fresh = {key: value.clone() for key, value in loss.state_dict().items()}
    loss(columns(model, sentences, name))
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    remembers = any("queue" in key or "running" in key for key in before)
    changed = any(not torch.equal(fresh[key], value) for key, value in before.items() if key in fresh)
    assert changed == remembers
    # In the trainer's evaluation only the encoder changes its mode. The loss stays in training mode.
    model.eval()
    drawn = torch.get_rng_state()
    with torch.no_grad():
        values = [float(loss(columns(model, sentences[:4], name)).total) for _ in range(2)]
    assert values[0] == values[1]
    assert torch.equal(torch.get_rng_state(), drawn)
    with pytest.warns(UserWarning, match="evaluation mode"):
        loss(columns(model, sentences[:4], name))  # with gradients, but not training
    model.train()
    with torch.no_grad():
        loss(columns(model, sentences[:4], name))  # training, but without gradients
    assert set(loss.state_dict()) == set(before)
    assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())


ODD = {"identical": ["rain falls"] * 4, "empty": ["", "", ""], "one token": ["a", "b", "c"],
       "long": ["rain " * 600, "cat", ""], "one": ["rain falls"]}  # fmt: skip


@a_case_of_each_loss
def test_odd_batches_are_finite(build, sentences, name):
    for odd, texts in ODD.items():
        model = build()
        loss = build_loss(name, model)
        loss(columns(model, sentences, name))  # a batch of one is an epoch's last
        norms = {key: value.clone() for key, value in loss.state_dict().items() if "running" in key}
        terms = loss(columns(model, texts, name))
        terms.backward()
        assert list(terms) == CASES[name][3]
        assert all(math.isfinite(term.item()) for term in terms.values()), odd
        assert all(p.grad is None or p.grad.isfinite().all() for p in loss.parameters()), odd
        assert all(value.isfinite().all() for value in loss.state_dict().values() if value.is_floating_point()), odd
        if odd == "one":
            assert all(torch.equal(loss.state_dict()[key], value) for key, value in norms.items())


@a_case_of_each_loss
def test_modules_behind_the_encoder_prompts_and_dimensions(checkpoint, sentences, name):
    transformer = Transformer(str(checkpoint("bert")))
    pooling = Pooling(32, "mean", include_prompt=False)
    model = SentenceTransformer(modules=[transformer, pooling, Dense(32, 24), Normalize()], device="cpu").train()
    model.truncate_dim = 16
    terms = build_loss(name, model)(columns(model, sentences, name, prompt="the red "))
    terms.backward()
    assert all(term.isfinite() for term in terms.values())
    assert transformer.model.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0


@a_case_of_each_loss
def test_left_padding_and_right_padding_give_the_same(build, sentences, name):
    model = build(dropout=False)
    loss = build_loss(name, model)
    switch_off_dropout(loss)
    loss(columns(model, sentences, name))  # something in the queue, the same for both
    state, values = {key: value.clone() for key, value in loss.state_dict().items()}, []
    for side in ("right", "left"):
        loss.load_state_dict(state)
        model.tokenizer.padding_side = side
        batch = columns(model, sentences, name)
        assert (batch[0]["attention_mask"][:, 0] == 0).any() == (side == "left")
        torch.manual_seed(2)
        values.append({key: term.item() for key, term in loss(batch).items()})
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@each_loss
def test_weights_in_half_precision(build, sentences, name):
    model = build().bfloat16()
    terms = build_loss(name, model)(columns(model, sentences, name))
    terms.backward()
    assert all(term.isfinite() for term in terms.values())
    with pytest.raises(ValueError, match="model has float16 weights"):
        build_loss(name, build().half())


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
@each_loss
def test_owned_parameters_have_the_encoders_dtype(build, sentences, name, default):
    """Heads, classifiers, networks and queues."""
    for dtype in (torch.float32, torch.float64):
        model = build("bert-mlm").to(dtype)
        torch.set_default_dtype(default)
        try:
            loss = build_loss(name, model)
            loss(columns(model, sentences, name)).backward()
        finally:
            torch.set_default_dtype(torch.float32)
        tensors = {**dict(loss.named_parameters()), **dict(loss.named_buffers())}
        assert {key for key, tensor in tensors.items() if tensor.is_floating_point() and tensor.dtype != dtype} == set()


@pytest.mark.long
@each_loss
def test_data_parallel_and_compiled(build, sentences, name):
    """The Trainer leaves its wrapper in the loss."""
    model = build(dropout=False)
    loss = build_loss(name, model)
    switch_off_dropout(loss)
    batch = columns(model, sentences, name)

    def terms(wrapped):
        loss.model = wrapped
        torch.manual_seed(4)
        with torch.no_grad():
            return loss([dict(column) for column in batch])

    expected = terms(model)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(dict(batch[0]))  # Dynamo puts no guard on hooks that are not there yet
    for wrapped in (compiled, *([torch.nn.DataParallel(model)] if name != "pretraining" else [])):
        torch.testing.assert_close(terms(wrapped), expected, rtol=1e-4, atol=1e-6)


@a_case_of_each_loss
def test_gradient_checkpointing_and_the_users_hooks(build, sentences, name):
    values = []
    for checkpointing in (False, True):
        model = build(dropout=False)
        if checkpointing:
            encoder = model[0].model  # transformers is renaming it
            getattr(encoder, "activation_checkpointing_enable", encoder.gradient_checkpointing_enable)()
        calls = []
        model[0].model.encoder.layer[0].output.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(1)
        loss = build_loss(name, model)
        switch_off_dropout(loss)
        loss.group_by_length = False
        assert not calls  # no constructor runs the model
        torch.manual_seed(2)
        total = loss(columns(model, sentences, name)).total
        # All views in one pass, but for ConIsI's pairs and SimCSE's masked copy; no pass of a copy calls the hook.
        assert len(calls) == (2 if name.startswith(("conisi", "simcse-mlm")) else 1)
        total.backward()
        values.append((total.item(), model[0].model.encoder.layer[0].attention.self.query.weight.grad))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-5)
    assert values[0][1].abs().sum() > 0
    torch.testing.assert_close(values[0][1], values[1][1], rtol=1e-4, atol=1e-6)


@each_loss
def test_matryoshka_loss_only_accepts_simcse_without_a_head(build, sentences, name):
    model = build()
    batch = columns(model, sentences, name)
    if name == "simcse":
        inner = SimCSELoss(model, head=None)
        assert isinstance(MatryoshkaLoss(model, inner, matryoshka_dims=[32, 16])(batch, None), torch.Tensor)
        with pytest.raises(ValueError, match=r"AdaptiveLayerLoss and .* can.t wrap"):
            AdaptiveLayerLoss(model, inner)(columns(model, sentences, name), None)
        mini = SimCSELoss(model, head=None, mini_batch_size=2)
        with pytest.raises(ValueError, match=r"MatryoshkaLoss around SimCSELoss\(model, head=None\)"):
            MatryoshkaLoss(model, mini, matryoshka_dims=[32, 16])(columns(model, sentences, name), None)
    with pytest.raises(ValueError, match=r"MatryoshkaLoss around SimCSELoss\(model, head=None\)"):
        MatryoshkaLoss(model, build_loss(name, model), matryoshka_dims=[32, 16])(batch, None)
    with pytest.raises(ValueError, match=r"MatryoshkaLoss around SimCSELoss\(model, head=None\)"):
        AdaptiveLayerLoss(model, build_loss(name, model))(columns(model, sentences, name), None)


def test_poor_poolings_and_missing_dropout_give_warnings(build):
    with pytest.warns(UserWarning, match="model is a causal model with first-token pooling"):
        SimCSELoss(build("qwen"))
    with pytest.warns(UserWarning, match=r"train_pooling='cls'.*train_pooling='lasttoken' or 'mean'"):
        TwinsLoss(build("qwen", "lasttoken"), train_pooling="cls")
    for loss_class in (SimCSELoss, TwinsLoss, InfoCSELoss):
        with pytest.warns(UserWarning, match=f"{loss_class.__name__} takes the encoder's dropout"):
            loss_class(build(dropout=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_training(build())
        warn_of_training(build("qwen", "lasttoken"))
