from __future__ import annotations

import pytest
import torch

from st_contrastive.components.heads import HEADS, PredictionHead


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_heads_start_as_in_the_authors_code(default):
    torch.set_default_dtype(default)
    try:
        heads = [head(256, torch.float32) for head in (*HEADS.values(), PredictionHead)]
    finally:
        torch.set_default_dtype(torch.float32)
    layers = [part for head in heads for part in head.modules() if isinstance(part, torch.nn.Linear)]
    assert len(layers) == 4
    for layer in layers:
        assert layer.weight.dtype == torch.float32
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert abs(layer.weight.mean().item()) < 1e-3
        assert layer.bias is None or not layer.bias.any()
