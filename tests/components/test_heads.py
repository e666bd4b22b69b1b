from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from st_contrastive.components import InteractionHead, Projector, TanhHead


def batch_norm(x, weight, bias, eps=1e-5):
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + eps).sqrt() * weight + bias


def test_interaction_head_is_the_papers_equation():
    head = InteractionHead(6).double()
    torch.nn.init.normal_(head.norm.weight)
    torch.nn.init.normal_(head.norm.bias)
    x = torch.randn(5, 6, dtype=torch.float64)
    hidden = F.elu(batch_norm(x @ head.linear.weight.T + head.linear.bias, head.norm.weight, head.norm.bias))
    torch.testing.assert_close(head(x), hidden)


def test_projector_is_the_authors():
    projector = Projector(4).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    inner = batch_norm(x @ projector.inner.weight.T, projector.inner_norm.weight, projector.inner_norm.bias)
    expected = batch_norm(inner.relu() @ projector.outer.weight.T, 1, 0)
    torch.testing.assert_close(projector(x), expected)
    assert [name for name, _ in projector.named_parameters()] == [
        "inner.weight", "inner_norm.weight", "inner_norm.bias", "outer.weight",
    ]  # fmt: skip


def test_tanh_head():
    head, x = TanhHead(3), torch.randn(2, 3)
    torch.testing.assert_close(head(x), torch.tanh(x @ head.linear.weight.T + head.linear.bias))


@pytest.mark.parametrize("kind", [TanhHead, Projector, InteractionHead])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_layers_start_as_berts_do(kind, dtype):
    """From N(0, 0.02), the bias 0, as in all of the authors' code; not in torch's default type."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        head = kind(400, dtype)
    finally:
        torch.set_default_dtype(torch.float32)
    layers = [part for part in head.modules() if isinstance(part, nn.Linear)]
    assert len(layers) == (2 if kind is Projector else 1)
    for layer in layers:
        assert (layer.weight.mean().item(), layer.weight.std().item()) == pytest.approx((0, 0.02), abs=5e-4)
        within = ((layer.weight.abs() < 0.02).float().mean().item(), (layer.weight.abs() < 0.04).float().mean().item())
        assert within == pytest.approx((0.683, 0.954), abs=0.01)  # of a normal distribution
        assert layer.bias is None or not layer.bias.any()
    tensors = [*head.parameters(), *(b for b in head.buffers() if b.is_floating_point())]
    assert {tensor.dtype for tensor in tensors} == {dtype}
