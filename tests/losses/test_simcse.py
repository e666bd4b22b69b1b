"""SimCSE's masked-LM term against separate computations in float64 without dropout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import AutoModelForMaskedLM

from st_contrastive import SimCSELoss
from st_contrastive.encoder.token_batch import CorruptedTokens
from st_contrastive.losses import LossTerms
from tests.cases import half_of, switch_off_dropout


@pytest.mark.parametrize(("pooling", "mini_batch_size"), [("cls", None), ("mean", 3)])
def test_both_terms_and_all_gradients(build, checkpoint, sentences, monkeypatch, pooling, mini_batch_size):
    """Against transformers' masked-LM model, row by row, without padding."""
    weight = 0.3
    model = build("bert-mlm", pooling, dropout=False).double()
    loss = SimCSELoss(model, mlm_weight=weight, mini_batch_size=mini_batch_size).double()
    switch_off_dropout(loss)
    assert (loss.mlm_head.source, loss.mlm_head.tied) == ("checkpoint", False)
    batch = model.preprocess(sentences)
    corrupted = half_of(model, batch)
    twice = CorruptedTokens(corrupted.input_ids.repeat(2, 1), corrupted.chosen.repeat(2, 1))
    monkeypatch.setattr(loss.masking, "forward", lambda *_: twice)
    terms = loss([dict(batch)])
    terms.backward()

    reference = AutoModelForMaskedLM.from_pretrained(checkpoint("bert-mlm")).double().eval()
    decoder = reference.cls.predictions.decoder
    decoder.weight = torch.nn.Parameter(decoder.weight.detach().clone())  # trained apart from the embeddings
    vectors, scores = [], []
    for row in range(len(sentences)):
        length = int(batch["attention_mask"][row].sum())
        states = reference.bert(batch["input_ids"][row : row + 1, :length]).last_hidden_state[0]
        vectors.append(states[0] if pooling == "cls" else states.mean(0))
        masked = reference(corrupted.input_ids[row : row + 1, :length]).logits[0]
        for place in corrupted.chosen[row].nonzero().flatten().tolist():
            scores.append(masked[place].logsumexp(0) - masked[place, batch["input_ids"][row, place]])
    assert len(scores) > 20
    projected = torch.tanh(torch.stack(vectors) @ loss.head.linear.weight.detach().T + loss.head.linear.bias.detach())
    similar = F.cosine_similarity(projected[:, None], projected[None], dim=2) / 0.05
    expected = {
        "contrastive": sum(row.logsumexp(0) - row[i] for i, row in enumerate(similar)) / len(similar),
        "mlm": weight * sum(scores) / len(scores),
    }
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        assert terms[name].item() == pytest.approx(value.item(), rel=1e-9), name
        assert value > 0.01
    sum(expected.values()).backward()
    theirs = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    own = {f"bert.{name}": p.grad for name, p in model[0].model.named_parameters()}
    own |= {name: p.grad for name, p in loss.mlm_head.network.named_parameters()}
    compared = [name for name, gradient in theirs.items() if gradient.abs().sum() > 0]
    assert len(compared) > 65
    assert {"bert.embeddings.word_embeddings.weight", "cls.predictions.transform.dense.weight"} < set(compared)
    for name in compared:
        torch.testing.assert_close(own[name], theirs[name], rtol=1e-7, atol=1e-10, msg=lambda t, n=name: f"{n}: {t}")


def test_without_masked_tokens_the_masked_lm_term_is_0(build, sentences):
    loss = SimCSELoss(build("bert-mlm"), mlm_weight=0.1, mask_rate=1e-9)
    terms = loss([loss.model.preprocess(sentences)])
    assert terms["mlm"].item() == 0
    terms.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in loss.parameters())


