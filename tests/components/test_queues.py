from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from st_contrastive.components import NegativeQueue


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(1, 4))
def test_a_queue_keeps_the_last_batches_with_their_ages(sizes, batches):
    queue = NegativeQueue(2, batches=batches, forgetting_rate=0.9 / batches)
    kept: list[list[list[float]]] = []
    for number, size in enumerate(sizes, start=1):
        anchors = torch.full((size, 2), float(number)) + torch.arange(size)[:, None] / 10
        queue.enqueue(anchors)
        kept = [anchors.tolist(), *kept][:batches]
    keys, weights = queue.keys_and_weights()
    assert keys.tolist() == [key for batch in kept for key in reversed(batch)]  # the newest first
    expected = [1 - 0.9 / batches * age for age, batch in enumerate(kept, start=1) for _ in batch]
    assert weights.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_saved_state_is_loaded_for_any_batch_sizes():
    queue = NegativeQueue(2, batches=3, forgetting_rate=0.3)
    for size in (4, 2, 3, 1):
        queue.enqueue(torch.randn(size, 2))
    assert len(queue) == 2 + 3 + 1
    fresh = NegativeQueue(2, batches=3, forgetting_rate=0.3)
    fresh.load_state_dict(queue.state_dict())
    for ours, theirs in zip(queue.keys_and_weights(), fresh.keys_and_weights(), strict=True):
        assert torch.equal(ours, theirs)
    weights = queue.keys_and_weights()[1]
    assert torch.equal(queue.bfloat16().float().keys_and_weights()[1], weights)
    fresh.load_state_dict(queue.state_dict())
    other = torch.randn(5, 2)
    queue.enqueue(other), fresh.enqueue(other)
    assert torch.equal(queue.keys_and_weights()[0], fresh.keys_and_weights()[0])
    with pytest.raises(RuntimeError, match="size mismatch"):
        NegativeQueue(3, batches=3, forgetting_rate=0.25).load_state_dict(queue.state_dict())


def test_keys_are_detached_copies():
    queue = NegativeQueue(2, batches=2, forgetting_rate=0.1)
    anchors = torch.ones(3, 2, requires_grad=True)
    queue.enqueue(anchors)
    with torch.no_grad():
        anchors.zero_()
    assert not queue.keys.requires_grad
    assert queue.keys.sum() == 6


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(1, 5))
def test_a_queue_with_a_size_keeps_the_last_rows_with_weight_1(sizes, size):
    queue, pushed = NegativeQueue(1, size=size), []
    for rows in sizes:
        vectors = torch.arange(len(pushed), len(pushed) + rows, dtype=torch.float32)[:, None]
        pushed += vectors[:, 0].tolist()
        queue.enqueue(vectors)
    keys, weights = queue.keys_and_weights()
    assert sorted(keys[:, 0].tolist()) == pushed[-size:]
    assert weights.tolist() == [1.0] * len(keys)


@pytest.mark.parametrize("queue", [NegativeQueue(4, batches=2, forgetting_rate=0.25), NegativeQueue(4, size=5)])
def test_infinite_values_are_replaced(queue):
    """A batch may overflow in float16."""
    vectors = torch.randn(3, 4)
    vectors[1, 2] = math.inf
    queue.enqueue(vectors)
    vectors[1, 2] = 0.0
    assert torch.equal(queue.keys.flip(0), vectors)
