"""Batches that sentence-transformers flattened for flash attention: the losses give what they give for padded ones.

Flash attention needs a GPU. In its place stands an attention that reads the same bounds of the texts.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, DataCollatorWithFlattening

from st_contrastive.encoder import flat_batches, tokenizer_of
from tests.contracts.test_losses import CASES, ONE_OF_EACH
from tests.selection import crossed

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
]

FLAT_PASSES = []


def by_bounds(module, query, key, value, attention_mask, scaling=None, dropout=0.0, cu_seq_lens_q=None, **_):
    """Attention within each text of a flat batch; of a padded one, within each row's mask."""
    if cu_seq_lens_q is None:
        bias = None if attention_mask is None else attention_mask[:, :, :, : key.shape[2]]
    else:
        FLAT_PASSES.append(query.shape)
        text = torch.bucketize(torch.arange(query.shape[2]), cu_seq_lens_q[1:], right=True)
        bias = text[:, None] == text[None]
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register("by_bounds", by_bounds)
AttentionMaskInterface.register("by_bounds", AttentionMaskInterface()["sdpa"])


def unpadding(model, offset=0):
    """The model as sentence-transformers sets it up where flash attention is there."""
    first = model[0]
    first.data_collator = DataCollatorWithFlattening(
        return_seq_idx=True, return_flash_attn_kwargs=True, return_position_ids=True
    )
    if first.model_forward_params is not None:
        first.model_forward_params |= {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
    first._flatten_position_offset = offset
    first.can_flatten_inputs = True
    return model


def gradients(loss, batch):
    loss.zero_grad()
    torch.manual_seed(3)
    value = loss([dict(column) for column in batch]).total
    value.backward()
    return value.detach(), {name: p.grad.clone() for name, p in loss.named_parameters() if p.grad is not None}


#: RoBERTa's positions begin elsewhere.
TAKEN = [
    *crossed(CASES, ["bert"], [None], quick=lambda case, *_: case in ONE_OF_EACH),
    *crossed(["simcse", "conisi-other", "infocse"], ["roberta"], [None, 2], quick=lambda case, *_: case == "infocse"),
]


@pytest.mark.parametrize(("case", "family", "mini_batch_size"), TAKEN)
def test_flat_batches_give_what_padded_ones_give(build, no_dropout, sentences, case, family, mini_batch_size):
    loss_class, options, count, _ = CASES[case]
    model = build(family, dropout=False)
    model[0].model.set_attn_implementation("by_bounds")
    torch.manual_seed(1)
    options = {name: value for name, value in options.items() if name != "sampling"}
    loss = loss_class(model, **options).double()
    no_dropout(loss)
    loss.mini_batch_size = mini_batch_size
    texts = [sentences, sentences[::-1]][:count]
    padded = [model.preprocess(column) for column in texts]
    start = {name: value.clone() for name, value in loss.state_dict().items()}
    wanted = gradients(loss, padded)
    loss.load_state_dict(start)
    unpadding(model, {"bert": 0, "roberta": 2}[family])
    flat = [model.preprocess(column) for column in texts]
    assert all(column["input_ids"].shape[0] == 1 for column in flat)
    FLAT_PASSES.clear()
    value, found = gradients(loss, flat)
    whole = case == "twins-embeddings" or case.startswith("pretraining")
    assert bool(FLAT_PASSES) != whole  # what looks at the encoder's layers runs in rows
    torch.testing.assert_close(value, wanted[0], rtol=1e-7, atol=1e-10)
    assert found.keys() == wanted[1].keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[1][name], rtol=1e-6, atol=1e-9)


def test_a_flat_batch_and_back(build, sentences):
    model = unpadding(build())
    flat = model.preprocess(sentences)
    rows, form = flat_batches.in_rows(flat, 0, 0)
    model[0].can_flatten_inputs = False
    padded = model.preprocess(sentences)
    assert torch.equal(rows["input_ids"], padded["input_ids"])
    assert torch.equal(rows["attention_mask"], padded["attention_mask"])
    again, places = flat_batches.flattened(rows, form)
    assert {key for key in flat if key != "token_type_ids"} <= set(again)
    for key, value in flat.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(again[key].long(), value.long()), key
        elif key.startswith("max_length"):
            assert again[key] == value
    vectors = torch.randn(1, len(places), 4)
    back = flat_batches.rows_of(vectors, places, rows["attention_mask"])
    assert torch.equal(back[rows["attention_mask"] != 0], vectors[0])
    assert not back[rows["attention_mask"] == 0].any()
    assert tokenizer_of(model).pad_token_id == 0
