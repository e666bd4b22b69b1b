"""Steps of every loss: precisions, kinds of attention, compiled encoders, mini-batches, accumulation, waits, memory."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from transformers.utils import is_flash_attn_2_available

from st_contrastive.components import ReplacedTokenDetector
from st_contrastive.encoder import passes
from tests.conftest import switch_off_dropout
from tests.contracts import test_devices
from tests.contracts.test_devices import FRATERNAL, IN_MINI_BATCHES, WAITS, scored
from tests.gpu.cases import CUDA, RUNS, CPURandomNumbers, chosen, loss_on, memory_in_use, watching_cuda
from tests.pretend_device import DEVICE as PRETENDED
from tests.pretend_device import PretendTensor, pretend_device

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only"),
]
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
OWN_STATE = ["simcse", "twins", "twins-momentum", "momentum", "infocse-rtd", "combined", "pretraining", FRATERNAL]


def gradients_of(loss):
    return {name: p.grad.detach().cpu().clone() for name, p in loss.named_parameters() if p.grad is not None}


def gradients_on(device, name, model, german, sentences):
    """Terms and gradients of two steps in float64, without dropout, and the state after them."""
    torch.manual_seed(3)
    loss, columns, labels = loss_on(device, name, model, german, sentences, torch.float64)
    switch_off_dropout(loss)
    found = {}
    with CPURandomNumbers():
        for step in range(2):  # so that a queue is in use
            loss.zero_grad()
            torch.manual_seed(step)
            terms = loss([dict(column) for column in columns], labels)
            terms.total.backward()
            found |= {f"{step} {key}": value.detach().cpu() for key, value in terms.items()}
    found |= {f"gradient of {key}": value for key, value in gradients_of(loss).items()}
    return found | {f"state {key}": value.cpu() for key, value in loss.state_dict().items()}


@pytest.mark.parametrize("name", chosen(RUNS, "twins"))
def test_terms_gradients_and_state_are_the_cpus(build, german, sentences, device, name):
    model = build("bert-mlm", dropout=False)
    other = copy.deepcopy(model)
    expected = gradients_on(torch.device("cpu"), name, model, german, sentences)
    found = gradients_on(device, name, other, german, sentences)
    assert set(found) == set(expected)
    assert any(value.abs().sum() > 0 for key, value in expected.items() if key.startswith("gradient"))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9, msg=lambda m, at=key: f"{at}: {m}")


def test_a_gpus_random_numbers_are_drawn_on_the_cpu():
    def drawn(device):
        torch.manual_seed(0)
        weights = torch.ones(5, device=device)
        return [
            torch.rand(4, device=device),
            torch.randint(9, (4,), device=device),
            torch.zeros(4, device=device).uniform_(),
            weights.bernoulli(0.5),
            weights.multinomial(3),
        ]

    expected = drawn("cpu")
    with pretend_device(), CPURandomNumbers():
        found = drawn(PRETENDED)
        assert all(isinstance(value, PretendTensor) for value in found)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("precision", chosen(PRECISIONS, "fp16"))
@pytest.mark.parametrize("name", chosen(RUNS, "twins"))
def test_a_loss_trains_in_every_precision(build, german, sentences, device, name, precision):
    """As in float32 but for rounding, and after a few steps all that is trained has changed and is finite."""
    model = build("bert-mlm", dropout=False)
    loss, columns, labels = loss_on(device, name, model, german, sentences)
    switch_off_dropout(loss)
    dtype = PRECISIONS[precision]
    before = {key: value.clone() for key, value in loss.state_dict().items()}

    def terms_of(kind):
        loss.load_state_dict(before)
        torch.manual_seed(3)
        with torch.autocast(device.type, dtype=kind, enabled=kind is not None):
            return loss([dict(column) for column in columns], labels)

    expected, found = ({key: term.item() for key, term in terms_of(kind).items()} for kind in (None, dtype))
    assert found == pytest.approx(expected, rel=0.1, abs=0.05)
    loss.load_state_dict(before)
    trained = {key: p for key, p in loss.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=precision == "fp16")
    for _ in range(4):
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            terms = loss([dict(column) for column in columns], labels)
        assert all(term.dtype == torch.float32 and term.ndim == 0 for term in terms.values())
        scaler.scale(terms.total).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert all(math.isfinite(term.item()) for term in terms.values())
    unused = ("pooler", "position_embeddings")  # the model's own pooler; positions behind the longest row
    for key, parameter in trained.items():
        assert parameter.device.type == device.type, key
        assert bool(parameter.isfinite().all()), key
        if not any(part in key for part in unused):
            assert not torch.equal(parameter, before[key]), key


@pytest.mark.parametrize("name", chosen(RUNS, "simcse"))
@pytest.mark.parametrize("attention", ["eager", "flash_attention_2"] if CUDA else ["eager"])
def test_attention_gives_what_sdpa_gives(build, german, sentences, device, name, attention):
    flash = attention == "flash_attention_2"
    if flash and not is_flash_attn_2_available():
        pytest.skip("flash-attn is not installed")
    model = build("bert-mlm", dropout=False)
    found = []
    for kind in ("sdpa", attention):
        own = copy.deepcopy(model)
        own.transformers_model.set_attn_implementation(kind)
        assert own.transformers_model.config._attn_implementation == kind
        torch.manual_seed(3)
        loss, columns, labels = loss_on(device, name, own, german, sentences)
        switch_off_dropout(loss)
        torch.manual_seed(3)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=flash):
            terms = loss(columns, labels)
        terms.total.backward()
        assert all(bool(gradient.isfinite().all()) for gradient in gradients_of(loss).values())
        found.append({key: term.item() for key, term in terms.items()})
    assert found[1] == pytest.approx(found[0], **({"rel": 0.1, "abs": 0.05} if flash else {"rel": 1e-3, "abs": 1e-4}))


@pytest.mark.parametrize("name", chosen(RUNS, "simcse-no-head"))
@pytest.mark.parametrize("inner", [False, True] if CUDA else [True])
def test_a_compiled_encoder_gives_the_same(build, german, sentences, device, name, inner):
    """Compiled as the Trainer does it, around the model, and as a user may, in place."""
    torch._dynamo.reset()
    backend = "inductor" if CUDA else "eager"
    model = build("bert-mlm", dropout=False)
    found = []
    for compiled in (False, True):
        own = copy.deepcopy(model)
        torch.manual_seed(3)
        loss, columns, labels = loss_on(device, name, own, german, sentences)
        switch_off_dropout(loss)
        if compiled and inner:
            own.transformers_model.compile(backend=backend)
        elif compiled:
            loss.model = torch.compile(own, backend=backend)
        torch.manual_seed(3)
        terms = loss(columns, labels)
        terms.total.backward()
        gradients = {key.replace("_orig_mod.", ""): value for key, value in gradients_of(loss).items()}
        found.append(({key: term.item() for key, term in terms.items()}, gradients))
    (plain, expected), (values, gradients) = found
    assert values == pytest.approx(plain, rel=1e-3, abs=1e-4)
    assert set(gradients) == set(expected)
    for key, value in expected.items():
        assert (gradients[key] - value).norm() <= 1e-2 * value.norm() + 1e-5, key


@pytest.mark.parametrize("precision", chosen(PRECISIONS, "bf16"))
@pytest.mark.parametrize("name", chosen(IN_MINI_BATCHES, "simcse-mini"))
def test_a_pass_is_made_again_with_the_same_dropout(build, german, sentences, device, name, precision, monkeypatch):
    """The gradient is that of the same mini-batches whose passes are held: the device's random state was put back."""
    monkeypatch.setattr(ReplacedTokenDetector, "replace", _next_token)  # a near tie would depend on rounding
    model = build("bert-mlm")
    dtype = PRECISIONS[precision]
    found = []
    for held in (False, True):
        torch.manual_seed(3)
        loss, columns, labels = loss_on(device, name, copy.deepcopy(model), german, sentences)
        with monkeypatch.context() as patch:
            if held:
                patch.setattr(passes, "_recomputed", lambda function, *parts: function(*parts))
            torch.manual_seed(7)
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                terms = loss(columns, labels)
            (1024 * terms.total).backward()
        found.append(gradients_of(loss))
    again, expected = found
    assert set(again) == set(expected)
    whole = math.sqrt(sum(float(value.norm()) ** 2 for value in expected.values()))
    assert whole > 0
    for key, value in expected.items():
        assert (again[key] - value).norm() <= 1e-3 * value.norm() + 1e-5 * whole, key


