"""ESimCSE and MoCo against a loop, and the identities that they keep."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from datasets import DatasetDict
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from st_contrastive import MomentumContrastLoss, SimCSELoss, TwinsAblation, TwinsLoss, text_dataset
from st_contrastive.components import KeyQueue, MomentumEncoder
from tests.filters import TRAINING

pytestmark = [*TRAINING, pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only")]


def vectors(model, texts):
    return model(dict(model.preprocess(texts)))["sentence_embedding"]


def loop(anchors, positives, negatives, temperature):
    """Mean of the cross-entropies, row by row."""
    total = 0.0
    for row, anchor in enumerate(anchors):
        logits = [torch.cosine_similarity(anchor, key, dim=0) / temperature for key in (*positives, *negatives)]
        total = total + torch.logsumexp(torch.stack(logits), dim=0) - logits[row]
    return total / len(anchors)


@pytest.mark.parametrize("positives", ["encoder", "momentum"])
def test_three_steps_against_the_loop(build, sentences, positives):
    model = build(dropout=False).double()
    loss = MomentumContrastLoss(
        model, queue_size=5, momentum=0.6, temperature=0.08, positives=positives, head=False
    ).double()
    slow = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    past = []
    for start in (0, 3, 6):
        texts = sentences[start : start + 3]
        with torch.no_grad():
            for own, live in zip(slow.parameters(), model.parameters(), strict=True):
                own.copy_(0.6 * own + 0.4 * live)
            keys = vectors(slow, texts)
        found = vectors(model, texts)
        expected = loop(found, keys if positives == "momentum" else found, past[-5:], 0.08)
        value = loss([model.preprocess(texts)]).total
        assert value.item() == pytest.approx(expected.item(), rel=1e-9)
        parameters = [p for p in model.parameters() if p.requires_grad]
        theirs = torch.autograd.grad(expected, parameters, allow_unused=True)
        optimizer.zero_grad()
        value.backward()
        compared = 0
        for parameter, gradient in zip(parameters, theirs, strict=True):
            if gradient is not None and gradient.abs().max() > 1e-9:
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-9)
                compared += 1
        assert compared > 20
        optimizer.step()
        past += list(keys)
    assert len(loss.queue) == 5
    torch.testing.assert_close(loss.queue.entries()[0][loss.queue.count % 5], past[-5])


def test_without_a_queue_it_is_simcse(build, sentences):
    model = build()
    momentum, simcse = MomentumContrastLoss(model, queue_size=0), SimCSELoss(model)
    simcse.head.load_state_dict(momentum.head.state_dict())
    values = []
    for loss in (momentum, simcse):
        torch.manual_seed(3)
        values.append(loss([model.preprocess(sentences)]).total.item())
    assert values[0] == values[1]


def test_the_queue_is_first_in_first_out():
    queue = KeyQueue(1, 4)
    assert queue.entries()[1].tolist() == [0, 0, 0, 0]
    queue.push(torch.tensor([[1.0], [2.0], [3.0]]))
    assert (len(queue), queue.entries()[1].tolist()) == (3, [1, 1, 1, 0])
    queue.push(torch.tensor([[4.0], [5.0]]))
    assert sorted(queue.entries()[0].flatten().tolist()) == [2, 3, 4, 5]
    queue.push(torch.arange(10.0, 16)[:, None])  # more than it holds
    assert sorted(queue.entries()[0].flatten().tolist()) == [12, 13, 14, 15]
    queue.push(torch.tensor([[16.0]]))
    assert sorted(queue.entries()[0].flatten().tolist()) == [13, 14, 15, 16]
    with pytest.raises(ValueError, match=r"keys must have shape \(rows, 1\)"):
        queue.push(torch.zeros(2, 3))


def test_empty_places_take_no_part(build, sentences):
    model = build(dropout=False)
    values = [
        MomentumContrastLoss(model, queue_size=size, head=False)([model.preprocess(sentences)]).total.item()
        for size in (0, 1000)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_the_copy_follows_slowly_and_never_trains(build, sentences):
    model = build()
    loss = MomentumContrastLoss(model, momentum=0.9)
    weight = model[0].model.encoder.layer[0].attention.self.query.weight
    own = loss.momentum_encoder.copies[0].model.encoder.layer[0].attention.self.query.weight
    assert torch.equal(weight, own)
    assert weight.data_ptr() != own.data_ptr()
    start = own.clone()
    weight.data += 1
    batch = model.preprocess(sentences)
    loss([batch]).backward()
    torch.testing.assert_close(own, start + 0.1)
    model.eval()  # evaluation leaves it where it is
    with pytest.warns(UserWarning, match="evaluation mode"):
        loss([batch])
    with torch.no_grad():
        model.train()
        loss([batch])
    torch.testing.assert_close(own, start + 0.1)
    assert not any(p.requires_grad or p.grad is not None for p in loss.momentum_encoder.parameters())
    loss.train()
    assert not any(module.training for module in loss.momentum_encoder.modules())


def test_in_a_loop_of_ones_own_too_one_step_for_each_of_the_optimizers(build, sentences):
    """Without accelerate, which would know of accumulation."""
    model = build()
    loss = MomentumContrastLoss(model, momentum=0.5, queue_size=4)
    own = loss.momentum_encoder.copies[0].model.encoder.layer[0].attention.self.query.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    batch, copies = model.preprocess(sentences), []
    for number in range(8):
        loss([batch]).backward()
        copies.append(own.clone())
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    changed = [not torch.equal(before, after) for before, after in itertools.pairwise(copies)]
    assert changed == [False, False, False, True, False, False, False]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_copy_follows_where_another_loss_takes_turns(build, sentences, tmp_path, accumulated):
    """The optimizer's step may end on a batch of the other loss."""
    model = build()
    losses = {"a": MomentumContrastLoss(model, momentum=0.5, queue_size=4), "b": SimCSELoss(model)}
    data = DatasetDict({name: text_dataset(sentences * 4) for name in losses})
    own = losses["a"].momentum_encoder.copies[0].model.encoder.layer[0].attention.self.query.weight
    start = own.clone()
    args = SentenceTransformerTrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulated,
        learning_rate=0.1,
        max_steps=4,
        multi_dataset_batch_sampler="round_robin",
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    SentenceTransformerTrainer(model, args, data, loss=losses).train()
    assert (own - start).abs().max() > 0.01


