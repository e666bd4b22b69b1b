from __future__ import annotations

from functools import partial

import pytest
import torch

from st_contrastive import CombinedLoss, ConIsILoss
from st_contrastive.components import TokenCorruption
from st_contrastive.encoder import Rows


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_subwords_that_are_not_replaced_stay_masked_or_as_they_were(build, sentences, family):
    """Every subword is chosen: a fifth of the constructed sentence is the sentence's own, or the mask token."""
    model = build(family)
    column = model.preprocess([sentences[3]] * 400)
    content = column["input_ids"][:, 1:-1]
    shares = {}
    for unreplaced in ("original", "mask"):
        loss = ConIsILoss(model, strategy="subword", replacement_rate=1.0, unreplaced=unreplaced)
        assert loss.get_config_dict()["unreplaced"] == unreplaced
        pairs, distinct = loss.pairs([Rows.of(column, model)], interacting=True)
        assert distinct.all()
        constructed = pairs.ids[400:]
        assert torch.equal(constructed[:, 1 : 1 + content.shape[1]], content)  # the sentence itself stands first
        behind = constructed[:, -1 - content.shape[1] : -1]
        masked, kept = behind == model.tokenizer.mask_token_id, behind == content
        shares[unreplaced] = masked.float().mean().item(), kept.float().mean().item()
    assert shares["original"] == pytest.approx((0, 0.2), abs=0.03)
    assert shares["original"][0] == 0
    assert shares["mask"] == pytest.approx((0.2, 0), abs=0.03)  # but for random tokens that are the same by chance


def test_a_mask_token_is_needed_to_leave_one(build):
    model = build()
    model.tokenizer.mask_token = None
    with pytest.raises(ValueError, match="unreplaced='mask' needs a mask token"):
        ConIsILoss(model, strategy="subword", unreplaced="mask")
    with pytest.raises(ValueError, match="unreplaced must be one of 'original', 'mask'; got 'random'"):
        ConIsILoss(model, unreplaced="random")
    assert ConIsILoss(model, strategy="subword").unreplaced == "original"


@pytest.mark.parametrize("family", ["bert", "roberta", "qwen"])
@pytest.mark.parametrize("strategy", ["other", "subword", "given"])
def test_a_prompt_comes_before_a_pair_and_not_inside_it(build, sentences, family, strategy):
    model = build(family, "mean")
    loss = ConIsILoss(model, strategy=strategy)
    columns = [list(sentences), sentences[1:] + sentences[:1]][: 2 if strategy == "given" else 1]
    prompted = [Rows.of(model.preprocess(column, prompt="the red "), model) for column in columns]
    pairs, _ = loss.pairs(prompted, interacting=True)

    def words(ids):
        return model.tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "")

    texts = [words(ids) for ids in pairs.ids]
    for first, second, text in zip(sentences, columns[-1], texts[len(sentences) :], strict=True):
        if strategy == "given":
            assert text == f"the red {first}{second}".replace(" ", "")
        elif strategy == "other":  # a subword may become any other
            assert text.count("thered") == 1
    for sentence, text in zip(sentences, texts, strict=False):
        assert text == f"the red {sentence}{sentence}".replace(" ", "")


@pytest.mark.parametrize("form", [int, lambda length: torch.tensor([length] * 2)])
def test_masked_lm_leaves_a_prompt_as_it_is(build, sentences, form):
    model = build()
    column = model.preprocess(sentences, prompt="the red ")
    length = int(column["prompt_length"])
    assert length == 3  # with [CLS]
    column["prompt_length"] = form(length)
    chosen = Rows.of(column, model).corrupted(TokenCorruption.masking(model.tokenizer, 1.0), 2).masked.chosen
    assert not chosen[:, :length].any()
    assert chosen[:, length].all()


def test_the_other_sentence_is_drawn_evenly(build):
    model = build()
    loss = ConIsILoss(model)
    column = model.preprocess(["rain", "cat", "lake", "train"])
    own = column["input_ids"][:, 1]
    counts = torch.zeros(4, 4)
    for _ in range(600):
        pairs, _ = loss.pairs([Rows.of(dict(column), model)], interacting=True)
        made = pairs.ids[4:, 3]  # [CLS] x [SEP] c [SEP]
        counts += made[:, None] == own
    assert torch.equal(counts.diag(), torch.zeros(4))
    others = counts[~torch.eye(4, dtype=torch.bool)] / 600
    assert (others - 1 / 3).abs().max() < 0.1


@pytest.mark.parametrize("make", [ConIsILoss, partial(CombinedLoss, mlm_weight=0, queue_batches=0)])
def test_the_interactive_terms_share_counts_the_rows_that_can_be_told_apart(build, monkeypatch, make):
    """Of several devices, each counts for the rows in its mean."""
    model = build()
    loss, seen = make(model), []
    monkeypatch.setattr(loss, "share", lambda count: seen.append(int(count)) or 1.0)
    loss([model.preprocess(["rain falls"] * 2)])
    assert seen == [0]
