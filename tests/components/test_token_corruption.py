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


def test_masking_is_80_10_10_of_the_rate(tokenizer, batch):
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
    assert kept == pytest.approx(0.1, abs=0.015)  # and a random token that is the same one by chance


def test_replacement_is_80_20_and_never_draws_a_special_token(tokenizer, batch):
    ids, mask = batch["input_ids"], batch["attention_mask"]
    corrupted = TokenCorruption.replacement(tokenizer, 0.5)(ids, mask)
    masked, kept = shares(ids, corrupted.input_ids, corrupted.chosen, tokenizer.mask_token_id)
    assert masked == 0
    assert kept == pytest.approx(0.2, abs=0.02)
    drawn = corrupted.input_ids[corrupted.chosen]
    assert not torch.isin(drawn, torch.tensor(tokenizer.all_special_ids)).any()
    assert len(drawn.unique()) > 0.9 * (len(tokenizer) - len(tokenizer.all_special_ids))


def test_what_replacement_leaves_may_be_masked(tokenizer, batch):
    ids, mask = batch["input_ids"], batch["attention_mask"]
    corrupted = TokenCorruption.replacement(tokenizer, 0.5, unreplaced="mask")(ids, mask)
    masked, kept = shares(ids, corrupted.input_ids, corrupted.chosen, tokenizer.mask_token_id)
    assert masked == pytest.approx(0.2, abs=0.02)
    assert kept < 0.02  # a random token that is the same one by chance
    assert torch.equal(corrupted.input_ids[~corrupted.chosen], ids[~corrupted.chosen])
    with pytest.raises(ValueError, match="unreplaced must be one of 'original', 'mask'; got 'kept'"):
        TokenCorruption.replacement(tokenizer, 0.5, unreplaced="kept")
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match=r"unreplaced='mask' needs a mask token, .* use unreplaced='original'"):
        TokenCorruption.replacement(tokenizer, 0.5, unreplaced="mask")
    assert TokenCorruption.replacement(tokenizer, 0.5).mask_id is None


def test_a_seed_fixes_the_draw_and_the_rate_its_ends(tokenizer, batch):
    corruption = TokenCorruption.masking(tokenizer, 0.4)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(corruption(batch["input_ids"], batch["attention_mask"]).input_ids)
    assert torch.equal(*draws)
    assert not torch.equal(draws[0], corruption(batch["input_ids"], batch["attention_mask"]).input_ids)
    none, everything = (
        TokenCorruption.masking(tokenizer, rate)(batch["input_ids"], batch["attention_mask"]).chosen
        for rate in (0.0, 1.0)
    )
    assert not none.any()
    special = torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))
    assert torch.equal(everything, ~special)


def test_checkpoints_hold_nothing_of_it(tokenizer):
    assert not TokenCorruption.masking(tokenizer, 0.4).state_dict()


def test_bad_input(tokenizer):
    for rate in (-0.1, 1.5, "much"):
        with pytest.raises(ValueError, match="rate"):
            TokenCorruption.masking(tokenizer, rate)
    with pytest.raises(ValueError, match="exceed 1"):
        TokenCorruption(tokenizer, rate=0.1, mask_share=0.8, random_share=0.3)
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="no mask token"):
        TokenCorruption.masking(tokenizer, 0.4)


@pytest.mark.parametrize(
    ("family", "text", "words"),
    [
        ("bert", "dogs sing purple, it's", ["dogs", "sing", "p ##u ##r ##p ##l ##e", "[UNK]", "[UNK]"]),
        ("roberta", "the (small) cat's zoo, zoo", None),
    ],
)
def test_whole_words_are_chosen_together(checkpoint, family, text, words):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint(family))
    corruption = TokenCorruption.masking(tokenizer, 0.5, whole_words=True)
    batch = tokenizer([text, "rain"] * 200, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    chosen = corruption(ids, mask).chosen
    assert not (chosen & (mask == 0)).any()
    pieces = tokenizer.convert_ids_to_tokens(ids[0])[1:-1]
    if family == "bert":
        groups = [0, 1, 2, 2, 2, 2, 2, 2]
        assert pieces[:8] == " ".join(words[:3]).split()
    else:
        # "the" has no space before it; "(", "'" and "," are words of their own, and what follows them is one too.
        plain = [piece.lstrip("Ġ") for piece in pieces]
        starts = [
            i == 0 or piece.startswith("Ġ") or not piece[0].isalnum() or not plain[i - 1][-1:].isalnum()
            for i, piece in enumerate(pieces)
        ]
        groups = [sum(starts[: i + 1]) for i in range(len(pieces))]
        assert len(set(groups)) < len(pieces)
    picked = chosen[::2, 1 : 1 + len(groups)]
    for a in range(len(groups)):
        for b in range(a):
            same = bool((picked[:, a] == picked[:, b]).all())
            assert same == (groups[a] == groups[b]), (pieces[a], pieces[b])
    assert picked.float().mean() == pytest.approx(0.5, abs=0.08)


def test_whole_words_need_a_vocabulary_that_tells_them(tokenizer):
    import transformers

    plain = transformers.BertTokenizer(
        vocab={token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])}
    )
    with pytest.raises(ValueError, match="leave whole_words=False"):
        TokenCorruption.masking(plain, 0.4, whole_words=True)
    assert not TokenCorruption.masking(tokenizer, 0.4, whole_words=True).state_dict()


def test_number_signs_do_not_make_a_vocabulary_wordpiece(checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("roberta"))
    plain = TokenCorruption.masking(tokenizer, 0.4, whole_words=True).inside.sum()
    tokenizer.add_tokens(["####", "########"])
    assert TokenCorruption.masking(tokenizer, 0.4, whole_words=True).inside.sum() == plain > 100


def test_random_tokens_are_those_that_the_encoder_knows(tokenizer, batch):
    known = len(tokenizer) - 20
    corruption = TokenCorruption(tokenizer, rate=1.0, mask_share=0.0, random_share=1.0, vocabulary=known)
    drawn = corruption(batch["input_ids"], batch["attention_mask"])
    assert drawn.input_ids[drawn.chosen].max() == known - 1
    with pytest.raises(ValueError, match="resize_token_embeddings"):
        TokenCorruption.masking(tokenizer, 0.4, vocabulary=tokenizer.mask_token_id)
