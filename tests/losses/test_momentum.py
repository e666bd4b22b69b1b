"""ESimCSE and MoCo against a loop, and the identities that they keep."""

from __future__ import annotations

import copy

import peft
import pytest
import torch
from datasets import DatasetDict
from sentence_transformers import SentenceTransformerTrainer

from st_contrastive import MomentumContrastLoss, SimCSELoss, text_dataset
from st_contrastive.components import MomentumEncoder
from tests.cases import arguments_of, info_nce_in_a_loop


def vectors(model, texts):
    return model(dict(model.preprocess(texts)))["sentence_embedding"]


@pytest.mark.parametrize("positives", ["encoder", "momentum"])
@pytest.mark.parametrize("head", [None, "tanh"])
def test_three_steps_against_the_loop(build, sentences, positives, head):
    """Two columns: the second is the positive, the first the key. Keys pass through the head, in MoCo a slow copy."""
    model = build(dropout=False).double()
    loss = MomentumContrastLoss(
        model, queue_size=5, momentum=0.6, temperature=0.08, positives=positives, head=head
    ).double()
    through = loss.head or torch.nn.Identity()
    slow = copy.deepcopy(torch.nn.ModuleList([model, through])).eval()
    live = torch.nn.ModuleList([model, through])
    optimizer = torch.optim.SGD(live.parameters(), lr=0.1)
    past = []
    for start in (0, 3, 6):
        first = sentences[start : start + 3]
        second = [f"{text} rain" for text in first]
        with torch.no_grad():
            for own, weight in zip(slow.parameters(), live.parameters(), strict=True):
                own.copy_(0.6 * own + 0.4 * weight)
            of_keys = slow[1] if positives == "momentum" else through
            keys, others = (of_keys(vectors(slow[0], texts)) for texts in (first, second))
        anchors, twins = (through(vectors(model, texts)) for texts in (first, second))
        if positives == "momentum":
            twins = keys = others
        expected = info_nce_in_a_loop(anchors, twins, past[-5:], 0.08)
        value = loss([model.preprocess(first), model.preprocess(second)]).total
        assert value.item() == pytest.approx(expected.item(), rel=1e-9)
        parameters = [p for p in live.parameters() if p.requires_grad]
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
        past = past + list(keys)
    assert len(loss.queue) == 5
    held = sorted(loss.queue.keys.tolist())
    torch.testing.assert_close(torch.tensor(held), torch.tensor(sorted(torch.stack(past[-5:]).tolist())))


def test_without_a_queue_or_with_an_empty_one_the_loss_is_simcse(build, sentences):
    model = build()
    simcse = SimCSELoss(model)
    losses = [simcse, *(MomentumContrastLoss(model, queue_size=size) for size in (0, 1000))]
    values = []
    for loss in losses:
        loss.head = simcse.head
        torch.manual_seed(3)
        values.append(loss([model.preprocess(sentences)]).item())
    assert values[0] == values[1] == pytest.approx(values[2], rel=1e-6)
    assert values[0] > 0


def test_the_momentum_encoder_is_never_trained(build, sentences):
    loss = MomentumContrastLoss(build())
    loss([loss.model.preprocess(sentences)]).backward()
    assert not any(p.requires_grad or p.grad is not None for p in loss.momentum_encoder.parameters())
    assert not any(module.training for module in loss.train().momentum_encoder.modules())


@pytest.mark.parametrize("fused", [True, False])
def test_the_momentum_encoder_moves_with_the_steps_of_its_own_optimizer(fused):
    """A fused optimizer changes weights without raising their versions."""
    followed, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    keys, moved = MomentumEncoder([followed], momentum=0.5), []
    keys.update([followed])
    for layer in (other, followed):
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=fused)
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        for _ in range(2):
            before = keys.copies[0].weight.clone()
            keys.update([followed])
            moved.append(not torch.equal(before, keys.copies[0].weight))
    assert moved == [False, False, True, False]


def test_with_gradient_accumulation_the_momentum_encoder_moves_once_per_step(build, sentences, tmp_path):
    """Also where another loss takes turns, and the optimizer's step ends on one of its batches."""
    model = build()
    losses = {"a": MomentumContrastLoss(model, momentum=0.5, queue_size=4), "b": SimCSELoss(model)}
    own = losses["a"].momentum_encoder.copies[0].model.encoder.layer[0].attention.self.query.weight
    weight = model[0].model.encoder.layer[0].attention.self.query.weight
    seen, update = [], losses["a"].momentum_encoder.update

    def recorded(*followed):
        update(*followed)
        seen.append((weight.detach().clone(), own.clone()))

    losses["a"].momentum_encoder.update = recorded
    arguments = arguments_of(
        tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=0.1, max_steps=4,
        multi_dataset_batch_sampler="round_robin", save_strategy="no",
    )  # fmt: skip
    data = DatasetDict({name: text_dataset(sentences * 4) for name in losses})
    SentenceTransformerTrainer(model, arguments, data, loss=losses).train()
    assert len(seen) == 4
    slow = seen[0][1]
    for live, copied in seen[1:]:
        assert not torch.equal(live, slow)
        slow = (slow + live) / 2
        torch.testing.assert_close(copied, slow)


def test_an_adapter_added_after_the_loss_is_refused(build, sentences):
    model = build()
    loss = MomentumContrastLoss(model)
    model[0].model = peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["query"]), model[0].model)
    with pytest.raises(ValueError, match=r"have changed since they were copied"):
        loss([model.preprocess(sentences)])


def test_the_momentum_encoder_copies_buffers_and_keeps_half_precision_in_float32():
    """In bfloat16, a share of 0.001 would be rounded away."""
    followed = torch.nn.BatchNorm1d(4)
    keys = MomentumEncoder([followed], momentum=0.9)
    followed(torch.randn(8, 4))
    keys.update([followed])
    assert followed.running_mean.abs().sum() > 0
    for own, live in zip(keys.copies[0].buffers(), followed.buffers(), strict=True):
        assert torch.equal(own, live)
    followed = torch.nn.Linear(2, 2, bias=False).bfloat16()
    with torch.no_grad():
        followed.weight.fill_(1)
        keys = MomentumEncoder([followed], momentum=0.999)
        followed.weight.fill_(2)
        for _ in range(10):
            followed.weight.mul_(1)  # a step that changes nothing
            keys.update([followed])
    assert keys.bfloat16().copies[0].weight.dtype == torch.float32
    torch.testing.assert_close(keys.copies[0].weight, torch.full((2, 2), 2 - 0.999**10))
