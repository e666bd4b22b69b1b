"""Twins: the weights of its terms, the source of its margin, frozen embeddings, and the ends of the fusion rate."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from st_contrastive import FraternalEmbedding, SimCSELoss, TwinsLoss, twins_dataset
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses.step import Step
from st_contrastive.objectives import twins_margin
from st_contrastive.objectives.contrast import pairwise_cos_sim
from tests.cases import info_nce_in_a_loop

#: Longer than the sentence, shorter, and empty.
TRANSLATIONS = ["the small cat sleeps on a warm chair and rain falls", "dogs", "", "a man reads"]


@pytest.fixture
def twins(build, german, sentences):
    """``twins(route, dropout, **options)``: a loss in float64 without a queue, and a batch of it."""

    def make(route="columns", dropout=False, *, queue_batches=0, **options):
        model = build(dropout=dropout)
        english, labels = sentences[:4], None
        columns = [model.preprocess(english), model.preprocess(TRANSLATIONS)]
        if route == "labels":
            options["fraternal"] = FraternalEmbedding.from_pretrained(german, model)
            data = twins_dataset(
                english, ["der see ist kalt und still", "spät", "", "regen"], fraternal=options["fraternal"]
            )
            columns, labels = columns[:1], torch.tensor(data["label"][:])
        return TwinsLoss(model, queue_batches=queue_batches, **options).double(), columns, labels

    return make


def fresh(columns):
    return [dict(column) for column in columns]


def run(loss, columns, labels=None):
    """Terms and gradients, dropout drawn from the same random state each time."""
    loss.zero_grad()
    torch.manual_seed(3)
    terms = loss(fresh(columns), labels)
    terms.backward()
    return terms, {name: p.grad.clone() for name, p in loss.named_parameters() if p.grad is not None}


def vectors(loss, columns, labels=None):
    """[CLS] of the views, each from a separate pass."""
    return loss.encode_views(fresh(columns), labels, pooling="cls")


def test_the_margin_of_tokens_by_hand(build):
    """All tokens have the embedding e1, one has e2: y is e1, and the fused mean (2 + 0.8, 0.2) / 3."""
    model = build(dropout=False)
    matrix = model.transformers_model.get_input_embeddings().weight
    with torch.no_grad():
        matrix.zero_()
        matrix[:, 0] = 1
        matrix[model.tokenizer.convert_tokens_to_ids("river")] = torch.eye(32)[1]
    loss = TwinsLoss(model, queue_batches=0, fusion_rate=0.8, identical_weight=0).double()
    loss([model.preprocess(["cat", "river"]), model.preprocess(["river", "cat"])])  # one sentence is an epoch's last
    # The second translation has a token more than the sentence, at full weight or at its share: (2 + 0.8 + 1, 0.2) / 4
    # or (2 + 0.8 + 0.2, 0.2) / 4.
    for translation, unpaired, along in (
        ("river", "full", 2.8),
        ("river cat", "full", 3.8),
        ("river cat", "weighted", 3),
    ):
        loss.unpaired_tokens = unpaired
        columns = [model.preprocess(["cat"]), model.preprocess([translation])]
        margin = math.e - math.exp(along / math.hypot(along, 0.2))
        h, _, fraternal = (view[0] for view in vectors(loss, columns))
        expected = abs(math.e - math.exp(torch.cosine_similarity(h, fraternal, dim=0).item()) - margin)
        assert loss(fresh(columns))["twins"].item() == pytest.approx(expected, rel=1e-9)


def test_the_margin_under_dropout(twins):
    """The means of the tokens know nothing of it, and both pairs of vectors have the gradient of eq. 8."""
    loss, columns, _ = twins(dropout=True)
    views = loss.encode_twins(*map(TokenBatch.of, columns))
    h, identical, fraternal, x, _, x_fraternal = views
    assert not torch.allclose(h, identical)
    lookup = loss.model.transformers_model.get_input_embeddings().weight
    for row, mean in enumerate(x):
        own = columns[0]["input_ids"][row, columns[0]["attention_mask"][row].bool()]
        torch.testing.assert_close(mean, lookup[own].detach().mean(0))
    pairs = (h, identical), (h, fraternal), (x, x), (x, x_fraternal)
    expected = twins_margin(*(pairwise_cos_sim(*pair) for pair in pairs))
    found = loss.compare_twins(Step(loss.model), views)["twins"]
    gradients = (torch.autograd.grad(each, views[:3], retain_graph=True) for each in (found, expected))
    for one, other in zip(*gradients, strict=True):
        assert other.abs().sum() > 1e-6
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


def test_weights_scale_the_terms_and_their_gradients(twins):
    loss, columns, _ = twins(dropout=True)
    weights = {"identical": 0.5, "fraternal": 2.0, "twins": 3.0}
    alone = {}
    for name in weights:
        for other in weights:  # with dropout the random state must be the same: all views are encoded
            setattr(loss, f"{other}_weight", float(other == name) or 1e-30)
        alone[name] = run(loss, columns)
    for name, weight in weights.items():
        setattr(loss, f"{name}_weight", weight)
    terms, gradients = run(loss, columns)
    assert list(terms) == list(weights)
    for name, weight in weights.items():
        torch.testing.assert_close(terms[name], weight * alone[name][0][name])
    assert len(gradients) > 20
    for name, gradient in gradients.items():
        expected = sum(weight * alone[term][1][name] for term, weight in weights.items())
        torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("route", "zeros", "views", "names"),
    [
        ("columns", (), 3, ["identical", "fraternal", "twins"]),
        ("columns", ("identical",), 3, ["fraternal", "twins"]),
        ("labels", ("fraternal",), 3, ["identical", "twins"]),
        ("columns", ("twins",), 3, ["identical", "fraternal"]),  # Table 4, "w/o TL"
        ("labels", ("identical", "twins"), 2, ["fraternal"]),
        ("columns", ("fraternal", "twins"), 2, ["identical"]),
    ],
)
def test_views_that_no_term_needs_are_not_encoded(twins, recwarn, route, zeros, views, names):
    loss, columns, labels = twins(route)
    whole = loss(fresh(columns), labels)
    other, _, _ = twins(route, queue_batches=2, **{f"{name}_weight": 0 for name in zeros})
    other.group_by_length = False
    passes = []
    other.model.register_forward_pre_hook(lambda _, inputs: passes.append(dict(inputs[0])))
    terms = other(fresh(columns), labels)
    assert [len(batch["attention_mask"]) for batch in passes] == [4 * views]
    assert ("inputs_embeds" in passes[0]) == (names != ["identical"])
    assert list(terms) == names
    for name, term in terms.items():
        torch.testing.assert_close(term, whole[name])
    assert (other.queue is None) == ("identical" in zeros)
    assert not [warning for warning in recwarn if "one column" in str(warning.message)]


def test_one_column_gives_the_ablation_without_translations(twins):
    loss, columns, _ = twins()
    with pytest.warns(UserWarning, match="received one column"):
        alone = loss(fresh(columns[:1]))
    assert list(alone) == ["identical"]
    torch.testing.assert_close(alone["identical"], loss(fresh(columns))["identical"])
    with pytest.raises(ValueError, match=r"takes 2 \(sentences and translations\) .* got 1\. .*identical_weight is 0"):
        twins(identical_weight=0)[0](columns[:1])


# Frozen embeddings.


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_only_this_loss_freezes_the_embeddings(twins, count, mini_batch_size):
    loss, columns, _ = twins(dropout=True, mini_batch_size=mini_batch_size)
    encoder = loss.model.transformers_model
    before = {name: parameter.detach().clone() for name, parameter in encoder.named_parameters()}
    optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-2, weight_decay=0.1)
    loss(fresh(columns[:count])).backward()
    optimizer.step()
    # What eq. 3 feeds the embeddings into is trained: positions and LayerNorm too.
    for name, changed in (("word_embeddings", False), ("position_embeddings", True), ("LayerNorm", True)):
        name = f"embeddings.{name}.weight"
        assert torch.equal(encoder.get_parameter(name), before[name]) != changed, name
    matrix = encoder.get_input_embeddings().weight
    for other in (SimCSELoss(loss.model), TwinsLoss(loss.model, freeze_embeddings=False)):
        matrix.grad = None
        other(fresh(columns[:count])).backward()
        assert matrix.grad.abs().sum() > 0


# Prompts.


@pytest.mark.parametrize(("pooling", "key_momentum", "include_prompt"), [
    ("cls", None, True), ("mean", None, False), ("mean", 0.5, False), ("max", 0.5, True),
])  # fmt: skip
def test_training_ignores_a_prompt_if_the_model_does(build, sentences, pooling, key_momentum, include_prompt):
    """``train_pooling`` of the model's own kind gives what the model's own sentence embeddings give."""
    model = build(pooling=pooling, dropout=False)
    model[1].include_prompt = include_prompt
    columns = [model.preprocess(list(part), prompt="the red ") for part in (sentences, sentences[::-1])]
    assert all("prompt_length" in column for column in columns)
    found = []
    for train_pooling in (pooling, None):
        loss = TwinsLoss(model, train_pooling=train_pooling, queue_batches=1, key_momentum=key_momentum).double()
        loss(fresh(columns))
        found.append(loss(fresh(columns)))
    for name, term in found[0].items():
        torch.testing.assert_close(term, found[1][name], rtol=1e-9, atol=1e-12, msg=name)
    with pytest.raises(ValueError, match="prompts of the sentences and of the translations differ in length"):
        loss([columns[0], model.preprocess(sentences[::-1])])


@pytest.mark.parametrize("margin_from", ["tokens", "embeddings"])
def test_the_margin_ignores_a_prompt_if_the_model_does(build, margin_from):
    model = build(pooling="mean", dropout=False)
    model[1].include_prompt = False
    loss = TwinsLoss(model, train_pooling="mean", queue_batches=0, margin_from=margin_from).double()
    columns = [model.preprocess(list(pair), prompt="the red ") for pair in (("a man reads", "it"), ("rain falls", "a"))]
    length = int(columns[0]["prompt_length"])
    texts = [TokenBatch.of(column) for column in columns]
    views = loss.encode_twins(*texts)
    anchor, fused = loss.fuse_batches(*texts)
    for view, means in ((anchor, views.anchor_input), (fused, views.fraternal_input)):
        embedded = view.token_tensors["inputs_embeds"]
        if margin_from == "embeddings":
            embedded = model.transformers_model(inputs_embeds=embedded, output_hidden_states=True).hidden_states[0]
        for row, mean in enumerate(means):
            torch.testing.assert_close(mean, embedded[row][view.mask[row].bool()][length:].mean(0))


# The queue's keys.


@pytest.mark.parametrize("key_momentum", [None, 0.6])
def test_a_queue_without_forgetting_is_plain_info_nce(build, sentences, key_momentum):
    """Fig. 4c, "MoCo w/ ME": the newest keys of the momentum encoder at weight 1, first in, first out."""
    model = build(dropout=False).double()
    loss = TwinsLoss(model, queue_batches=2, forgetting_rate=0, key_momentum=key_momentum).double()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    slow, past = copy.deepcopy(model).eval(), []
    for start, size in ((0, 3), (3, 2), (5, 1), (6, 4)):  # the fourth batch meets the second and the third
        columns = [model.preprocess(list(part)[start : start + size]) for part in (sentences, sentences[::-1])]
        h, identical, fraternal = vectors(loss, columns)
        with torch.no_grad():
            if key_momentum is not None:
                for own, live in zip(slow.parameters(), model.parameters(), strict=True):
                    own.copy_(key_momentum * own + (1 - key_momentum) * live)
            keys = (model if key_momentum is None else slow)(dict(columns[0]))["token_embeddings"][:, 0]
        kept = [key for batch in past[-2:] for key in batch]
        assert loss.queue.keys_and_weights()[1].tolist() == [1.0] * len(kept)
        expected = info_nce_in_a_loop(h, identical, kept)
        gradients = torch.autograd.grad(expected, model[0].model.encoder.parameters(), retain_graph=True)
        terms = loss(fresh(columns))
        assert terms["identical"].item() == pytest.approx(expected.item(), rel=1e-9)
        # The fraternal twin meets no queue (eq. 7).
        assert terms["fraternal"].item() == pytest.approx(info_nce_in_a_loop(h, fraternal).item(), rel=1e-9, abs=1e-12)
        found = torch.autograd.grad(terms["identical"], model[0].model.encoder.parameters(), retain_graph=True)
        for one, other in zip(found, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
        optimizer.zero_grad()
        terms.backward()
        optimizer.step()
        past.append(keys)
