from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from st_contrastive.components import TokenCorruption


@pytest.fixture
def tokenizer(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint("bert"))


@pytest.fixture
def batch(tokenizer, sentences):
    return tokenizer(sentences * 400, padding=True, return_tensors="pt")


def shares(before, after, chosen, mask_id):
    picked = chosen.sum()
    masked = ((after == mask_id) & chosen).sum() / picked
    kept = ((after == before) & chosen).sum() / picked
    return masked.item(), kept.item()


def test_masking_replaces_80_and_10_percent(tokenizer, batch):
    ids, mask = batch["input_ids"], batch["attention_mask"]
    before = ids.clone()
    corrupted = TokenCorruption.masking(tokenizer, 0.4)(ids, mask)
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    assert torch.equal(ids, before)
    assert not (corrupted.chosen & (special | (mask == 0))).any()
    assert torch.equal(corrupted.input_ids[~corrupted.chosen], ids[~corrupted.chosen])
    eligible = (~special).sum()
    assert corrupted.chosen.sum() / eligible == pytest.approx(0.4, abs=0.01)
    masked, kept = shares(ids, corrupted.input_ids, corrupted.chosen, tokenizer.mask_token_id)
    assert masked == pytest.approx(0.8, abs=0.01)
    assert kept == pytest.approx(0.1, abs=0.015)  # a random token may equal the original by chance


@pytest.mark.parametrize(("unreplaced", "masked", "kept"), [("original", 0, 0.2), ("mask", 0.2, 0)])
def test_replacement_changes_80_percent_and_draws_no_special_token(tokenizer, batch, unreplaced, masked, kept):
    ids = batch["input_ids"]
    corrupted = TokenCorruption.replacement(tokenizer, 0.5, unreplaced=unreplaced)(ids, batch["attention_mask"])
    found = shares(ids, corrupted.input_ids, corrupted.chosen, tokenizer.mask_token_id)
    assert found == pytest.approx((masked, kept), abs=0.02)  # a random token may equal the original by chance
    assert torch.equal(corrupted.input_ids[~corrupted.chosen], ids[~corrupted.chosen])
    drawn = corrupted.input_ids[corrupted.chosen].unique()
    drawn = drawn[drawn != tokenizer.mask_token_id]
    assert not torch.isin(drawn, torch.tensor(tokenizer.all_special_ids)).any()
    assert len(drawn) > 0.9 * (len(tokenizer) - len(tokenizer.all_special_ids))


def test_a_seed_determines_the_draw_and_rates_0_and_1_are_exact(tokenizer, batch):
    corruption = TokenCorruption.masking(tokenizer, 0.4)
    assert not corruption.state_dict()
    draws = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        draws.append(corruption(batch["input_ids"], batch["attention_mask"]).input_ids)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    none, everything = (
        TokenCorruption.masking(tokenizer, rate)(batch["input_ids"], batch["attention_mask"]).chosen
        for rate in (0.0, 1.0)
    )
    assert not none.any()
    special = torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))
    assert torch.equal(everything, ~special)
