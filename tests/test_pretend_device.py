"""The pretend GPU behaves as CUDA does where the tests of the losses lean on it."""

from __future__ import annotations

import copy

import pytest
import torch

from st_contrastive.distributed import HostValue
from tests.pretend_device import DEVICE, PretendTensor, Synchronisation, pretend_device, watching


@pytest.fixture(autouse=True)
def _open():
    with pretend_device():
        yield


def there(*values):
    return torch.tensor(values, dtype=torch.float32, device=DEVICE)


def test_tensors_say_where_they_lie():
    for made in (there(1, 2), torch.zeros(2, device=DEVICE), torch.ones(2).to(DEVICE), torch.arange(2).to(there(1))):
        assert isinstance(made, PretendTensor)
        assert (made.device, made.is_cuda) == (DEVICE, True)
    assert not isinstance(there(1).cpu(), PretendTensor)
    assert not isinstance(torch.zeros(2), PretendTensor)
    assert isinstance(there(1).new_tensor([1]), PretendTensor)
    assert there(1).to(DEVICE) is not None
    own = there(1)
    assert own.to(DEVICE) is own
    assert torch.zeros(2, device="meta").is_meta


@pytest.mark.parametrize(
    "meet",
    [
        lambda own, other: own + other,
        lambda own, other: other @ own,
        lambda own, other: torch.cat([own, other]),
        lambda own, other: torch.stack([own.sum(), other.sum()]),
        lambda own, other: torch.where(other > 0, own, own),
        lambda own, other: own.add_(other),
        lambda own, other: torch.nn.functional.linear(own, torch.ones(2, 2)),
        lambda own, other: torch.zeros(2).index_copy_(0, torch.tensor([0, 1]), own),
    ],
)
def test_two_devices_do_not_meet(meet):
    with pytest.raises(RuntimeError, match="all tensors to be on the same device"):
        meet(there(1, 2), torch.ones(2))


def test_a_number_of_the_cpu_may_meet():
    assert (there(1, 2) * torch.tensor(2.0)).tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("act", "kinds"),
    [
        (lambda x: x.sum().item(), ["number read"]),
        (lambda x: bool((x > 0).all()), ["number read"]),
        (lambda x: torch.equal(x, x), ["number read"]),
        (lambda x: torch.allclose(x, x), ["number read"]),
        (lambda x: x.tolist(), ["copy to the CPU"]),
        (lambda x: x.cpu(), ["copy to the CPU"]),
        (lambda x: torch.ones(2).to(DEVICE), ["copy to the device"]),
        (lambda x: torch.tensor([1, 2], device=DEVICE), ["copy to the device"]),
        (lambda x: x[[0, 1]], ["copy to the device"]),
        (lambda x: x.nonzero(), ["search"]),
        (lambda x: x[x > 0], ["search"]),
        (lambda x: x.masked_select(x > 0), ["search"]),
        (lambda x: x.unique(), ["search"]),
        (lambda x: x.repeat_interleave(x.long()), ["search"]),
        (lambda x: torch.multinomial(x, 1), ["number read"] * 2),
        (lambda x: HostValue(x.sum()).read(), ["event"]),
        (lambda x: x[0] + x.index_select(0, x.argsort()).softmax(0), []),
        (lambda x: x.masked_fill(x > 0, 1.0), []),
        (lambda x: x.__setitem__(x > 0, 1.0), []),
        (lambda x: torch.zeros(3, device=DEVICE).fill_(2), []),
        (lambda x: HostValue(x.sum()), []),
    ],
)
def test_waits_are_written_down(act, kinds):
    own = there(1, 2)
    with watching() as waits:
        act(own)
    assert waits == [Synchronisation(kind, f"{__name__}.<lambda>") for kind in kinds]


def test_modules_move_and_stay_what_they_were():
    layer = torch.nn.Linear(2, 2)
    tied = torch.nn.ModuleDict({"a": layer, "b": torch.nn.Linear(2, 2)})
    tied["b"].weight = layer.weight
    before, values = layer.weight, layer.weight.detach().clone()
    tied.to(DEVICE)
    assert layer.weight is before
    assert tied["b"].weight is before
    assert isinstance(layer.weight, PretendTensor)
    assert isinstance(layer.weight, torch.nn.Parameter)
    assert torch.equal(layer.weight.cpu(), values)
    other = copy.deepcopy(tied)
    assert other["a"].weight is other["b"].weight
    assert isinstance(other["a"].weight, torch.nn.Parameter)
    with torch.no_grad():
        other["a"].weight.zero_()
    assert torch.equal(layer.weight.cpu(), values)
    layer.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    assert layer.weight is before
    assert layer.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_random_numbers_are_the_cpus():
    drawn = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(1)
        drawn.append(torch.rand(3, device=device).cpu())
        drawn.append(torch.nn.functional.dropout(torch.ones(9, device=device)).cpu())
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[1], drawn[3])


def test_gradients_lie_there_too():
    own = there(1, 2).requires_grad_()
    (own * own).sum().backward()
    assert isinstance(own.grad, PretendTensor)
    assert own.grad.tolist() == [2.0, 4.0]
