"""Steps of each loss: values as on the CPU, kinds of attention, compiled encoders, mini-batches, and memory.

The Trainer sets precisions: test_training.py and tests/losses/test_precision.py test them.
"""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from transformers.utils import is_flash_attn_2_available

from st_contrastive.components import ReplacedTokenDetector
from st_contrastive.encoder import passes
from tests.cases import ONE_OF_EACH, switch_off_dropout
from tests.gpu.cases import CUDA, RUNS, CPURandomNumbers, chosen, loss_on

# Some warnings only occur on a GPU.
pytestmark = [pytest.mark.filterwarnings("default")] if CUDA else []


def gradients_of(loss):
    return {name: p.grad.detach().cpu().clone() for name, p in loss.named_parameters() if p.grad is not None}


def gradients_on(device, name, model, german, sentences):
    """Terms and gradients of two steps in float64, without dropout, and the state after them."""
    loss, columns, labels = loss_on(device, name, model, german, sentences)
    loss.double()
    switch_off_dropout(loss)
    found = {}
    with CPURandomNumbers():
        for step in range(2):  # the first step fills the queue
            loss.zero_grad()
            torch.manual_seed(step)
            terms = loss([dict(column) for column in columns], labels)
            terms.total.backward()
            found |= {f"{step} {key}": value.detach().cpu() for key, value in terms.items()}
    found |= {f"gradient of {key}": value for key, value in gradients_of(loss).items()}
    return found | {f"state {key}": value.cpu() for key, value in loss.state_dict().items()}


@pytest.mark.parametrize("name", chosen(RUNS, "twins"))
def test_terms_gradients_and_state_are_those_of_the_cpu(build, german, sentences, device, name):
    model = build("bert-mlm", dropout=False)
    expected = gradients_on(torch.device("cpu"), name, copy.deepcopy(model), german, sentences)
    found = gradients_on(device, name, model, german, sentences)
    assert set(found) == set(expected)
    assert any(value.abs().sum() > 0 for key, value in expected.items() if key.startswith("gradient"))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9, msg=lambda m, at=key: f"{at}: {m}")


@pytest.mark.parametrize("attention", ["eager", "flash_attention_2"])
@pytest.mark.parametrize("name", chosen(RUNS, "twins"))
def test_kinds_of_attention_agree(build, german, sentences, device, name, attention):
    flash = attention == "flash_attention_2"
    if flash and not is_flash_attn_2_available():
        pytest.skip("flash-attn is not installed")
    model, found = build("bert-mlm", dropout=False), []
    for kind in ("sdpa", attention):
        copied = copy.deepcopy(model)
        copied.transformers_model.set_attn_implementation(kind)
        loss, columns, labels = loss_on(device, name, copied, german, sentences)
        switch_off_dropout(loss)
        torch.manual_seed(3)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=flash):
            terms = loss(columns, labels)
        terms.total.backward()
        assert all(bool(gradient.isfinite().all()) for gradient in gradients_of(loss).values())
        found.append({key: term.item() for key, term in terms.items()})
    assert found[1] == pytest.approx(found[0], **({"rel": 0.1, "abs": 0.05} if flash else {"rel": 1e-3, "abs": 1e-4}))


@pytest.mark.parametrize("name", chosen(ONE_OF_EACH, "simcse"))
@pytest.mark.parametrize("inner", [False, True] if CUDA else [True])
def test_a_compiled_encoder_has_the_same_gradients(build, german, sentences, device, name, inner):
    """Compiled by the Trainer, which wraps the model, or by the user in place (``inner``)."""
    torch._dynamo.reset()
    backend = "inductor" if CUDA else "eager"
    model, found = build("bert-mlm", dropout=False), []
    for compiled in (False, True):
        copied = copy.deepcopy(model)
        loss, columns, labels = loss_on(device, name, copied, german, sentences)
        switch_off_dropout(loss)
        if compiled and inner:
            copied.transformers_model.compile(backend=backend)
        elif compiled:
            loss.model = torch.compile(copied, backend=backend)
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


@pytest.mark.parametrize("name", chosen(["simcse", "twins", "twins-momentum", "infocse", "diffcse"], "simcse"))
def test_recomputed_passes_have_the_same_dropout(build, german, sentences, device, name, monkeypatch):
    """The gradient equals that of mini-batches without recomputation, so the device's random state was restored."""
    # The generator's choice between two tokens would depend on rounding.
    monkeypatch.setattr(ReplacedTokenDetector, "replace", lambda self, texts, masked: torch.where(
        masked.chosen, texts["input_ids"] - 1, texts["input_ids"]))  # fmt: skip
    model, found = build("bert-mlm"), []
    for is_recomputed in (True, False):
        loss, columns, labels = loss_on(device, name, copy.deepcopy(model), german, sentences, mini_batch_size=3)
        with monkeypatch.context() as patch:
            if not is_recomputed:
                patch.setattr(passes, "run_checkpointed", lambda function, parts: function(*parts))
            torch.manual_seed(7)
            (1024 * loss(columns, labels).total).backward()
        found.append(gradients_of(loss))
    again, expected = found
    assert set(again) == set(expected)
    whole = torch.stack([value.norm() for value in expected.values()]).norm()
    assert whole > 0
    for key, value in expected.items():
        assert (again[key] - value).norm() <= 1e-3 * value.norm() + 1e-5 * whole, key


def allocated_bytes(device):
    """Bytes of all tensors on the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = {}
    for value in gc.get_objects():
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu":
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("name", chosen(ONE_OF_EACH, "twins"))
def test_memory_does_not_grow(build, german, sentences, device, name):
    loss, columns, labels = loss_on(device, name, build("bert-mlm"), german, sentences)
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=1e-4)
    first, last, used = *((50, 200) if CUDA else (6, 9)), {}
    for step in range(1, last + 1):
        terms = loss([dict(column) for column in columns], labels)
        terms.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        del terms
        if step in (first, last):
            used[step] = allocated_bytes(device)
    assert 0 < used[last] <= used[first]


@pytest.mark.skipif(not CUDA, reason="only a GPU synchronises; tests/losses/test_passes.py counts calls on the CPU")
@pytest.mark.parametrize("name", chosen(ONE_OF_EACH))
def test_a_step_only_synchronises_to_read_lengths(build, german, sentences, device, name, recwarn):
    loss, columns, labels = loss_on(device, name, build("bert-mlm"), german, sentences)
    loss([dict(column) for column in columns], labels).backward()  # the first step has further synchronisations
    torch.cuda.set_sync_debug_mode("warn")
    try:
        recwarn.clear()
        loss([dict(column) for column in columns], labels).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in recwarn if "synchronizing CUDA operation" in str(warning.message)]
    ours = [f"{warning.filename}:{warning.lineno}" for warning in waits if "st_contrastive" in warning.filename]
    assert all("encoder/token_batch.py" in place for place in ours)
