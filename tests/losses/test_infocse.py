"""InfoCSE's arguments and DiffCSE beside it: what each of them changes, and what not."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from st_contrastive import (
    AuxiliaryMLMPretrainingLoss,
    CombinedLoss,
    DiffCSELoss,
    InfoCSEAblation,
    InfoCSELoss,
    SimCSELoss,
)
from st_contrastive.components import AuxiliaryMLM, ReplacedTokenDetector
from st_contrastive.encoder.layers import layers_of
from st_contrastive.methods import build_loss
from st_contrastive.objectives import replaced_tokens
from st_contrastive.training import load_loss_state, save_loss_state

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
]


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


@pytest.mark.parametrize("loss_class", [InfoCSELoss, DiffCSELoss])
@pytest.mark.parametrize("head", ["projector", "tanh", None])
def test_without_its_own_term_it_is_simcse_under_the_same_head(build, sentences, loss_class, head):
    model = build("bert-mlm").double()  # with dropout, of which a seed draws the same for both
    off = "mlm" if loss_class is InfoCSELoss else "rtd"
    loss = loss_class(model, **{f"{off}_weight": 0}, head=head)
    simcse = SimCSELoss(model, head=head is not None)
    if head == "tanh":
        simcse.head.load_state_dict(loss.head.state_dict())  # SimCSE's own head, with the same weights
    else:
        simcse.head = loss.head
    found, gradients = terms_and_gradients(model, loss, sentences)
    expected, reference = terms_and_gradients(model, simcse, sentences)
    assert found == {"contrastive": pytest.approx(expected["contrastive"], rel=1e-12), off: 0}
    assert expected["contrastive"] > 1e-3
    assert_equal(encoders(gradients), encoders(reference))
    own = {"projector": "head.inner.weight", "tanh": "head.linear.weight"}.get(head)
    if own is None:
        assert not any(name.startswith("head") for name in gradients)
        return
    assert gradients[own].abs().sum() > 0
    torch.testing.assert_close(gradients[own], reference[own])


def test_the_weight_scales_the_term_or_its_gradient_into_the_encoder(model, sentences):
    weight, found = 0.01, {}
    for weighting, mlm_weight in (("loss", weight), ("gradient", weight), ("loss", 1.0)):
        torch.manual_seed(1)
        loss = InfoCSELoss(
            model, weighting=weighting, mlm_weight=mlm_weight, ablation=InfoCSEAblation(rtd_weight=mlm_weight)
        )
        for names in (["mlm"], ["rtd"]):
            found[weighting, mlm_weight, names[0]] = terms_and_gradients(model, loss, sentences, names)
    for name in ("mlm", "rtd"):
        (literal, in_literal), (scaled, in_scaled), (full, in_full) = (
            found[weighting, w, name] for weighting, w in (("loss", weight), ("gradient", weight), ("loss", 1.0))
        )
        assert literal[name] == pytest.approx(weight * full[name], rel=1e-12)
        assert scaled[name] == pytest.approx(full[name], rel=1e-12)
        # What the encoder learns from is the same in both.
        assert_equal(encoders(in_scaled), encoders(in_literal))
        assert_equal(encoders(in_literal), encoders(in_full), weight)
        # The networks themselves learn at the full scale, or at the weight's.
        own = {"mlm": "auxiliary.head", "rtd": "detector.classifier"}[name]
        keys = [key for key in in_full if key.startswith(own)]
        assert keys
        assert all(in_full[key].abs().sum() > 0 for key in keys)
        for key in keys:
            torch.testing.assert_close(in_scaled[key], in_full[key], rtol=1e-9, atol=1e-14)
            torch.testing.assert_close(in_literal[key], weight * in_full[key], rtol=1e-9, atol=1e-14)


def test_without_contrast_the_auxiliary_term_alone_teaches(model, sentences):
    torch.manual_seed(1)
    both = InfoCSELoss(model, mlm_weight=0.5)
    torch.manual_seed(1)
    alone = InfoCSELoss(model, mlm_weight=0.5, ablation=InfoCSEAblation(contrastive_weight=0.0))
    terms, gradients = terms_and_gradients(model, alone, sentences)
    assert terms["contrastive"] == 0
    assert_equal(encoders(gradients), encoders(terms_and_gradients(model, both, sentences, ["mlm"])[1]))


def test_without_detaching_the_lower_layers_learn_from_the_masked_text(model, sentences):
    found = {}
    for detach in (True, False):
        torch.manual_seed(1)
        loss = InfoCSELoss(model, mlm_weight=0.5, ablation=InfoCSEAblation(detach=detach))
        found[detach] = terms_and_gradients(model, loss, sentences, ["mlm"])
    assert found[False][0]["mlm"] == pytest.approx(found[True][0]["mlm"], rel=1e-12)  # the copy is still like it
    lowest, highest = (f"model.0.model.encoder.layer.{layer}.output.dense.weight" for layer in (0, 3))
    detached, live = (encoders(found[detach][1]) for detach in (True, False))
    torch.testing.assert_close(live[highest], detached[highest])
    assert (live[lowest] - detached[lowest]).abs().max() > 1e-3 * detached[lowest].abs().max()
    assert not any(key.startswith("auxiliary.network.encoder.layer.0") for key in found[False][1])


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert", "deberta"])
def test_without_detaching_every_gradient_into_the_encoder_is_scaled(build, sentences, family):
    """Relative biases and last norms are shared too."""
    model, found = build(f"{family}-mlm", dropout=False).double(), {}
    for weighting in ("loss", "gradient"):
        torch.manual_seed(1)
        loss = InfoCSELoss(model, mlm_weight=1e-3, weighting=weighting, ablation=InfoCSEAblation(detach=False))
        found[weighting] = encoders(terms_and_gradients(model, loss, sentences, ["mlm"])[1])
    # ModernBERT's rotary angles are float32.
    assert_equal(found["gradient"], found["loss"], rtol=1e-5, atol=1e-11)


@pytest.mark.parametrize("head", ["projector", "tanh"])
@pytest.mark.parametrize("vector", ["encoder", "head"])
def test_the_networks_get_the_vector_that_was_asked_for(model, sentences, vector, head, monkeypatch):
    loss = InfoCSELoss(
        model, mlm_weight=0.5, head=head, ablation=InfoCSEAblation(rtd_weight=0.5, vector=vector)
    ).double()
    loss.saves_padding = False  # else the rows come in groups
    given = []
    states, detect = loss.auxiliary.states, loss.detector.forward
    monkeypatch.setattr(
        loss.auxiliary, "states", lambda features, places, h, **kw: given.append(h) or states(features, places, h, **kw)
    )
    monkeypatch.setattr(loss.detector, "forward", lambda texts, h, **kw: given.append(h) or detect(texts, h, **kw))
    batch = model.preprocess(sentences)
    loss([dict(batch)])
    vectors = model(dict(batch))["sentence_embedding"]
    expected = torch.cat([vectors, vectors])
    if vector == "head":
        expected = loss.head(expected)
    assert len(given) == 2
    for found in given:
        torch.testing.assert_close(found, expected)


def test_with_detection_alone_it_is_diffcse(model, sentences):
    torch.manual_seed(1)
    options = {"mlm_weight": 0, "weighting": "loss", "head": "projector"}
    infocse = InfoCSELoss(model, **options, ablation=InfoCSEAblation(rtd_weight=0.3))
    torch.manual_seed(1)
    diffcse = DiffCSELoss(model, rtd_weight=0.3, vector="encoder")
    diffcse.head, diffcse.detector = infocse.head, infocse.detector
    found, gradients = terms_and_gradients(model, infocse, sentences)
    expected, reference = terms_and_gradients(model, diffcse, sentences)
    assert found == {**{name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}, "mlm": 0}
    assert expected["rtd"] > 0.01
    assert_equal(encoders(gradients), encoders(reference))


def test_diffcse_by_hand(model, sentences):
    loss = DiffCSELoss(model, rtd_weight=0.3).double()
    batch = model.preprocess(sentences)
    torch.manual_seed(3)
    terms = loss([dict(batch)])
    texts = {key: torch.cat([batch[key]] * 2) for key in ("input_ids", "attention_mask", "token_type_ids")}
    torch.manual_seed(3)
    edited = loss.detector.replace(texts)
    projected = loss.head(torch.cat([model(dict(batch))["sentence_embedding"]] * 2))
    hidden, found = loss.detector.discriminator, []
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
    simcse = SimCSELoss(model)
    simcse.head = loss.head
    expected = simcse.double()([dict(batch)])["contrastive"].item()
    assert terms["contrastive"].item() == pytest.approx(expected, rel=1e-9)


def test_a_weight_of_zero_runs_no_network(model, sentences, monkeypatch):
    infocse, diffcse = InfoCSELoss(model, mlm_weight=0), DiffCSELoss(model, rtd_weight=0)
    assert infocse.detector is None
    monkeypatch.setattr(infocse.auxiliary, "states", None)
    monkeypatch.setattr(diffcse.detector, "forward", None)
    for loss in (infocse, diffcse):
        terms = loss.double()([model.preprocess(sentences)])
        assert terms["contrastive"].item() > 0


def test_gradient_norms(model, sentences):
    loss = InfoCSELoss(model, mlm_weight=1e-5, ablation=InfoCSEAblation(rtd_weight=0.1)).double()
    loss.saves_padding = False  # one pass, whose states are kept
    torch.manual_seed(2)
    norms = loss.gradient_norms(model.preprocess(sentences))
    assert set(norms) == {"contrastive", "mlm", "rtd"}
    assert all(p.grad is None for p in loss.parameters())
    captured = []

    def keep(module, args, output):
        output.retain_grad()
        captured.append(output)

    handle = layers_of(model[0].model)[-1].register_forward_hook(keep)
    torch.manual_seed(2)
    terms = loss([model.preprocess(sentences)])
    handle.remove()
    for name, weight in (("contrastive", 1.0), ("mlm", 1e-5)):
        captured[0].grad = None  # the model's own weighting has scaled it there
        terms[name].backward(retain_graph=True)
        assert norms[name] == pytest.approx(captured[0].grad.norm().item() / weight, rel=1e-6)
    assert norms["rtd"] > 0


class Elsewhere(torch.Tensor):
    """A tensor that any use but a move to a device gives away, as one on another device than the model."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to:
            return args[0].as_subclass(torch.Tensor)
        if function in (torch.Tensor.as_subclass, torch.Tensor.__repr__):
            return super().__torch_function__(function, types, args, kwargs or {})
        raise RuntimeError("Expected all tensors to be on the same device")


