"""What saves time or memory changes no number: value and gradient are those of the plain pass."""

from __future__ import annotations

import re
import traceback

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from torch.utils._python_dispatch import TorchDispatchMode

from st_contrastive import AuxiliaryMLMPretrainingLoss, InfoCSELoss, SimCSELoss, TwinsLoss, text_dataset
from st_contrastive.encoder import passes
from st_contrastive.encoder.passes import cheapest_groups
from st_contrastive.encoder.token_batch import CorruptedTokens
from tests.cases import CASES, ONE_OF_EACH, Standardised, build_loss, columns, crossed, switch_off_dropout

LONG = ["a rather long sentence of many words that is cut nowhere at all", "short", "it rains", "a b c d e f g h i j"]


def gradients(loss, batch, steps=1):
    """The last step's value, all gradients, and the buffers behind it."""
    loss.zero_grad()
    for step in range(steps):
        torch.manual_seed(7 + step)  # what is masked, replaced and paired
        value = loss([dict(column) for column in batch])
        value.total.backward()
    found = {name: p.grad.clone() for name, p in loss.named_parameters() if p.grad is not None}
    return value.total.detach(), found, {name: b.clone() for name, b in loss.named_buffers()}


WAYS = {"by length": (True, None), "mini-batches": (False, 3), "single rows": (True, 1)}


@pytest.mark.parametrize(
    ("name", "way"),
    crossed(
        CASES, WAYS, quick=lambda name, way: name in ONE_OF_EACH and (way == "mini-batches") == (name != "infocse")
    ),
)
def test_value_gradient_and_state_do_not_depend_on_the_passes(build, sentences, no_pass_costs, name, way):
    by_length, mini_batch_size = WAYS[way]
    model = build(dropout=False)
    torch.manual_seed(1)
    loss = build_loss(name, model).double()
    switch_off_dropout(loss)
    count = []
    model.register_forward_pre_hook(lambda *_: count.append(1))
    batch = columns(model, [*sentences, *LONG], name)
    start = {key: value.clone() for key, value in loss.state_dict().items()}
    loss.group_by_length = False
    expected = gradients(loss, batch, steps=2)
    plain = len(count)
    loss.load_state_dict(start)
    loss.group_by_length, loss.mini_batch_size = by_length, mini_batch_size
    count.clear()
    torch.testing.assert_close(gradients(loss, batch, steps=2), expected, rtol=1e-7, atol=1e-10)
    assert len(count) > plain
    assert expected[0].abs() > 0
    assert len(expected[1]) > 20


@pytest.mark.parametrize(
    "name",
    crossed(["simcse", "simcse-mlm-pairs", "twins", "infocse", "diffcse"], quick=("simcse", "twins").__contains__),
)
def test_a_mini_batch_is_encoded_again_under_the_same_dropout(build, sentences, monkeypatch, name):
    """Under accumulation and a scaled loss: what the loss owns gets the gradient of the scaled loss too."""
    loss = build_loss(name, build(), mini_batch_size=2).double()
    start = {key: value.clone() for key, value in loss.state_dict().items()}

    def accumulated():
        loss.load_state_dict(start)
        loss.zero_grad()
        for part in (sentences, LONG):
            torch.manual_seed(3)
            (loss(columns(loss.model, part, name)).total * 2.0**16 / 2).backward()
        return {key: p.grad.clone() for key, p in loss.named_parameters() if p.grad is not None}

    found = accumulated()
    monkeypatch.setattr(passes, "run_checkpointed", lambda function, parts: function(*parts))
    torch.testing.assert_close(found, accumulated(), rtol=1e-9, atol=1e-6)
    assert len(found) > 20


def test_no_activation_of_a_mini_batch_is_kept(build, sentences):
    """What autograd keeps does not grow with the rows, but for their ids, vectors and scores."""

    def held(mini_batch_size, rows):
        loss = SimCSELoss(build(), mini_batch_size=mini_batch_size)
        batch = [loss.model.preprocess((sentences * 20)[:rows])]
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            loss(batch)
        return sum(kept)

    assert held(None, 64) - held(None, 32) > 20 * (held(4, 64) - held(4, 32)) > 0


def test_mini_batches_with_mixed_precision(build, sentences, tmp_path, monkeypatch):
    """The run's precision is there in the second pass too: the same steps as without recomputation."""

    def trained():
        torch.manual_seed(0)
        model = build()
        loss = InfoCSELoss(model, mlm_weight=0.1, mini_batch_size=2)
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=3, gradient_accumulation_steps=2, bf16=True,
            use_cpu=True, save_strategy="no", report_to="none", seed=1, dataloader_pin_memory=False,
        )  # fmt: skip
        SentenceTransformerTrainer(model, arguments, text_dataset(sentences * 4), loss=loss).train()
        return {name: value.clone() for name, value in loss.state_dict().items()}

    twice = trained()
    monkeypatch.setattr(passes, "run_checkpointed", lambda function, parts: function(*parts))
    torch.testing.assert_close(twice, trained(), rtol=1e-3, atol=1e-4)


