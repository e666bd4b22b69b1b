from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss, SoftmaxLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

import st_contrastive as stc
from st_contrastive.training import LossStateError, load_loss_state, save_loss_state
from st_contrastive.training.loss_state import load_record
from tests.cases import TRAINED_CASES
from tests.losses_of_ones_own import Passing

FILE = "loss_state.safetensors"


def owned(loss):
    return {name: value.clone() for name, value in loss.state_dict().items() if not name.startswith("model.")}


def assert_same(first, second):
    assert set(first) == set(second)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("method", TRAINED_CASES)
def test_a_saved_state_is_restored(made, tmp_path, method):
    loss, data = made(method)
    columns = [name for name in data.column_names if name != "label"]
    loss([loss.model.preprocess(data[name][:]) for name in columns]).backward()  # fills a queue
    derived = set(getattr(loss, "derived_tensors", ()))
    with torch.no_grad():
        for name, parameter in loss.named_parameters():
            if not name.startswith("model.") and name not in derived:
                parameter += 0.01 * torch.randn_like(parameter)
    save_loss_state(loss, tmp_path / "new" / "folder")
    before = owned(loss)
    assert bool(before) == bool(loss.owned_modules())
    again, _ = made(method)
    load_loss_state(again, tmp_path / "new" / "folder")
    assert_same(before, owned(again))
    assert set(load_file(tmp_path / "new" / "folder" / FILE)) == set(before) - derived  # nothing of the encoder


def test_copies_of_the_encoders_layers_are_not_saved(made, tmp_path):
    """Stage 1 keeps a copy of the encoder's lower layers, which training neither reads nor changes."""
    loss = made("pretraining")[0]
    save_loss_state({"a": loss, "b": MatryoshkaLoss(loss.model, loss, [32])}, tmp_path)
    saved = set(load_file(tmp_path / FILE))
    assert not any("embeddings" in name or "layer.0." in name for name in saved)
    assert any(".head." in name for name in saved)
    assert sum(".layer." in name for name in saved) == 2 * 16  # the upper layer, twice


def test_several_losses_and_losses_of_sentence_transformers(made, tmp_path):
    first, _ = made("twins")
    model = first.model
    softmax = SoftmaxLoss(model, 32, num_labels=3)
    wrapped = MatryoshkaLoss(model, stc.SimCSELoss(model, head=None), matryoshka_dims=[32, 16])
    losses = {"de.en": first, "nli": softmax, "plain": wrapped}
    save_loss_state(losses, tmp_path)
    names = {name.rpartition("/")[2] for name in load_file(tmp_path / FILE) if "nli" in name}
    assert names == {"classifier.weight", "classifier.bias"}
    expected = softmax.classifier.weight.detach().clone()
    nn.init.zeros_(softmax.classifier.weight)
    load_loss_state(losses, tmp_path)
    assert torch.equal(softmax.classifier.weight, expected)
    with pytest.raises(LossStateError, match=r"de.en/ is None, saved with 'TwinsLoss'"):
        load_loss_state({"other": first}, tmp_path)