def test_gradient_norms_take_the_batch_to_the_model(build, sentences):
    model = build("bert-mlm")
    loss = InfoCSELoss(model)
    batch = {key: v.as_subclass(Elsewhere) if isinstance(v, torch.Tensor) else v
             for key, v in model.preprocess(sentences).items()}  # fmt: skip
    with pytest.raises(RuntimeError, match="same device"):
        loss([dict(batch)])
    given = dict(batch)
    assert min(loss.gradient_norms(batch).values()) > 0
    assert all(batch[key] is value for key, value in given.items())  # the caller's stays as it was


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gradient_norms_on_a_gpu(build, sentences):
    model = build("bert-mlm").to("cuda")
    assert min(InfoCSELoss(model).gradient_norms(model.preprocess(sentences)).values()) > 0


def test_an_auxiliary_network_by_path(model, sentences, tmp_path, build, no_dropout):
    stage1 = AuxiliaryMLMPretrainingLoss(model, split_layer=1, extra_layers=2)
    stage1.save_auxiliary(tmp_path / "aux")
    loss = InfoCSELoss(model, auxiliary=tmp_path / "aux", mlm_weight=0.5)
    same = InfoCSELoss(model, auxiliary=stage1.auxiliary, mlm_weight=0.5)
    no_dropout(loss.auxiliary)
    assert (loss.auxiliary.split_layer, loss.auxiliary.extra_layers) == (1, 2)
    assert loss.get_config_dict()["auxiliary"] == str(tmp_path / "aux")
    values = [terms_and_gradients(model, each, sentences)[0]["mlm"] for each in (loss, same)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert values[0] > 0.1
    for wrong in ({"split_layer": 2}, {"extra_layers": 1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .* asked for"):
            InfoCSELoss(model, auxiliary=str(tmp_path / "aux"), **wrong)
    with pytest.raises(ValueError, match="model_type is 'bert', the model has 'roberta'"):
        InfoCSELoss(build("roberta"), auxiliary=tmp_path / "aux")
    with pytest.raises(OSError, match="does not exist"):
        InfoCSELoss(model, auxiliary=tmp_path / "other")


def test_the_generator_takes_the_head_that_was_trained(model, build, tmp_path):
    """An encoder whose checkpoint has no head, after stage 1."""
    plain = build("bert")
    stage1 = AuxiliaryMLMPretrainingLoss(plain)
    stage1.save_auxiliary(tmp_path)
    with torch.no_grad():
        stage1.network.head.network.cls.predictions.transform.dense.weight.fill_(0.5)
    stage1.save_auxiliary(tmp_path)
    loss = InfoCSELoss(plain, auxiliary=tmp_path, ablation=InfoCSEAblation(rtd_weight=0.1))
    dense = loss.detector.generator_head.network.cls.predictions.transform.dense.weight
    assert (dense == 0.5).all()
    assert not dense.requires_grad
    assert all(p.requires_grad for p in loss.auxiliary.head.parameters())


def test_frozen_layers_have_no_gradient_and_no_optimizer_state(build, sentences, tmp_path):
    from sentence_transformers import SentenceTransformerTrainer

    from st_contrastive import text_dataset
    from tests.test_training_loops import trainer_arguments

    model = build("bert-mlm")
    loss = InfoCSELoss(model, mlm_weight=0.1, ablation=InfoCSEAblation(rtd_weight=0.1))
    trainer = SentenceTransformerTrainer(
        model=model, args=trainer_arguments(tmp_path), train_dataset=text_dataset(sentences), loss=loss
    )
    trainer.train()
    network, detector = loss.auxiliary.network, loss.detector
    frozen = [
        *network.embeddings.parameters(),
        *(p for layer in layers_of(network)[:2] for p in layer.parameters()),
        *detector.generator.parameters(),
        *detector.generator_head.parameters(),
    ]
    state = trainer.optimizer.state
    assert len(frozen) > 50
    assert len(state) > 100
    assert not any(p in state or p.grad is not None or p.requires_grad for p in frozen)
    reached = {id(p) for p in model.parameters()}  # all that DDP wraps
    assert not any(id(p) in reached for part in (loss.auxiliary, detector) for p in part.parameters())
    assert all(p in state for p in (*layers_of(network)[2].parameters(), *detector.classifier.parameters()))


def test_detection_loss_leaves_padding_out(model, sentences):
    loss = DiffCSELoss(model, rtd_weight=1.0).double()
    batch = model.preprocess(sentences)
    features = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    torch.manual_seed(0)
    logits, replaced = loss.detector(features, torch.randn(len(sentences), 32).double())
    value = replaced_tokens(logits, replaced, features["attention_mask"])
    torch.manual_seed(0)
    noise = torch.where(features["attention_mask"][..., None] == 0, 100.0, logits)
    assert replaced_tokens(noise, replaced, features["attention_mask"]).item() == pytest.approx(value.item())


def test_an_auxiliary_of_another_vocabulary(model, checkpoint):
    stranger = AuxiliaryMLM.from_encoder(AutoModel.from_pretrained(checkpoint("mpnet")))
    with pytest.raises(ValueError, match="family, vocabulary, width"):
        InfoCSELoss(model, auxiliary=stranger)


def test_arguments_beside_a_given_network_are_not_dropped(model):
    given = AuxiliaryMLM.from_encoder(model[0].model, split_layer=1, extra_layers=1)
    assert InfoCSELoss(model, auxiliary=given, split_layer=1).auxiliary is given
    for name, value in (("split_layer", 3), ("extra_layers", 2), ("tied_head", True), ("lower_dropout", True)):
        with pytest.raises(ValueError, match=f"{name} is .*, asked for {value}"):
            build_loss(InfoCSELoss, model, auxiliary=given, **{name: value})


def test_the_first_stage_keeps_its_network_to_itself(model):
    stage1 = AuxiliaryMLMPretrainingLoss(model)
    loss = InfoCSELoss(model, auxiliary=stage1.auxiliary)
    before = [p.clone() for p in loss.auxiliary.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    assert stage1.auxiliary is not loss.auxiliary
    assert all(torch.equal(a, b) for a, b in zip(before, loss.auxiliary.parameters(), strict=True))


def test_a_detector_of_another_encoder(model, checkpoint):
    from transformers import AutoTokenizer

    folder = checkpoint("mpnet-mlm")
    stranger = ReplacedTokenDetector.from_encoder(
        AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    )
    with pytest.raises(ValueError, match="detector was made from"):
        InfoCSELoss(model, ablation=InfoCSEAblation(rtd_weight=0.1, detector=stranger))
    with pytest.raises(ValueError, match="rtd_weight above 0"):
        InfoCSELoss(model, ablation=InfoCSEAblation(detector=stranger))


def test_a_frozen_encoder_leaves_the_detector_to_train_and_has_no_norms(model, sentences):
    model.requires_grad_(False)
    loss = InfoCSELoss(model, mlm_weight=0.1, ablation=InfoCSEAblation(rtd_weight=0.1)).double()
    assert all(p.requires_grad for p in loss.detector.discriminator.parameters())
    with pytest.raises(ValueError, match="no trainable parameter"):
        loss.gradient_norms(model.preprocess(sentences))


def test_gradient_norms_leave_the_statistics(build, sentences):
    model = build()
    loss = InfoCSELoss(model, head="projector")
    loss([model.preprocess(sentences)])
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    assert any("running_mean" in name for name in before)
    for mode in (True, False):
        model.train(mode)
        with torch.no_grad():
            assert loss.gradient_norms(model.preprocess(sentences))["mlm"] > 0
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


def test_gradient_norms_are_those_of_training(build, sentences):
    """A checkpoint is loaded in evaluation mode, in which both views of a sentence are the same."""
    model = build()
    loss = InfoCSELoss(model)
    batch = model.preprocess(sentences)
    found = []
    for mode in (True, False):
        model.train(mode)
        torch.manual_seed(0)
        found.append(loss.gradient_norms(batch))
        assert model.training is mode
        assert all(module.training is mode for module in model.modules())
    assert found[0] == found[1]
    assert found[0]["contrastive"] > 0


def test_gradient_norms_that_fail_leave_the_running_statistics(model, sentences, monkeypatch):
    loss = InfoCSELoss(model.train(), mlm_weight=0.1, head="projector").double()
    before = {name: value.clone() for name, value in loss.named_buffers()}

    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(loss, "masked_lm", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        loss.gradient_norms(model.preprocess(sentences))
    assert any("running_mean" in name for name in before)
    for name, value in loss.named_buffers():
        assert torch.equal(value, before[name]), name


def test_the_contrastive_weight_scales_its_term(build, sentences):
    model, found = build(dropout=False), []
    for weight in (1.0, 0.25):
        loss = InfoCSELoss(model, head=None, ablation=InfoCSEAblation(contrastive_weight=weight))
        found.append(loss([model.preprocess(sentences)])["contrastive"].item())
    assert found[0] > 0
    assert found[1] == pytest.approx(0.25 * found[0])


def test_a_resumed_run_needs_no_folder_of_stage_1(build, tmp_path):
    model = build("bert-mlm")
    AuxiliaryMLMPretrainingLoss(model).save_auxiliary(tmp_path / "stage1")
    saved = InfoCSELoss(model, auxiliary=tmp_path / "stage1")
    with torch.no_grad():
        saved.head.linear.weight.fill_(0.5)
    save_loss_state(saved, tmp_path / "run")
    restored = InfoCSELoss(model)
    load_loss_state(restored, tmp_path / "run")
    assert torch.equal(restored.head.linear.weight, saved.head.linear.weight)


def test_arguments_reach_the_networks(build):
    model = build("bert-mlm")
    assert InfoCSELoss(model, mask_rate=0.3).masking.rate == 0.3
    assert CombinedLoss(model, mask_rate=0.3).masking.rate == 0.3
    first = AuxiliaryMLMPretrainingLoss(model, mask_rate=0.3, whole_words=True).masking
    assert (first.rate, first.whole_words) == (0.3, True)
    detector = DiffCSELoss(model, mask_rate=0.2, sampling=True).detector
    assert (detector.masking.rate, detector.sampling) == (0.2, True)
    network = InfoCSELoss(model, ablation=InfoCSEAblation(lower_dropout=True, tied_head=True)).auxiliary
    assert (network.lower_dropout, network.head.tied) == (True, True)


def test_the_detectors_weight_is_the_same_in_both_weightings(build, sentences, no_dropout):
    model, found = build("bert-mlm", dropout=False).double(), []
    for weighting in ("loss", "gradient"):
        torch.manual_seed(1)
        loss = DiffCSELoss(model, rtd_weight=0.01, head=None, weighting=weighting).double()
        no_dropout(loss)
        loss.zero_grad()
        torch.manual_seed(2)
        loss([model.preprocess(sentences)])["rtd"].backward()
        found.append(model[0].model.encoder.layer[0].output.dense.weight.grad.clone())
    assert found[0].abs().sum() > 0
    torch.testing.assert_close(found[0], found[1])