def _next_token(self, features, masked):
    ids = features["input_ids"]
    return torch.where(masked.chosen, ids - 1, ids)


@pytest.mark.parametrize("name", chosen(RUNS, "twins"))
def test_accumulated_gradients_are_the_sum_of_the_steps(build, german, sentences, device, name):
    """Under a gradient scaler, whose factor must reach the loss's own parameters too."""
    model = build("bert-mlm", dropout=False)

    def run(factor, *, together):
        torch.manual_seed(3)
        loss, columns, labels = loss_on(device, name, copy.deepcopy(model), german, sentences)
        switch_off_dropout(loss)
        scaler = torch.amp.GradScaler(device.type, init_scale=factor)
        found = []
        for step in range(2):
            torch.manual_seed(step)
            scaler.scale(loss([dict(column) for column in columns], labels).total).backward()
            if not together or step == 1:
                found.append({key: value / factor for key, value in gradients_of(loss).items()})
                loss.zero_grad()
        return found

    (accumulated,) = run(2.0**10, together=True)
    first, second = run(1.0, together=False)
    assert any(value.norm() > 0 for value in accumulated.values())
    for key, value in accumulated.items():
        parts = [part[key] for part in (first, second) if key in part]
        assert (value - sum(parts)).norm() <= 1e-3 * sum(part.norm() for part in parts) + 1e-6, key