def test_mini_batches_inside_matryoshka_loss(build, sentences, no_pass_costs):
    """Each of Matryoshka's widths gets the pass as it was."""
    found = []
    for by_length in (False, True):
        model = build(dropout=False)
        loss = SimCSELoss(model, head=None)
        loss.group_by_length = by_length
        value = MatryoshkaLoss(model, loss, [32, 16])([model.preprocess(sentences)], None)
        value.backward()
        found.append((value.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    torch.testing.assert_close(*found)
    loss = TwinsLoss(model, queue_batches=0)
    outer, texts = MatryoshkaLoss(model, loss, [32, 16]), [model.preprocess(sentences)]
    outer(texts, None)
    loss.train_pooling = "mean"  # of tokens, which are never cut
    with pytest.raises(ValueError, match="of a fixed width"):
        outer(texts, None)


class Spread(torch.nn.Module):
    """A user's module behind the pooling, which reads the tokens too."""

    def forward(self, features):
        spread = features["token_embeddings"].std(dim=1)
        return {**features, "sentence_embedding": features["sentence_embedding"] + spread}


class OwnPooling(Pooling):
    """A user's own pooling, under the name of a known mode."""

    def forward(self, features):
        return {**features, "sentence_embedding": features["token_embeddings"].sum(dim=1)}


UNUSUAL = {
    "reads tokens behind the pooling": lambda model: model.append(Spread()),
    "a pooling of its own": lambda model: model.__setitem__(1, OwnPooling(32, "cls")),
    "BatchNorm behind the pooling": lambda model: model.append(Standardised()),
    "a convolution over the tokens": lambda model: (model.insert(1, CNN(32, 16, [1, 3])),
                                                    model.__setitem__(2, Pooling(32, "mean"))),
    "DataParallel": lambda model: None,
}  # fmt: skip


@pytest.mark.parametrize("unusual", UNUSUAL)
@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_models_with_unusual_modules(build, sentences, no_pass_costs, unusual, mini_batch_size):
    """Where padding counts, no row is cut; value and gradient are the plain path's."""
    found = []
    for plain in (True, False):
        model = build(dropout=False)
        torch.manual_seed(4)
        UNUSUAL[unusual](model)
        model.train()
        if mini_batch_size and "BatchNorm" in unusual:
            return  # refused by the constructor
        loss = SimCSELoss(model, head=None, mini_batch_size=None if plain else mini_batch_size)
        loss.group_by_length = not plain
        if unusual == "DataParallel":
            loss.model = torch.nn.DataParallel(model)
        found.append(gradients(loss, [model.preprocess([*sentences, *LONG])]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    assert len(found[0][1]) > 10


def test_prompts_and_left_padded_masks(build, sentences, no_pass_costs):
    model = build(dropout=False)
    model[1].include_prompt = False
    loss = SimCSELoss(model, head=None)
    prompted, unprompted = model.preprocess(sentences, prompt="the red "), model.preprocess(sentences)
    late = model.preprocess(sentences)
    late["attention_mask"][1, 0] = 0
    for batch in ([unprompted, prompted], [prompted, unprompted], [late], [unprompted, late]):
        found = gradients(loss, batch)
        loss.group_by_length = False
        torch.testing.assert_close(found, gradients(loss, batch), rtol=1e-4, atol=1e-6)
        loss.group_by_length = True


def test_losses_that_read_layers_refuse_data_parallel(build, sentences):
    """DataParallel's threads would write the states of all replicas into one place."""
    model = build()
    batch = [model.preprocess(sentences), model.preprocess(sentences[::-1])]
    for loss, count in ((TwinsLoss(model, margin_from="embeddings"), 2), (AuxiliaryMLMPretrainingLoss(model), 1)):
        loss.model = torch.nn.DataParallel(model)
        with pytest.raises(ValueError, match="reads the states of single layers, which DataParallel's replicas would"):
            loss(batch[:count])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 100))
def test_groups_contain_every_row_once_and_cost_least(lengths, pass_cost):
    groups = cheapest_groups(lengths, pass_cost)
    assert sorted(row for rows in groups for row in rows) == list(range(len(lengths)))

    def cost(groups):
        return sum(pass_cost + len(rows) * max(lengths[row] for row in rows) for rows in groups)

    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    for count in (1, 2, 3, 4, 6, 8):
        most = -(-len(order) // count)
        assert cost(groups) <= cost([order[start : start + most] for start in range(0, len(order), most)])


def test_short_titles_are_not_padded_to_their_bodies(build, sentences):
    """Two columns of different lengths go through the encoder one after the other, with the same result."""
    model = build(dropout=False)
    loss = SimCSELoss(model, head=None).double()
    shapes = []
    model.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0]["input_ids"].shape)))
    titles = model.preprocess(sentences)
    bodies = model.preprocess([" ".join([text] * 12) for text in sentences])
    rows, widths = len(sentences), [part["input_ids"].shape[1] for part in (titles, bodies)]
    found = gradients(loss, [titles, bodies])
    assert sum(count * width for count, width in shapes) <= rows * sum(widths)
    shapes.clear()
    loss.group_by_length = False
    torch.testing.assert_close(found, gradients(loss, [titles, bodies]), rtol=1e-7, atol=1e-10)
    assert shapes == [(2 * rows, widths[1])]


#: Who may have asked for an operation: this package, or those that it calls.
PACKAGES = re.compile(r"/(st_contrastive|transformers|sentence_transformers)/")


class Waits(TorchDispatchMode):
    """Notes every operation that waits for the device, and who asked for it, outside of the encoders."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "item", "unique", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices)
        if name in self.WAITING or by_mask:
            asked = [frame for frame in traceback.extract_stack() if PACKAGES.search(frame.filename)]
            # transformers' own masks look whether anything is padded.
            if asked and "st_contrastive" in asked[-1].filename:
                self.found.append(asked[-1].name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_step_synchronises_only_for_the_chosen_positions(build, sentences, name):
    """As on a GPU, where rows are not grouped by length: a tensor whose size depends on values must be waited for."""
    loss = build_loss(name, build())
    loss.group_by_length = False
    batch = columns(loss.model, sentences, name)
    loss([dict(column) for column in batch]).backward()  # the first step looks at the run
    with Waits() as waits:
        loss([dict(column) for column in batch]).backward()
    assert set(waits.found) <= {"positions"}
    with Waits() as waits:
        CorruptedTokens(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)).positions()
    assert waits.found == ["positions"]