def test_an_adapter_that_is_added_later_is_refused(build, sentences):
    peft = pytest.importorskip("peft")
    model = build()
    loss = MomentumContrastLoss(model)
    model[0].model = peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["query"]), model[0].model)
    with pytest.raises(ValueError, match=r"those that were copied: '0\.model\..* Build the loss after"):
        loss([model.preprocess(sentences)])


def test_under_gradient_accumulation_one_step_for_each_of_the_optimizers(build, sentences, tmp_path):
    model = build()
    loss = MomentumContrastLoss(model, momentum=0.5, queue_size=4)
    own = loss.momentum_encoder.copies[0].model.encoder.layer[0].attention.self.query.weight
    weight = model[0].model.encoder.layer[0].attention.self.query.weight
    seen = []  # at each micro-batch: the trained weight, and the copy after its step
    update = loss.momentum_encoder.update

    def recorded(followed):
        update(followed)
        seen.append((weight.detach().clone(), own.clone()))

    loss.momentum_encoder.update = recorded
    args = SentenceTransformerTrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=0.1,
        max_steps=3,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    SentenceTransformerTrainer(model, args, text_dataset(sentences * 2), loss=loss).train()
    assert len(seen) == 6
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])
    slow = seen[0][1]
    for live, copied in seen[2::2]:
        assert not torch.equal(live, slow)
        slow = (slow + live) / 2
        torch.testing.assert_close(copied, slow)