@pytest.mark.skipif(not CUDA, reason="a CPU has nothing to wait for; tests/contracts/test_devices.py counts elsewhere")
@pytest.mark.parametrize("name", chosen(RUNS, "twins"))
def test_a_step_waits_where_it_is_documented(build, german, sentences, device, name, monkeypatch):
    """The second step, with clipping and AdamW: the waits of docs/synchronisations.md and of no other place."""
    monkeypatch.setattr(test_devices, "watching", watching_cuda)
    _, waits = test_devices.trained(name, build("bert-mlm"), german, sentences, device)
    places = {wait.place for wait in waits}
    assert {place for place in places if not place.startswith(test_devices.LIBRARIES)} <= set(WAITS)
    assert places, "torch reports no wait at all, not even those in transformers"


def test_a_wait_is_named_by_its_place(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with watching_cuda() as waits:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [wait.place for wait in waits] == [f"{__name__}.test_a_wait_is_named_by_its_place"]
    assert modes == ["warn", "default"]


@pytest.mark.parametrize("name", chosen([*OWN_STATE, "infocse-rtd-mini"], "twins"))
def test_memory_does_not_grow(build, german, sentences, device, name):
    loss, columns, labels = loss_on(device, name, build("bert-mlm"), german, sentences)
    # Batches of three shapes, all with one row for each label.
    batches = [[cut(column, width) for column in columns] for width in (99, 9, 6)]
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=1e-4)
    first, last = (50, 200) if CUDA else (3, 6)  # multiples of the same number of batches apart
    used = {}
    for step in range(1, last + 1):
        terms = loss([dict(column) for column in batches[step % 3]], labels)
        terms.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        del terms
        if step in (first, last):
            used[step] = memory_in_use(device)
    assert 0 < used[last] <= used[first]


def cut(column, width):
    return {
        key: value[:, :width].contiguous() if isinstance(value, torch.Tensor) and value.ndim == 2 else value
        for key, value in column.items()
    }


def test_evaluators_give_the_cpus_scores(build, sentences, device):
    model = build().eval()
    expected, found = scored(model, sentences), scored(copy.deepcopy(model).to(device), sentences)
    assert found.pop("retrieval") == expected.pop("retrieval")
    for key, values in expected.items():
        torch.testing.assert_close(torch.tensor(found[key]), torch.tensor(values), rtol=1e-3, atol=1e-3)
