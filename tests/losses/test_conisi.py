"""ConIsI's pairs: what stands in them, and which can be told apart."""

from __future__ import annotations

import warnings

import pytest
import torch

from st_contrastive import ConIsILoss
from st_contrastive.components import TokenCorruption
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses.step import Step


@pytest.mark.parametrize(("unreplaced", "masked"), [("original", 0), ("mask", 0.2)])
def test_subwords_that_are_not_replaced_stay_masked_or_as_they_were(build, sentences, unreplaced, masked):
    """Every subword is chosen: a fifth of the constructed sentence is the mask token, or the sentence's own."""
    model = build("roberta")
    column = model.preprocess([sentences[3]] * 400)
    loss = ConIsILoss(model, strategy="subword", replacement_rate=1.0, unreplaced=unreplaced)
    pairs, distinct = loss.compose_pairs([TokenBatch.of(column)])
    assert distinct.all()
    width = column["input_ids"].shape[1] - 2
    found = pairs.ids[400:, -1 - width : -1] == model.tokenizer.mask_token_id
    assert found.float().mean().item() == pytest.approx(masked, abs=0.03)


@pytest.mark.parametrize(("family", "strategy"), [("bert", "other"), ("roberta", "given"), ("qwen", "given")])
def test_a_prompt_comes_before_a_pair_and_not_inside_it(build, sentences, family, strategy):
    model = build(family, "mean")
    loss = ConIsILoss(model, strategy=strategy)
    columns = [list(sentences), sentences[1:] + sentences[:1]][: 2 if strategy == "given" else 1]
    prompted = [TokenBatch.of(model.preprocess(column, prompt="the red ")) for column in columns]
    pairs, _ = loss.compose_pairs(prompted)

    def words(ids):
        return model.tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "")

    texts = [words(ids) for ids in pairs.ids]
    for first, second, text in zip(sentences, columns[-1], texts[len(sentences) :], strict=True):
        if strategy == "given":
            assert text == f"the red {first}{second}".replace(" ", "")
        else:
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
    chosen = TokenBatch.of(column).corrupt(TokenCorruption.masking(model.tokenizer, 1.0)).chosen
    assert not chosen[:, :length].any()
    assert chosen[:, length].all()


def test_the_other_sentence_is_drawn_uniformly(build):
    model = build()
    loss = ConIsILoss(model)
    column = model.preprocess(["rain", "cat", "lake", "train"])
    own = column["input_ids"][:, 1]
    counts = torch.zeros(4, 4)
    for _ in range(600):
        pairs, _ = loss.compose_pairs([TokenBatch.of(dict(column))])
        made = pairs.ids[4:, 3]  # [CLS] x [SEP] c [SEP]
        counts += made[:, None] == own
    assert torch.equal(counts.diag(), torch.zeros(4))
    others = counts[~torch.eye(4, dtype=torch.bool)] / 600
    assert (others - 1 / 3).abs().max() < 0.1


def test_rows_whose_pairs_are_equal_after_truncation_are_ignored(build, monkeypatch):
    model = build()
    words = ["rain"] * 58
    batch = model.preprocess([" ".join([*words, "cat"]), " ".join([*words, "dog"])])
    loss, seen = ConIsILoss(model), []
    pairs, distinct = loss.compose_pairs([TokenBatch.of(batch)])
    alike = (pairs.ids[:2] == pairs.ids[2:]).all(dim=1)
    assert alike.any()  # 64 positions hold no more than the words in common
    assert torch.equal(distinct, ~alike)
    # Of several devices, each counts for the rows in its mean.
    monkeypatch.setattr(Step, "mean_count", lambda step, count: seen.append(int(count)) or count.clamp(min=1))
    loss([model.preprocess(["rain falls"] * 2)])
    loss([model.preprocess(["rain cat", "rain dog"])])
    assert seen == [0, 2]


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_the_papers_weight_without_cls_pooling_gives_a_warning(build, pooling):
    with pytest.warns(UserWarning, match="interaction_weight=0.8"):
        ConIsILoss(build(pooling=pooling))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConIsILoss(build(pooling=pooling), interaction_weight=0.1)
        ConIsILoss(build())