def test_the_other_form_is_the_positive_and_the_sentence_the_key(build, sentences):
    model = build(dropout=False)
    loss = MomentumContrastLoss(model, head=False)
    other = [f"{sentence} rain" for sentence in sentences]
    columns = [model.preprocess(sentences), model.preprocess(other)]
    value = loss(columns).total
    expected = loop(vectors(model, sentences), vectors(model, other), [], 0.05)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(loss.queue.keys[:10], vectors(model, sentences).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:TwinsLoss was given one column")
def test_twins_keys_of_a_momentum_encoder(build, sentences):
    """The queue holds what the slow copy makes of the batch, under the loss's pooling; else it holds the anchors."""
    model = build(pooling="mean", dropout=False)
    options = {"queue_batches": 1, "forgetting_rate": 0.0, "train_pooling": "cls"}
    loss = TwinsLoss(model, **options, ablation=TwinsAblation(key_momentum=0.5))
    slow = copy.deepcopy(model)
    model[0].model.embeddings.word_embeddings.weight.data *= 3
    for own, live in zip(slow.parameters(), model.parameters(), strict=True):
        own.data.copy_(0.5 * own + 0.5 * live)
    loss([model.preprocess(sentences)])
    with torch.no_grad():
        expected = slow(dict(model.preprocess(sentences)))["token_embeddings"][:, 0]
    torch.testing.assert_close(loss.queue.keys[0], expected, rtol=1e-4, atol=1e-5)
    plain = TwinsLoss(model, **options)
    plain([model.preprocess(sentences)])
    assert not torch.allclose(plain.queue.keys[0], expected, atol=1e-2)
    with pytest.raises(ValueError, match="key_momentum makes the queue's keys"):
        TwinsLoss(model, queue_batches=0, ablation=TwinsAblation(key_momentum=0.5))


def test_bad_arguments(build):
    for options, message in (
        ({"momentum": 1.0}, "momentum must be a number of at least 0 and below 1"),
        ({"momentum": True}, "momentum"),
        ({"queue_size": -1}, "queue_size"),
        ({"queue_size": 1.5}, "queue_size"),
        ({"positives": "mine"}, "positives"),
        ({"head": 1}, "head"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            MomentumContrastLoss(build(), **options)
    quantised = torch.nn.Linear(2, 2)
    quantised.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match="quantised"):
        MomentumEncoder([quantised], 0.5)
    assert math.isfinite(MomentumContrastLoss(build()).temperature)


@pytest.mark.parametrize("positives", ["encoder", "momentum"])
def test_keys_pass_through_a_slow_copy_of_the_head(build, sentences, positives):
    model = build(dropout=False).double()
    loss = MomentumContrastLoss(model, momentum=0.5, queue_size=10, positives=positives).double()
    slow, head = copy.deepcopy(model).eval(), copy.deepcopy(loss.head)
    with torch.no_grad():
        loss.head.linear.weight += 1
        for own, live in zip(head.parameters(), loss.head.parameters(), strict=True):
            own.lerp_(live, 0.5)
        keys = head(vectors(slow, sentences))
    value = loss([model.preprocess(sentences)]).total
    anchors = loss.head(vectors(model, sentences))
    expected = loop(anchors, keys if positives == "momentum" else anchors, [], 0.05)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    torch.testing.assert_close(loss.queue.keys, keys)


def test_the_positive_is_the_momentum_encoders_vector_of_the_second_column(build, sentences):
    model = build(dropout=False)
    loss = MomentumContrastLoss(model, head=False, positives="momentum", queue_size=10, momentum=0.999)
    slow = copy.deepcopy(model).eval()
    with torch.no_grad():
        for own, live in zip(slow.parameters(), model.parameters(), strict=True):
            live += 0.05 * torch.randn_like(live)
            own.lerp_(live, 0.001)
    other = [f"{sentence} rain" for sentence in sentences]
    value = loss([model.preprocess(sentences), model.preprocess(other)]).total
    expected = loop(vectors(model, sentences), vectors(slow, other), [], 0.05)
    assert expected.item() != pytest.approx(loop(vectors(model, sentences), vectors(model, other), [], 0.05).item())
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_momentum_encoder_copies_buffers():
    followed = torch.nn.BatchNorm1d(4)
    keys = MomentumEncoder([followed], momentum=0.9)
    followed(torch.randn(8, 4))
    keys.update([followed])
    assert followed.running_mean.abs().sum() > 0
    for own, live in zip(keys.copies[0].buffers(), followed.buffers(), strict=True):
        assert torch.equal(own, live)


def test_the_momentum_encoder_of_half_precision_is_float32():
    """In bfloat16, a share of 0.001 would be rounded away."""
    followed = torch.nn.Linear(2, 2, bias=False).bfloat16()
    with torch.no_grad():
        followed.weight.fill_(1)
        keys = MomentumEncoder([followed], momentum=0.999)
        followed.weight.fill_(2)
        optimizer = torch.optim.SGD(followed.parameters())  # which has no gradient, and so changes nothing
        for _ in range(10):
            optimizer.step()
            keys.update([followed])
    own = keys.copies[0].weight
    assert own.dtype == torch.float32
    torch.testing.assert_close(own, torch.full((2, 2), 2 - 0.999**10))
