from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import st_contrastive as stc
from st_contrastive.training import LossStateError, load_loss_state, save_loss_state
from tests.training.conftest import CASES

FILE = "loss_state.safetensors"

pytestmark = pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head")


def owned(loss):
    return {name: value.clone() for name, value in loss.state_dict().items() if not name.startswith("model.")}


def step(loss, data):
    columns = [name for name in data.column_names if name != "label"]
    loss([loss.model.preprocess(data[name][:]) for name in columns]).backward()
    with torch.no_grad():
        for name, parameter in loss.named_parameters():
            if parameter.requires_grad and not name.startswith("model."):
                parameter += 0.01 * torch.randn_like(parameter)


@pytest.mark.parametrize("method", CASES)
def test_what_is_saved_is_what_is_read(made, tmp_path, method):
    loss, data = made(method)
    step(loss, data)
    save_loss_state(loss, tmp_path / "new" / "folder")
    before = owned(loss)
    assert before
    torch.manual_seed(9)
    again, _ = made(method)
    load_loss_state(again, tmp_path / "new" / "folder")
    after = owned(again)
    assert set(after) == set(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    with safe_open(tmp_path / "new" / "folder" / FILE, framework="pt") as file:
        metadata = file.metadata()
        assert not any(name.startswith("model.") for name in file.keys())  # noqa: SIM118
    assert metadata["format"] == "1"
    described = json.loads(metadata["losses"])[""][""]
    assert described["class"] == type(loss).__name__
    assert described["config"]


def test_losses_by_name_and_any_loss_of_sentence_transformers(made, tmp_path):
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, SoftmaxLoss

    first, _ = made("twins")
    model = first.model
    softmax = SoftmaxLoss(model, 32, num_labels=3)
    wrapped = MatryoshkaLoss(model, stc.SimCSELoss(model, head=False, log_terms=False), matryoshka_dims=[32, 16])
    losses = {"de.en": first, "nli": softmax, "plain": wrapped}
    save_loss_state(losses, tmp_path)
    assert set(load_file(tmp_path / FILE)) == {
        "loss:de.en/queue.keys", "loss:de.en/queue.sizes", "loss:de.en/queue.head",
        "loss:nli/classifier.weight", "loss:nli/classifier.bias",
    }  # fmt: skip
    expected = softmax.classifier.weight.detach().clone()
    nn.init.zeros_(softmax.classifier.weight)
    load_loss_state(losses, tmp_path)
    assert torch.equal(softmax.classifier.weight, expected)
    with pytest.raises(ValueError, match=r"holds the losses named 'de.en', 'nli', 'plain'; the trainer has 'other'"):
        load_loss_state({"other": first}, tmp_path)


@pytest.mark.parametrize(
    ("saved", "read", "message"),
    [
        (("conisi", {}), ("simcse", {}), "the state of ConIsILoss, the loss is SimCSELoss"),
        (("conisi", {}), ("conisi", {"temperature": 0.2}), "temperature is 0.2, saved with 0.1"),
        (("twins", {}), ("twins", {"queue_batches": 3, "forgetting_rate": 0.2}), "queue_batches is 3, saved with 2"),
        (
            ("infocse", {}),
            ("infocse", {"mask_rate": 0.2, "ablation": stc.InfoCSEAblation(detach=False)}),
            "mask_rate is 0.2.*; detach is False",
        ),
        (("infocse", {}), ("infocse", {"head": None}), "head is None, saved with 'tanh'"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_taken(made, tmp_path, saved, read, message):
    save_loss_state(made(saved[0], **saved[1])[0], tmp_path)
    torch.manual_seed(4)
    loss, _ = made(read[0], **read[1])
    before = owned(loss)
    with pytest.raises(ValueError, match=message):
        load_loss_state(loss, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in owned(loss).items())


def test_arguments_of_a_loss_in_a_loss_and_names_of_any_kind(made, tmp_path):
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss

    model = made("simcse")[0].model

    def around(temperature):
        inner = stc.TwinsLoss(model, temperature=temperature, log_terms=False)
        return MatryoshkaLoss(model, inner, matryoshka_dims=[32, 16])

    save_loss_state(around(0.05), tmp_path)
    load_loss_state(around(0.05), tmp_path)
    with pytest.raises(LossStateError, match=r"TwinsLoss: temperature is 0.5, saved with 0.05"):
        load_loss_state(around(0.5), tmp_path)
    names = ["run:", "loss:", "beside", "a", "a/b", ""]
    losses = {name: stc.ConIsILoss(model) for name in names}
    expected = [loss.head.linear.weight.detach().clone() for loss in losses.values()]
    save_loss_state(losses, tmp_path)
    for loss in losses.values():
        nn.init.zeros_(loss.head.linear.weight)
    load_loss_state(losses, tmp_path)
    found = [loss.head.linear.weight for loss in losses.values()]
    assert all(torch.equal(new, old) for new, old in zip(found, expected, strict=True))


def test_another_encoders_state(made, tmp_path, checkpoint):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    save_loss_state(made("conisi")[0], tmp_path)
    modules = [Transformer(str(checkpoint("bert"))), Pooling(32, "cls"), Dense(32, 24)]
    loss = stc.ConIsILoss(SentenceTransformer(modules=modules, device="cpu"))
    with pytest.raises(ValueError, match=r"head.linear.weight has shape \(32, 32\), the loss's \(24, 24\).*more"):
        load_loss_state(loss, tmp_path)


def test_what_a_resumed_run_may_change(made, tmp_path):
    save_loss_state(made("infocse", mini_batch_size=4)[0], tmp_path)
    load_loss_state(made("infocse", log_terms=False)[0], tmp_path)


def test_missing_damaged_foreign_and_newer_files(made, tmp_path):
    loss, _ = made("twins")
    with pytest.raises(FileNotFoundError, match="holds no loss_state"):
        load_loss_state(loss, tmp_path)
    save_loss_state(loss, tmp_path)
    good = (tmp_path / FILE).read_bytes()
    tensors = load_file(tmp_path / FILE)
    with safe_open(tmp_path / FILE, framework="pt") as file:
        metadata = file.metadata()
    for damaged in (good[:-3], good[:40], b"", good[:-1] + b"\x77"):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(OSError, match="damaged"):
            load_loss_state(loss, tmp_path)
    save_file(tensors, tmp_path / FILE)
    with pytest.raises(ValueError, match="not a loss state of st_contrastive"):
        load_loss_state(loss, tmp_path)
    save_file(tensors, tmp_path / FILE, {**metadata, "format": "2"})
    with pytest.raises(ValueError, match=r"format 2.*upgrade"):
        load_loss_state(loss, tmp_path)


def test_what_can_not_be_written_leaves_what_was_there(made, tmp_path, monkeypatch):
    loss, _ = made("conisi")
    save_loss_state(loss, tmp_path)
    before = (tmp_path / FILE).read_bytes()

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("st_contrastive.training.loss_state.save_file", full)
    with pytest.raises(OSError, match=r"can't be written to .*No space left"):
        save_loss_state(loss, tmp_path)
    assert (tmp_path / FILE).read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE]
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(OSError, match="can't be written"):
        save_loss_state(loss, file)
    assert file.read_text() == "mine"


def test_numbers_of_numpy_are_numbers(build, tmp_path):
    """They are compared by value, and not by the name of their class."""
    save_loss_state(stc.TwinsLoss(build(), queue_batches=np.int64(3), temperature=np.float64(0.05)), tmp_path)
    load_loss_state(stc.TwinsLoss(build(), queue_batches=3, temperature=0.05), tmp_path)
    with pytest.raises(LossStateError, match=r"temperature is 0\.1, saved with 0\.05"):
        load_loss_state(stc.TwinsLoss(build(), temperature=np.float64(0.1)), tmp_path)
