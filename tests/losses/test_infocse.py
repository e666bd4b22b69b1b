"""The arguments of InfoCSE and DiffCSE: what each of them changes and what it does not change."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainer

from st_contrastive import AuxiliaryMLMPretrainingLoss, DiffCSELoss, InfoCSELoss, SimCSELoss, text_dataset
from st_contrastive.components import AuxiliaryMLM
from st_contrastive.encoder.layers import get_layers
from st_contrastive.training import load_loss_state, save_loss_state
from tests.cases import arguments_of, switch_off_dropout


@pytest.fixture
def model(build):
    return build("bert-mlm", dropout=False).double()


def terms_and_gradients(model, loss, sentences, names=None):
    """The terms, and the encoder's and the loss's gradients, of one batch under one seed."""
    loss.double()
    loss.zero_grad()
    torch.manual_seed(7)
    terms = loss([model.preprocess(sentences)])
    sum(terms[name] for name in names or terms).backward()
    gradients = {name: p.grad.clone() for name, p in loss.named_parameters() if p.grad is not None}
    return {name: term.item() for name, term in terms.items()}, gradients


def encoders(gradients):
    found = {name: g for name, g in gradients.items() if name.startswith("model.") and g.abs().sum() > 0}
    assert len(found) > 20
    return found


def assert_equal(found, expected, factor=1.0, rtol=1e-9, atol=1e-14):
    assert set(found) == set(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, factor * expected[name], rtol=rtol, atol=atol)


@pytest.mark.parametrize("head", ["projector", "tanh", None])
def test_without_the_masked_lm_term_the_loss_is_simcse(build, sentences, head):
    model = build("bert-mlm").double()  # with dropout, which a seed makes equal for all
    simcse = SimCSELoss(model, head=head)
    expected, reference = terms_and_gradients(model, simcse, sentences)
    assert expected["contrastive"] > 1e-3
    for loss in (InfoCSELoss(model, mlm_weight=0, head=head), DiffCSELoss(model, rtd_weight=0, head=head)):
        loss.head = simcse.head
        found, gradients = terms_and_gradients(model, loss, sentences)
        assert found == {"contrastive": pytest.approx(expected["contrastive"], rel=1e-12)}
        assert_equal(gradients, reference)
    assert any(name.startswith("head") and g.abs().sum() > 0 for name, g in reference.items()) == (head is not None)


def test_weights_scale_terms_and_gradients(model, sentences):
    weight, found = 0.01, {}
    for each in (weight, 1.0):
        torch.manual_seed(1)
        loss = InfoCSELoss(model, mlm_weight=each, rtd_weight=each)
        for name in ("mlm", "rtd"):
            found[each, name] = terms_and_gradients(model, loss, sentences, [name])
    for name in ("mlm", "rtd"):
        (term, gradients), (full, in_full) = found[weight, name], found[1.0, name]
        assert term[name] == pytest.approx(weight * full[name], rel=1e-12)
        assert any(not key.startswith("model.") and g.abs().sum() > 0 for key, g in in_full.items())
        assert_equal(gradients, in_full, weight)


def test_a_contrastive_weight_of_0_keeps_the_other_terms(model, sentences):
    found = {}
    for weight in (1.0, 0.25, 0.0):
        torch.manual_seed(1)
        loss = InfoCSELoss(model, mlm_weight=0.5, contrastive_weight=weight, head=None)
        found[weight] = terms_and_gradients(model, loss, sentences, ["mlm"])
    assert found[0.25][0]["contrastive"] == pytest.approx(0.25 * found[1.0][0]["contrastive"])
    assert list(found[0.0][0]) == ["mlm"]
    assert_equal(encoders(found[0.0][1]), encoders(found[1.0][1]))


def test_without_detach_the_lower_layers_learn_from_the_masked_text(model, sentences):
    found = {}
    for detach in (True, False):
        torch.manual_seed(1)
        loss = InfoCSELoss(model, mlm_weight=0.5, detach=detach)
        found[detach] = terms_and_gradients(model, loss, sentences, ["mlm"])
    assert found[False][0]["mlm"] == pytest.approx(found[True][0]["mlm"], rel=1e-12)  # the copy is still like it
    lowest, highest = (f"model.0.model.encoder.layer.{layer}.output.dense.weight" for layer in (0, 3))
    detached, live = (encoders(found[detach][1]) for detach in (True, False))
    torch.testing.assert_close(live[highest], detached[highest])
    assert (live[lowest] - detached[lowest]).abs().max() > 1e-3 * detached[lowest].abs().max()
    assert not any(key.startswith("auxiliary.encoder.encoder.layer.0") for key in found[False][1])


@pytest.mark.parametrize("head", ["projector", "tanh", None])
@pytest.mark.parametrize("loss_class", [InfoCSELoss, DiffCSELoss])
def test_the_networks_read_the_encoders_vector_and_diffcse_the_heads(model, sentences, loss_class, head, monkeypatch):
    options = {"mlm_weight": 0.5} if loss_class is InfoCSELoss else {}
    loss = loss_class(model, head=head, rtd_weight=0.5, **options).double()
    loss.group_by_length = False
    networks, given = [loss.detector, *([loss.auxiliary] if options else [])], []
    for network in networks:
        run = network.forward
        monkeypatch.setattr(network, "forward", lambda texts, h, *a, run=run: given.append(h) or run(texts, h, *a))
    batch = model.preprocess(sentences)
    loss([dict(batch)])
    expected = torch.cat([model(dict(batch))["sentence_embedding"]] * 2)
    if loss_class is DiffCSELoss and head is not None:
        expected = loss.head(expected)
    assert len(given) == len(networks)
    for found in given:
        torch.testing.assert_close(found, expected)


def test_with_only_the_detection_term_the_loss_is_diffcse(model, sentences):
    torch.manual_seed(1)
    infocse = InfoCSELoss(model, mlm_weight=0, head=None, rtd_weight=0.3)
    diffcse = DiffCSELoss(model, head=None, rtd_weight=0.3)
    diffcse.detector = infocse.detector
    found, gradients = terms_and_gradients(model, infocse, sentences)
    expected, reference = terms_and_gradients(model, diffcse, sentences)
    assert found == pytest.approx(expected, rel=1e-12)
    assert expected["rtd"] > 0.01
    assert_equal(encoders(gradients), encoders(reference))


def test_diffcse_by_hand(model, sentences):
    loss = DiffCSELoss(model, rtd_weight=0.3).double()
    loss.group_by_length = False
    batch = model.preprocess(sentences)
    replaced, replace = [], loss.detector.replace
    loss.detector.replace = lambda *args: replaced.append(replace(*args)) or replaced[-1]
    torch.manual_seed(3)
    terms = loss([dict(batch)])
    texts = {key: torch.cat([batch[key]] * 2) for key in ("input_ids", "attention_mask")}
    (edited,) = replaced
    projected = loss.head(torch.cat([model(dict(batch))["sentence_embedding"]] * 2))
    hidden, found = loss.detector.discriminator.encoder, []
    for row in range(len(edited)):  # one by one, without padding
        length = int(texts["attention_mask"][row].sum())
        embedded = hidden.embeddings(edited[row : row + 1, :length])
        states = torch.cat([projected[row][None, None], embedded[:, 1:]], dim=1)
        for layer in hidden.encoder.layer:
            states = layer(states)
        logits = loss.detector.classifier(states[0])
        changed = edited[row, :length] != texts["input_ids"][row, :length]
        for scores, answer in zip(logits, changed, strict=True):
            found.append((scores.logsumexp(0) - scores[int(answer)]).item())
    assert len(found) == int(texts["attention_mask"].sum())
    assert terms["rtd"].item() == pytest.approx(0.3 * sum(found) / len(found), rel=1e-9)


def test_arguments_that_contradict_a_saved_auxiliary_network_are_refused(build, model, sentences, tmp_path):
    stage1 = AuxiliaryMLMPretrainingLoss(model, split_layer=1, extra_layers=2)
    stage1.save_auxiliary(tmp_path / "aux")
    loss = InfoCSELoss(model, auxiliary=tmp_path / "aux", mlm_weight=0.5)
    same = InfoCSELoss(model, auxiliary=stage1.trained_auxiliary(), mlm_weight=0.5)
    switch_off_dropout(loss.auxiliary)
    switch_off_dropout(same.auxiliary)
    assert (loss.auxiliary.split_layer, loss.auxiliary.extra_layers) == (1, 2)
    assert loss.get_config_dict()["auxiliary"] == str(tmp_path / "aux")
    values = [terms_and_gradients(model, each, sentences)[0]["mlm"] for each in (loss, same)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert values[0] > 0.1
    made, untied = stage1.trained_auxiliary(), AuxiliaryMLM.from_encoder(model[0].model)
    for auxiliary, name, value in ((tmp_path / "aux", "split_layer", 2), (made, "split_layer", 2),
                                   (tmp_path / "aux", "extra_layers", 1), (made, "extra_layers", 1),
                                   (untied, "tied_head", True), (untied, "lower_dropout", True)):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} is .*, not {value}"):
            InfoCSELoss(model, auxiliary=auxiliary, **{name: value})
    with pytest.raises(ValueError, match="auxiliary does not fit"):
        InfoCSELoss(build("roberta"), auxiliary=made)


def test_a_resumed_run_does_not_need_the_folder_of_stage_1(build, tmp_path):
    model = build("bert-mlm")
    AuxiliaryMLMPretrainingLoss(model).save_auxiliary(tmp_path / "stage1")
    saved = InfoCSELoss(model, auxiliary=tmp_path / "stage1")
    with torch.no_grad():
        saved.head.linear.weight.fill_(0.5)
    save_loss_state(saved, tmp_path / "run")
    restored = InfoCSELoss(model)
    load_loss_state(restored, tmp_path / "run")
    assert torch.equal(restored.head.linear.weight, saved.head.linear.weight)


def test_the_generator_uses_the_trained_head(build, tmp_path):
    """An encoder whose checkpoint has no head, after stage 1."""
    plain = build("bert")
    stage1 = AuxiliaryMLMPretrainingLoss(plain)
    with torch.no_grad():
        stage1.network.head.network.cls.predictions.transform.dense.weight.fill_(0.5)
    stage1.save_auxiliary(tmp_path)
    loss = InfoCSELoss(plain, auxiliary=tmp_path, rtd_weight=0.1)
    dense = loss.detector.generator_head.network.cls.predictions.transform.dense.weight
    assert (dense == 0.5).all()
    assert not dense.requires_grad
    assert loss.auxiliary.head.source == "checkpoint"
    assert all(p.requires_grad for p in loss.auxiliary.head.parameters())


def test_frozen_layers_have_no_gradient_and_no_optimizer_state(build, sentences, tmp_path):
    model = build("bert-mlm")
    loss = InfoCSELoss(model, mlm_weight=0.1, rtd_weight=0.1)
    arguments = arguments_of(tmp_path, max_steps=2, save_strategy="no")
    trainer = SentenceTransformerTrainer(model, arguments, text_dataset(sentences), loss=loss)
    trainer.train()
    network, detector = loss.auxiliary.encoder, loss.detector
    frozen = [
        *network.embeddings.parameters(),
        *(p for layer in get_layers(network)[:2] for p in layer.parameters()),
        *detector.generator.parameters(),
        *detector.generator_head.parameters(),
    ]
    state = trainer.optimizer.state
    assert len(frozen) > 50
    assert len(state) > 100
    assert not any(p in state or p.grad is not None or p.requires_grad for p in frozen)
    reached = {id(p) for p in model.parameters()}  # all that DDP wraps
    assert not any(id(p) in reached for part in (loss.auxiliary, detector) for p in part.parameters())
    assert all(p in state for p in (*get_layers(network)[2].parameters(), *detector.classifier.parameters()))
    assert detector.generator.training  # its dropout is on, as in the authors' code


def test_arguments_reach_the_networks(build):
    model = build("bert-mlm")
    assert InfoCSELoss(model, mask_rate=0.3).masking.rate == 0.3
    assert (InfoCSELoss(model).masking.rate, AuxiliaryMLMPretrainingLoss(model).masking.rate) == (0.4, 0.15)
    assert DiffCSELoss(model, mask_rate=0.2).detector.masking.rate == 0.2
    network = InfoCSELoss(model, lower_dropout=True, tied_head=True).auxiliary
    assert (network.lower_dropout, network.head.tied) == (True, True)