@pytest.mark.parametrize(
    ("saved", "read", "message"),
    [
        (("conisi", {}), ("simcse", {}), "the loss is 'SimCSELoss', saved with 'ConIsILoss'"),
        (("conisi", {}), ("conisi", {"temperature": 0.2}), "temperature is 0.2, saved with 0.1"),
        (("twins", {}), ("twins", {"queue_batches": 3, "forgetting_rate": 0.2}), "queue_batches is 3, saved with 2"),
        (("infocse", {}), ("infocse", {"head": None}), "head is None, saved with 'tanh'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(made, tmp_path, saved, read, message):
    save_loss_state(made(saved[0], **saved[1])[0], tmp_path)
    loss, _ = made(read[0], **read[1])
    before = owned(loss)
    with pytest.raises(LossStateError, match=message):
        load_loss_state(loss, tmp_path)
    assert_same(before, owned(loss))


def test_a_loss_inside_another_loss_is_compared_too(build, tmp_path):
    """Also a loss of a user's own, whose base takes the rest of its arguments."""

    def wrapped(scale):
        model = build()
        return MatryoshkaLoss(model, MultipleNegativesRankingLoss(model, scale=scale), [32, 16])

    save_loss_state(wrapped(20), tmp_path)
    with pytest.raises(LossStateError, match=r"loss\.scale is 5\.?0?, saved with 20"):
        load_loss_state(wrapped(5), tmp_path)
    save_loss_state(Passing(build(), {(1, 2): 3}, temperature=0.1, mini_batch_size=4), tmp_path)
    load_loss_state(Passing(build(), {(1, 2): 3}, temperature=0.1, mini_batch_size=2), tmp_path)
    with pytest.raises(LossStateError, match=r"temperature is 0\.2, saved with 0\.1"):
        load_loss_state(Passing(build(), {(1, 2): 3}, temperature=0.2), tmp_path)


def test_the_state_of_another_encoder_is_refused(made, tmp_path, checkpoint):
    loss, _ = made("conisi")
    save_loss_state({"a": loss, "b": loss}, tmp_path)
    modules = [Transformer(str(checkpoint("bert"))), Pooling(32, "cls"), Dense(32, 24)]
    first, second = loss, stc.ConIsILoss(SentenceTransformer(modules=modules, device="cpu"))
    with torch.no_grad():
        first.predictor.linear.weight.add_(1)
    before = owned(first), owned(second)
    with pytest.raises(LossStateError, match=r"another encoder.*predictor.linear.weight"):
        load_loss_state({"a": first, "b": second}, tmp_path)
    assert_same(before[0], owned(first))
    assert_same(before[1], owned(second))


def test_arguments_that_a_resumed_run_may_change(made, tmp_path, build):
    save_loss_state(made("infocse", mini_batch_size=4)[0], tmp_path)
    load_loss_state(made("infocse")[0], tmp_path)
    save_loss_state(stc.TwinsLoss(build(), queue_batches=np.int64(3), temperature=np.float64(0.05)), tmp_path)
    load_loss_state(stc.TwinsLoss(build(), queue_batches=3, temperature=0.05), tmp_path)


def test_arguments_of_a_loss_in_a_loss(build, tmp_path):
    def around(temperature, width=32):
        model = build()
        return MatryoshkaLoss(model, stc.TwinsLoss(model, temperature=temperature), [width])

    save_loss_state(around(0.05, np.int64(32)), tmp_path)
    load_loss_state(around(0.05), tmp_path)
    with pytest.raises(LossStateError, match=r"loss.temperature is 0.5, saved with 0.05"):
        load_loss_state(around(0.5), tmp_path)


def test_missing_damaged_and_foreign_files(made, tmp_path):
    loss, _ = made("twins")
    with pytest.raises(OSError, match="can't be read: No such file"):
        load_loss_state(loss, tmp_path)
    save_loss_state(loss, tmp_path)
    good = (tmp_path / FILE).read_bytes()
    for damaged in (good[:-3], good[:40], b""):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(OSError, match="can't be read"):
            load_loss_state(loss, tmp_path)
    save_file(owned(loss), tmp_path / FILE)
    with pytest.raises(LossStateError, match="not a loss state of st_contrastive"):
        load_loss_state(loss, tmp_path)


def test_a_record_is_read_without_the_tensors(made, tmp_path):
    """A file whose tensor has a type that PyTorch lacks."""
    loss, _ = made("twins")
    save_loss_state(loss, tmp_path, record={"rows": 3})
    content = (tmp_path / FILE).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    header = {
        "__metadata__": header["__metadata__"],
        "queue": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]},
    }
    encoded = json.dumps(header).encode()
    (tmp_path / FILE).write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"000")
    assert load_record(tmp_path) == {"rows": 3}
    with pytest.raises(OSError, match="can't be read"):
        load_loss_state(loss, tmp_path)


def test_another_fraternal_embedding_is_refused(build, german, tmp_path):
    """No checkpoint holds its matrix; another one with the same tokenizer would be trained on without a word."""

    def with_matrix(change):
        model = build()
        fraternal = stc.FraternalEmbedding.from_pretrained(german, model)
        with torch.no_grad():
            fraternal.weight[-1] += change
        return stc.TwinsLoss(model, fraternal=fraternal)

    save_loss_state(with_matrix(0), tmp_path)
    load_loss_state(with_matrix(0), tmp_path)
    with pytest.raises(LossStateError, match=r"fingerprint of fraternal\.weight is"):
        load_loss_state(with_matrix(0.1), tmp_path)
