from __future__ import annotations

from unittest import mock

import pytest
import torch

from st_contrastive import MomentumContrastLoss
from st_contrastive.components import TokenRepetition
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses import Step


def rows_of(lengths, width, prompt=0):
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = (10 + torch.arange(len(lengths) * width).view(len(lengths), width)) * mask
    constants = {"prompt_length": prompt} if prompt else {}
    if prompt:
        ids[:, :prompt] = torch.arange(1, prompt + 1)
    return TokenBatch({"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}, {}, constants)


@pytest.mark.parametrize(("rate", "limit", "prompt"), [(0.32, None, 0), (1.0, None, 3), (1.0, 20, 0), (0.32, 17, 0)])
def test_some_tokens_are_repeated_and_none_is_lost(rate, limit, prompt):
    lengths, width = [2, 4, 12, 16], 16
    rows = rows_of(lengths, width, prompt)
    repetition, counts = TokenRepetition(rate, limit), set()
    for seed in range(200):
        torch.manual_seed(seed)
        found = repetition(rows)
        assert limit is None or found.width <= max(limit, width)
        for row, length in enumerate(lengths):
            tokens = found.ids[row][found.mask[row] == 1].tolist()
            original = rows.ids[row, :length].tolist()
            assert [t for place, t in enumerate(tokens) if place == 0 or t != tokens[place - 1]] == original
            twice = [token for token in original if tokens.count(token) == 2]
            assert len(tokens) == length + len(twice)
            assert not {*original[:1], *original[-1:], *original[:prompt]} & {*twice}
            most = max(0, min(10, int(rate * length)) - 1)
            assert len(twice) <= (most if limit is None else min(most, limit - length))
            counts.add((length, len(twice)))
            assert found.token_tensors["token_type_ids"][row][found.mask[row] == 1].tolist() == [t % 2 for t in tokens]
    full = {count for length, count in counts if length == 16}
    expected = min(9 if rate == 1 else 4, 99 if limit is None else limit - 16)
    assert full == set(range(expected + 1))


def test_repetition_may_exceed_the_models_limit(build, sentences):
    model = build(dropout=False)
    model.max_seq_length = 8
    loss, seen = MomentumContrastLoss(model, repetition_rate=1.0, queue_size=0, head=None), []
    encode = Step.encode
    with mock.patch.object(Step, "encode", lambda step, *views: seen.append(views) or encode(step, *views)):
        loss([model.preprocess(sentences)])
    first, second = seen[0]
    assert first.mask.sum(dim=1).max() == 8 < second.mask.sum(dim=1).max()
    with pytest.raises(ValueError, match="repetition_rate=0"):
        loss([model.preprocess(sentences), model.preprocess(sentences)])
