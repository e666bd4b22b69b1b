"""Every loss makes its tensors on the device of its model.

A tensor that is created without a device is created on the meta device, and can't be combined with what the model
has on the CPU. tests/gpu runs the losses on a GPU.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from st_contrastive import FraternalEmbedding, TwinsLoss
from st_contrastive.losses import Step
from tests import foreign
from tests.cases import CASES, ONE_OF_EACH, build_loss, columns, crossed


def step(loss, batch, labels):
    optimizer = torch.optim.SGD([p for p in loss.parameters() if p.requires_grad], lr=0.1)
    with torch.device("meta"):
        for _ in range(2):  # the second meets the queue of the first
            terms = loss([dict(column) for column in batch], labels)
            terms.backward()
            optimizer.step()
        loss.model.eval()
        with torch.no_grad():
            loss([dict(column) for column in batch], labels)
    tensors = [*terms.values(), *loss.state_dict().values(), *(p.grad for p in loss.parameters() if p.grad is not None)]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert terms.total.isfinite()


@pytest.mark.parametrize(
    ("name", "mini_batch_size"),
    crossed(CASES, [None, 4], quick=lambda name, size: name in ONE_OF_EACH and size is None),
)
def test_all_tensors_are_on_the_models_device(build, sentences, name, mini_batch_size):
    loss = build_loss(name, build("bert-mlm"))
    loss.mini_batch_size = mini_batch_size
    step(loss, columns(loss.model, sentences, name), torch.zeros(len(sentences)))


def test_translations_are_on_the_models_device(build, german, sentences):
    model = build()
    fraternal = FraternalEmbedding.from_pretrained(german, model)
    labels = torch.tensor(fraternal.encode_labels(foreign.GERMAN))
    step(TwinsLoss(model, fraternal=fraternal), [model.preprocess(sentences)], labels)


def test_a_tensor_elsewhere_is_noticed(build, sentences):
    loss = build_loss("simcse", build())
    contrast = Step.info_nce
    elsewhere = mock.patch.object(Step, "info_nce", lambda *views: contrast(*views) + torch.zeros(1)[0])
    with elsewhere, pytest.raises((RuntimeError, AssertionError)):
        step(loss, columns(loss.model, sentences, "simcse"), None)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_an_evaluation_without_an_accelerator(build, sentences, monkeypatch):
    loss = build_loss("simcse", build().eval())
    with torch.no_grad():  # torch 2.6 raises an error when it is asked which
        expected = float(loss([loss.model.preprocess(sentences)]))
        accelerator = mock.Mock(is_available=lambda: False, device_count=lambda: 0)
        accelerator.current_accelerator.side_effect = RuntimeError("none is available")
        older = mock.Mock(wraps=torch, accelerator=accelerator)  # the newest torch asks its own too
        monkeypatch.setattr("st_contrastive._random.torch", older)
        assert float(loss([loss.model.preprocess(sentences)])) == expected > 0
