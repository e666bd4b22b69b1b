from __future__ import annotations

import torch
import torch.nn.functional as F

from st_contrastive.components import PredictionHead, Projector, TanhHead


def batch_norm(x, weight, bias, eps=1e-5):
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + eps).sqrt() * weight + bias


def test_interaction_head_is_the_papers_equation():
    head = PredictionHead(6).double()
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