@pytest.mark.parametrize("longer", [0, 1])
def test_both_of_two_columns_are_masked(build, sentences, monkeypatch, longer):
    model = build("bert-mlm", dropout=False)
    loss, seen = SimCSELoss(model, mlm_weight=0.5), []
    loss.mlm_head.eval()
    masking = loss.masking.forward
    monkeypatch.setattr(loss.masking, "forward", lambda *args: seen.append((*args, masking(*args))) or seen[-1][2])
    texts = [sentences[:4], sentences[4:8]]
    texts[longer] = [f"{text} rain falls and rain falls again" for text in texts[longer]]
    batch = [model.preprocess(column) for column in texts]
    assert batch[longer]["input_ids"].shape[1] > batch[1 - longer]["input_ids"].shape[1]
    found = loss([dict(column) for column in batch])["mlm"]
    ((ids, mask, masked),) = seen
    assert len(ids) == 8
    scores = []
    for column, rows in zip(batch, (range(4), range(4, 8)), strict=True):
        width = column["input_ids"].shape[1]
        assert torch.equal(ids[rows, :width], column["input_ids"])
        assert torch.equal(mask[rows, :width], column["attention_mask"])
        assert not mask[rows, width:].any()
        states = model({**column, "input_ids": masked.input_ids[rows, :width]})["token_embeddings"]
        chosen = masked.chosen[rows, :width]
        assert chosen.any()
        assert not masked.chosen[rows, width:].any()
        scores.append(
            F.cross_entropy(
                loss.mlm_head(states[chosen], loss.model[0].model), column["input_ids"][chosen], reduction="none"
            )
        )
    assert found.item() == pytest.approx(0.5 * torch.cat(scores).mean().item(), rel=1e-5)


@pytest.mark.parametrize("prompts", [("the red ", "a blue "), (None, "the red "), ("the red ", None)])
def test_prompts_are_not_masked(build, sentences, monkeypatch, prompts):
    model = build("bert-mlm")
    loss, seen = SimCSELoss(model, mlm_weight=0.1, mask_rate=1.0), []
    masking = loss.masking.forward
    monkeypatch.setattr(loss.masking, "forward", lambda *args: seen.append(masking(*args)) or seen[-1])
    loss([model.preprocess(sentences[:2], **({} if prompt is None else {"prompt": prompt})) for prompt in prompts])
    for chosen, prompt in zip(seen[0].chosen.chunk(2), prompts, strict=True):
        assert chosen[:, 3].all()
        assert chosen[:, 1:3].any() == chosen[:, 1:3].all() == (prompt is None)


def test_pairs_without_a_head_equal_sentence_transformers_loss(build, sentences):
    model = build(dropout=False)
    batch = [model.preprocess(part) for part in (sentences, sentences[::-1])]
    ours = SimCSELoss(model, head=None)([dict(column) for column in batch]).total
    theirs = MultipleNegativesRankingLoss(model, scale=20)([dict(column) for column in batch], None)
    assert ours > 0
    torch.testing.assert_close(ours, theirs)


def test_terms_behave_like_the_tensor_of_their_sum():
    weight = torch.tensor(2.0, requires_grad=True)
    terms = LossTerms(contrastive=weight * 3, mlm=weight * 1)
    assert float(terms) == terms.item() == 8
    assert (terms / 4).item() == 2
    assert (terms * 0.5).item() == (0.5 * terms).item() == 4
    assert (terms + terms).item() == sum([terms, terms]).item() == 16
    assert (terms + 1).item() == (torch.tensor(1.0) + terms).item() == 9
    assert not terms.detach().requires_grad
    (terms / 4).backward()  # as accelerator.backward does under gradient accumulation
    assert weight.grad.item() == 1


def test_an_encoder_in_evaluation_mode_gives_a_warning(build, sentences, tmp_path):
    """Its container is in training mode, so that it looks as if it were."""
    build().save_pretrained(str(tmp_path))
    model = SentenceTransformer(str(tmp_path), device="cpu")
    assert model.training
    assert not model[0].model.training
    loss, batch = SimCSELoss(model), [model.preprocess(sentences)]
    with pytest.warns(UserWarning, match=r"SimCSELoss .*encoder is in evaluation mode.*model\.train"):
        loss(batch)
    loss(batch)  # said once
    with torch.no_grad():
        SimCSELoss(model)(batch)  # an evaluation
