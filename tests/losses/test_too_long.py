"""Texts that are longer than the encoder has positions for."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import BertForMaskedLM

from st_contrastive import (
    AuxiliaryMLMPretrainingLoss,
    CombinedLoss,
    ConIsILoss,
    DiffCSELoss,
    InfoCSEAblation,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
)
from st_contrastive.components import ReplacedTokenDetector
from st_contrastive.encoder import Rows, encoder_of, tokenizer_of

LOSSES = [
    SimCSELoss,
    ConIsILoss,
    TwinsLoss,
    InfoCSELoss,
    MomentumContrastLoss,
    CombinedLoss,
    AuxiliaryMLMPretrainingLoss,
]
LIMIT = 64  # of both encoders; RoBERTa's table has 66 rows, two of which no token takes


def batch(model, tokens):
    """Two texts, the first of that many tokens."""
    model.max_seq_length = tokens
    column = model.preprocess(["rain falls " * tokens, "the lake is cold"])
    assert column["input_ids"].shape[1] == tokens
    return column


@pytest.mark.filterwarnings("ignore:TwinsLoss was given one column")
@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_text_longer_than_the_positions_is_refused(build, family, kind):
    model = build(family)
    loss = kind(model)
    assert torch.isfinite(loss([batch(model, LIMIT)]).total)
    for tokens in (LIMIT + 1, 5 * LIMIT):
        remedy = rf"column 1 has a text of {tokens} tokens, .* positions for 64\. Set model\.max_seq_length = 64"
        with pytest.raises(ValueError, match=remedy):
            loss([batch(model, tokens)])
    assert torch.isfinite(loss([batch(model, LIMIT)]).total)  # and nothing is left behind


@pytest.mark.filterwarnings("ignore:.*head is new")
def test_a_text_longer_than_the_generators_positions_is_refused(build):
    model = build("bert")
    short = copy.deepcopy(encoder_of(model).config)
    short.max_position_embeddings = LIMIT // 2
    detector = ReplacedTokenDetector.from_encoder(
        encoder_of(model), tokenizer_of(model), generator=BertForMaskedLM(short)
    )
    for loss in (
        DiffCSELoss(model, generator=BertForMaskedLM(short)),
        InfoCSELoss(model, ablation=InfoCSEAblation(rtd_weight=0.005, detector=detector)),
    ):
        assert torch.isfinite(loss([batch(model, LIMIT // 2)]).total)
        with pytest.raises(ValueError, match=r"positions for 32\. Set model\.max_seq_length = 32"):
            loss([batch(model, LIMIT)])


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_column_is_named(build, family):
    model = build(family)
    short = model.preprocess(["the train is late", "birds sing"])
    with pytest.raises(ValueError, match="column 2 has a text of 65 tokens"):
        TwinsLoss(model)([short, batch(model, LIMIT + 1)])
    with pytest.raises(ValueError, match="column 2 has a text of 65 tokens"):
        ConIsILoss(model, strategy="given")([short, batch(model, LIMIT + 1)])


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("strategy", ["other", "subword", "given"])
def test_pairs_of_texts_that_fit_are_cut_to_the_positions(build, family, strategy):
    """Two texts of 64 tokens would make a pair of 127 (BERT) or 128 (RoBERTa)."""
    model = build(family)
    loss = ConIsILoss(model, strategy=strategy)
    columns = [batch(model, LIMIT)] * (2 if strategy == "given" else 1)
    composed, _ = loss.pairs([Rows.of(column, model) for column in columns], interacting=True)
    assert composed.ids.shape == (4, LIMIT)
    assert composed.mask.sum(dim=1).tolist()[0] == LIMIT
    assert torch.isfinite(loss(columns).total)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_padding_behind_the_positions_is_no_text(build, family):
    """A collator may pad all batches to one width."""
    model = build(family)
    column = batch(model, LIMIT + 1)
    column["attention_mask"][0, LIMIT:] = 0
    assert torch.isfinite(SimCSELoss(model)([column]).total)


@pytest.mark.parametrize("family", ["deberta", "modernbert", "xlnet"])
def test_encoders_without_a_table_of_positions_take_any_length(build, family):
    model = build(family)
    assert torch.isfinite(ConIsILoss(model)([batch(model, 2 * LIMIT)]).total)


@pytest.mark.parametrize(("family", "limit"), [("bert", "at most 64"), ("roberta", "at most 64"), ("xlnet", "number")])
def test_a_model_that_cuts_nothing_is_refused(build, family, limit):
    """transformers' tokenizers fail on any text where the length is None."""
    model = build(family)
    model.max_seq_length = None
    for kind in (SimCSELoss, ConIsILoss):
        with pytest.raises(ValueError, match=f"max_seq_length is None.*{limit}"):
            kind(model)
