"""Stage 1 against transformers' masked-LM model, whose layers are called one by one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForMaskedLM

from st_contrastive import AuxiliaryMLMPretrainingLoss
from st_contrastive.encoder.layers import get_layers
from tests.cases import half_of, switch_off_dropout


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("split", "extra"), [(2, 2), (3, 1)])
def test_both_terms_and_all_gradients(build, checkpoint, sentences, monkeypatch, tied, split, extra):
    model = build("bert-mlm", dropout=False).double()
    loss = AuxiliaryMLMPretrainingLoss(model, split_layer=split, extra_layers=extra, tied_head=tied).double()
    switch_off_dropout(loss)
    batch = model.preprocess(sentences)
    corrupted = half_of(model, batch)
    monkeypatch.setattr(loss.masking, "forward", lambda *_: corrupted)
    terms = loss([dict(batch)])
    sum(terms.values()).backward()

    reference = (
        AutoModelForMaskedLM.from_pretrained(checkpoint("bert-mlm"), attn_implementation="eager").double().eval()
    )
    reference.tie_weights()
    copies = [type(layer)(reference.config).double().eval() for layer in reference.bert.encoder.layer[-extra:]]
    for copy, layer in zip(copies, reference.bert.encoder.layer[-extra:], strict=True):
        copy.load_state_dict(layer.state_dict())
    sums, count = [0.0, 0.0], 0
    for row in range(len(sentences)):
        length = int(batch["attention_mask"][row].sum())
        ids, wanted = corrupted.input_ids[row : row + 1, :length], batch["input_ids"][row, :length]
        output = reference.bert(ids, output_hidden_states=True)
        last = output.last_hidden_state
        states = torch.cat([last[:, :1], output.hidden_states[split][:, 1:]], dim=1)
        for layer in copies:
            states = layer(states)
        for place in corrupted.chosen[row].nonzero().flatten().tolist():
            for number, hidden in enumerate((last, states)):
                logits = reference.cls(hidden[0, place])
                sums[number] = sums[number] - F.log_softmax(logits, dim=0)[wanted[place]]
            count += 1
    assert count > 20
    expected = [total / count for total in sums]
    for found, value in zip(terms.values(), expected, strict=True):
        assert found.item() == pytest.approx(value.item(), rel=1e-9)
    sum(expected).backward()

    encoder = dict(model[0].model.named_parameters())
    compared = 0
    for name, parameter in reference.bert.named_parameters():
        if "word_embeddings" in name and not tied:
            continue  # there the head's matrix is another parameter
        if parameter.grad is None or parameter.grad.abs().sum() == 0:
            continue
        torch.testing.assert_close(encoder[name].grad, parameter.grad, rtol=1e-7, atol=1e-10)
        compared += 1
    assert compared > 60
    for mine, theirs in zip(get_layers(loss.network.encoder)[split:], copies, strict=True):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-7, atol=1e-10)
    head = loss.network.head.network.cls.predictions.transform.dense.weight
    torch.testing.assert_close(head.grad, reference.cls.predictions.transform.dense.weight.grad, rtol=1e-7, atol=1e-10)
    lower = get_layers(loss.network.encoder)[:split]
    assert all(p.grad is None for p in lower.parameters())


@pytest.mark.parametrize("family", ["bert", "mpnet", "electra", "modernbert"])
def test_the_auxiliary_term_uses_the_encoders_lower_layers(build, sentences, family):
    """After steps that moved the encoder away from what was copied; so that what is saved is what was trained."""
    model = build(family, dropout=False)
    loss = AuxiliaryMLMPretrainingLoss(model)
    switch_off_dropout(loss)
    batch = model.preprocess(sentences)
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=1e-3)
    values = []
    for step in range(4):
        torch.manual_seed(step if step == 3 else 0)
        terms = loss([dict(batch)])
        values.append({name: term.item() for name, term in terms.items()})
        if step < 3:
            terms.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert values[2]["mlm"] < values[0]["mlm"]
    assert values[2]["auxiliary_mlm"] < values[0]["auxiliary_mlm"]
    torch.manual_seed(3)
    corrupted = loss.masking(batch["input_ids"], batch["attention_mask"])
    text = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in batch}
    masked = {**text, "input_ids": corrupted.input_ids}
    with torch.no_grad():
        vectors = model(dict(masked))["token_embeddings"][:, 0]
        auxiliary = loss.trained_auxiliary().eval()
        states = auxiliary(masked, vectors)
        logits = auxiliary.head(states[corrupted.chosen], auxiliary.encoder)
    expected = F.cross_entropy(logits, batch["input_ids"][corrupted.chosen]).item()
    assert values[3]["auxiliary_mlm"] == pytest.approx(expected, rel=1e-4)
