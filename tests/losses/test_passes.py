"""What saves time or memory changes no number: value and gradient are those of the plain pass."""

from __future__ import annotations

import math
import re
import traceback

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BigBirdConfig, BigBirdModel

from st_contrastive import AuxiliaryMLMPretrainingLoss, SimCSELoss, TwinsAblation, TwinsLoss
from st_contrastive.encoder import encode, encoder_of, require_embeddings_as_input, wrapper_chain
from st_contrastive.encoder import passes as _passes
from st_contrastive.encoder.layers import can_be_narrowed
from st_contrastive.encoder.model import Wrapping
from st_contrastive.encoder.rows import CorruptedTokens, TanhHead, cheapest_chunks, chunks
from tests.conftest import Standardised
from tests.contracts.test_losses import CASES, ONE_OF_EACH, columns
from tests.selection import crossed

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
]

LONG = [
    "a rather long sentence of many words that is cut nowhere at all",
    "short",
    "it rains",
    "a b c d e f g h i j k l",
]


def plain(loss):
    loss.saves_padding, loss.narrows_last_layer, loss.mini_batch_size = False, False, None
    return loss


def padded_apart(loss):
    loss.saves_padding = True


def last_layer_narrowed(loss):
    loss.narrows_last_layer = True


def mini_batches(loss):
    loss.mini_batch_size = 3


def everything(loss):
    loss.saves_padding, loss.narrows_last_layer, loss.mini_batch_size = None, True, 1


WAYS = (padded_apart, last_layer_narrowed, mini_batches, everything)


def gradients(loss, batch, steps=1):
    """The last step's value, all gradients, and the buffers behind it."""
    loss.zero_grad()
    for step in range(steps):
        torch.manual_seed(7 + step)  # what is masked, replaced and paired
        value = loss([dict(column) for column in batch])
        value.total.backward()
    found = {name: p.grad.clone() for name, p in loss.named_parameters() if p.grad is not None}
    return value.total.detach(), found, {name: b.clone() for name, b in loss.named_buffers()}


def same(one, other, **tolerances):
    for name, (a, b) in enumerate(zip(one, other, strict=True)):
        if isinstance(a, dict):
            assert a.keys() == b.keys()
            for key in a:
                torch.testing.assert_close(a[key], b[key], msg=lambda text, key=key: f"{key}: {text}", **tolerances)
        else:
            torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}", **tolerances)


#: One of each kind goes each way by itself, some more go all ways at once.
APART = ("simcse-pairs", "simcse-mlm", "conisi-given", "twins", "infocse-rtd")
AT_ONCE = ("simcse", "conisi-other", "twins-own", "infocse-no-detach", "diffcse", "pretraining")
TAKEN = [
    *crossed(APART, WAYS, quick=lambda case, way: (case == "infocse-rtd") != (way is everything)),
    *crossed(AT_ONCE, [everything], quick=lambda case, _: case in ("simcse", "pretraining")),
]


@pytest.mark.parametrize(("case", "way"), TAKEN)
def test_value_and_gradient_are_the_plain_paths(build, no_dropout, sentences, monkeypatch, case, way):
    loss_class, options, count, _ = CASES[case]
    options = {name: value for name, value in options.items() if name != "sampling"}  # drawn as the passes come
    model = build(dropout=False)
    torch.manual_seed(1)
    loss = loss_class(model, **options).double()
    no_dropout(loss)
    monkeypatch.setattr(_passes, "cheapest_chunks", lambda lengths: cheapest_chunks(lengths, pass_cost=0))
    passes = []
    original = encode
    monkeypatch.setattr(_passes, "encode", lambda *args, **kw: passes.append(1) or original(*args, **kw))
    batch = columns(model, [*sentences, *LONG], count)
    start = {name: value.clone() for name, value in loss.state_dict().items()}
    wanted = gradients(plain(loss), batch, steps=2)
    one_by_one = len(passes)
    loss.load_state_dict(start)
    way(loss)
    passes.clear()
    same(gradients(loss, batch, steps=2), wanted, rtol=1e-7, atol=1e-10)
    assert wanted[0].abs() > 0
    assert len(wanted[1]) > 20
    if way is not last_layer_narrowed:
        assert len(passes) > one_by_one


@pytest.mark.parametrize("case", ["simcse", "simcse-mlm", "twins", "infocse-rtd", "diffcse-gradient"])
def test_a_mini_batch_is_encoded_again_under_the_same_dropout(build, sentences, monkeypatch, case):
    loss_class, options, count, _ = CASES[case]
    loss = loss_class(build(), **options, mini_batch_size=2).double()
    batch = columns(loss.model, sentences, count)
    start = {name: value.clone() for name, value in loss.state_dict().items()}
    found = gradients(loss, batch)
    loss.load_state_dict(start)
    monkeypatch.setattr(_passes, "_recomputed", lambda function, *args: function(*args))
    same(found, gradients(loss, batch), rtol=1e-9, atol=1e-12)


def test_mini_batches_under_accumulation_and_a_scaled_loss(build, no_dropout, sentences):
    """What the loss owns gets the gradient of the scaled loss too, summed over the batches."""
    model = build(dropout=False)
    loss = CASES["infocse"][0](model, mlm_weight=0.1, mini_batch_size=2).double()
    no_dropout(loss)

    def accumulated():
        loss.zero_grad()
        for part in (sentences, LONG):
            torch.manual_seed(3)
            (loss(columns(model, part, 1)).total * 2.0**16 / 2).backward()
        return {name: p.grad.clone() for name, p in loss.named_parameters() if p.grad is not None}

    start = {name: value.clone() for name, value in loss.state_dict().items()}
    found = accumulated()
    loss.load_state_dict(start)
    wanted = (plain(loss), accumulated())[1]
    assert any(name.startswith("head") for name in wanted)
    same([found], [wanted], rtol=1e-7, atol=1e-6)


def test_nothing_of_a_mini_batch_is_held(build, sentences):
    """What autograd keeps does not grow with the rows, but for their ids, vectors and scores."""

    def held(mini_batch_size, rows):
        loss = CASES["simcse"][0](build(), mini_batch_size=mini_batch_size)
        batch = columns(loss.model, (sentences * 20)[:rows], 1)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            loss(batch)
        return sum(kept)

    assert held(None, 64) - held(None, 32) > 20 * (held(4, 64) - held(4, 32)) > 0


def test_evaluation_holds_nothing_and_gives_the_same(build, sentences):
    loss = CASES["simcse"][0](build().eval(), mini_batch_size=2)
    batch = columns(loss.model, sentences, 1)
    with torch.no_grad():
        value = loss(batch).total
        torch.testing.assert_close(value, plain(loss)(batch).total)


def test_inside_a_loss_that_replays_passes(build, no_dropout, sentences, monkeypatch):
    """Each of Matryoshka's widths gets the pass as it was; twice encoded rows are refused."""
    from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, MatryoshkaLoss

    monkeypatch.setattr(_passes, "cheapest_chunks", lambda lengths: cheapest_chunks(lengths, pass_cost=0))
    found = []
    for set_up in (plain, lambda loss: loss):
        model = build(dropout=False)
        loss = set_up(CASES["simcse-no-head"][0](model, head=False, log_terms=False))
        value = MatryoshkaLoss(model, loss, [32, 16])([model.preprocess(sentences)], None)
        value.backward()
        found.append((value.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    same(*found)
    loss.mini_batch_size = 2
    with pytest.raises(ValueError, match="mini_batch_size=2 can't be used: each row is encoded twice"):
        MatryoshkaLoss(model, loss, [32, 16])([model.preprocess(sentences)], None)
    loss.mini_batch_size = None
    with pytest.raises(ValueError, match="AdaptiveLayerLoss"):
        AdaptiveLayerLoss(model, loss)([model.preprocess(sentences)], None)


def test_mini_batches_in_mixed_precision_through_the_trainer(build, sentences, tmp_path, monkeypatch):
    """The Trainer's autocast is there in the second pass too: the same steps as without recomputation."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    from st_contrastive import text_dataset

    def trained():
        torch.manual_seed(0)
        model = build()
        loss = CASES["infocse"][0](model, mlm_weight=0.1, mini_batch_size=2)
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=3, gradient_accumulation_steps=2, bf16=True,
            use_cpu=True, save_strategy="no", report_to="none", seed=1, dataloader_pin_memory=False,
        )  # fmt: skip
        SentenceTransformerTrainer(model, arguments, text_dataset(sentences * 4), loss=loss).train()
        return [{name: value.clone() for name, value in loss.state_dict().items()}]

    twice = trained()
    monkeypatch.setattr(_passes, "_recomputed", lambda function, *args: function(*args))
    same(twice, trained(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [0, -1, 1.5, "4", True])
def test_mini_batch_size_is_a_whole_number(build, size):
    with pytest.raises((TypeError, ValueError), match="mini_batch_size"):
        CASES["simcse"][0](build(), mini_batch_size=size)


FAMILIES = ("bert", "roberta", "mpnet", "distilbert", "electra", "modernbert", "deberta", "qwen", "xlnet")


@pytest.mark.filterwarnings("ignore:model is a decoder that is read at its first token")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_is_narrowed_where_that_is_right(build, sentences, family):
    """Families known to work are narrowed; the others are left whole. The gradient is that of the whole layer."""
    model = build(family, dropout=False)
    loss = CASES["simcse-no-head"][0](model, head=False)
    encoder = encoder_of(model)
    assert can_be_narrowed(encoder) == (family != "xlnet")
    batch = [model.preprocess(sentences)]
    seen = []
    last = [
        module for name, module in encoder.named_modules() if name.endswith(("attention.output", "out_lin", "o_proj"))
    ]
    if last:
        hook = last[-1].register_forward_hook(lambda _, args, output: seen.append(args[0].shape[:2]))
    found = gradients(loss, batch)
    wanted = gradients(plain(loss), batch)
    same(found, wanted, rtol=1e-3, atol=1e-5)
    assert len(found[1]) > 10
    if last:
        hook.remove()


def test_what_reads_more_than_the_first_token_is_not_narrowed(build, sentences, monkeypatch):
    narrow = []
    original = _passes.narrowed
    monkeypatch.setattr(_passes, "narrowed", lambda layer: narrow.append(1) or original(layer))

    def count(case, pooling="cls", **features):
        loss_class, options, columns_count, _ = CASES[case]
        loss = loss_class(build(pooling=pooling), **options)
        narrow.clear()
        loss([{**column, **features} for column in columns(loss.model, sentences, columns_count)])
        return len(narrow)

    assert count("simcse") > 0
    assert count("simcse", "mean") == count("simcse", "lasttoken") == 0
    assert count("twins") > 0
    assert count("twins-one-column", "mean") > 0  # trains the first token's vectors, whatever the model pools
    assert count("twins-mean") == count("twins", "mean") == 0
    assert count("infocse") > 0
    assert count("infocse", "mean") == 0
    assert count("simcse", prompt_length=torch.tensor([2])) == 0
    loss = CASES["simcse"][0](build())
    encoder_of(loss.model).config._attn_implementation = "eager"
    loss(columns(loss.model, sentences, 1))  # probed again
    assert {attention for _, attention, _ in loss._probed.values()} == {"eager"}


class Scaled(torch.nn.Module):
    """A user's module behind the pooling, which reads the tokens too."""

    def forward(self, features):
        spread = features["token_embeddings"].std(dim=1)
        return {**features, "sentence_embedding": features["sentence_embedding"] + spread}


class OwnPooling(Pooling):
    """A user's own pooling, under the name of a known mode."""

    def forward(self, features):
        return {**features, "sentence_embedding": features["token_embeddings"].sum(dim=1)}


def hooked(model):
    seen = []
    model[0].model.encoder.layer[-1].register_forward_hook(lambda _, __, out: seen.append(out))
    return model


UNUSUAL = {
    "reads tokens behind the pooling": lambda model: model.append(Scaled()) and None,
    "a pooling of its own": lambda model: model.__setitem__(1, OwnPooling(32, "cls")),
    "BatchNorm behind the pooling": lambda model: model.append(Standardised()) and None,
    "a convolution over the tokens": lambda model: model.insert(1, CNN(32, 16, [1, 3])),
    "a hook on the last layer": hooked,
    "feed-forward in chunks": lambda model: setattr(model[0].model.encoder.layer[-1], "chunk_size_feed_forward", 1),
    "DataParallel": lambda model: None,
    "checkpointed by PyTorch": lambda model: apply_activation_checkpointing(
        model, check_fn=lambda module: module is model[0].model.encoder.layer[-1]
    ),
}


@pytest.mark.parametrize("unusual", UNUSUAL)
def test_models_that_are_not_as_others(build, sentences, monkeypatch, unusual):
    """What can't be saved on them is not saved: value and gradient are the plain path's."""
    monkeypatch.setattr(_passes, "cheapest_chunks", lambda lengths: cheapest_chunks(lengths, pass_cost=0))
    found = []
    for set_up in (plain, lambda loss: loss):
        model = build(dropout=False)
        torch.manual_seed(4)
        UNUSUAL[unusual](model)
        if "convolution" in unusual:
            model[2] = Pooling(32, "mean")
        model.train()
        loss = set_up(CASES["simcse-no-head"][0](model, head=False))
        if unusual == "DataParallel":
            loss.model = torch.nn.DataParallel(model)
        found.append(gradients(loss, [model.preprocess([*sentences, *LONG])]))
    same(*found, rtol=1e-4, atol=1e-6)
    assert len(found[0][1]) > 10


@pytest.mark.parametrize("unusual", ["BatchNorm behind the pooling", "a convolution over the tokens", "DataParallel"])
def test_mini_batches_of_models_that_are_not_as_others(build, sentences, unusual):
    found = []
    for mini_batch_size in (None, 2):
        model = build(dropout=False)
        torch.manual_seed(4)
        UNUSUAL[unusual](model)
        if "convolution" in unusual:
            model[2] = Pooling(32, "mean")
        loss = CASES["simcse-no-head"][0](model.train(), head=False, mini_batch_size=mini_batch_size)
        if unusual == "DataParallel":
            loss.model = torch.nn.DataParallel(model)
        batch = [model.preprocess(sentences)]
        if mini_batch_size and "BatchNorm" in unusual:
            with pytest.raises(ValueError, match="mini_batch_size=2 can't be used: the model has BatchNorm"):
                loss(batch)
            return
        found.append(gradients(loss, batch))
    same(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", ["twins-embeddings", "pretraining"])
def test_layer_states_are_not_read_of_replicas(build, sentences, case):
    """DataParallel's threads would write the states of all replicas into one place."""
    model = build().train()
    if case == "twins-embeddings":
        loss = TwinsLoss(model, ablation=TwinsAblation(margin_from="embeddings"))
        batch = [model.preprocess(sentences), model.preprocess(sentences)]
    else:
        loss = AuxiliaryMLMPretrainingLoss(model)
        batch = [model.preprocess(sentences)]
    assert loss(batch)
    loss.model = torch.nn.DataParallel(model)
    with pytest.raises(ValueError, match="reads the states of single layers, which DataParallel's replicas would mix"):
        loss(batch)


def test_prompts_and_masks_that_begin_late(build, sentences):
    """The first token that is read may be another than the first."""
    model = build(dropout=False)
    model[1].include_prompt = False
    loss = CASES["simcse-no-head"][0](model, head=False)
    prompted = model.preprocess(sentences, prompt="the red ")
    late = model.preprocess(sentences)
    late["attention_mask"][1, 0] = 0
    unprompted = model.preprocess(sentences)
    for batch in ([unprompted, prompted], [prompted, unprompted], [late], [unprompted, late]):
        found = gradients(loss, batch)
        loss.narrows_last_layer = loss.saves_padding = False
        same(found, gradients(loss, batch), rtol=1e-4, atol=1e-6)
        loss.narrows_last_layer, loss.saves_padding = True, None


def test_probing_leaves_the_encoder_as_it_was(build):
    model = build()
    modes = [module.training for module in model.modules()]
    calls = []
    model[0].model.embeddings.register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(0)
    CASES["simcse"][0](model)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    TanhHead(32)  # what a loss draws is its head
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert calls == [1]  # the question whether it is a decoder; where somebody looks on, nothing else is tried

    class Switches(type(model[0].model)):  # as BigBird's, for good, under a short text
        def set_attention_type(self):
            raise AssertionError

    model[0].model.__class__ = Switches
    assert not can_be_narrowed(model[0].model)


def test_wrappers_are_found_under_compiled_ones(build):
    model = build()
    parallel = torch.nn.DataParallel(model)
    compiled = torch.compile(parallel)
    assert wrapper_chain(compiled) == [compiled, parallel, model]
    assert Wrapping.of(compiled).parallel
    assert Wrapping.of(compiled).compiled


def test_a_probe_gives_an_encoder_its_attention_back():
    config = BigBirdConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, block_size=4
    )
    encoder = BigBirdModel(config, add_pooling_layer=False)
    assert encoder.attention_type == "block_sparse"
    require_embeddings_as_input(encoder)
    assert encoder.attention_type == "block_sparse"
    assert encoder.encoder.attention_type == "block_sparse"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 100))
def test_groups_hold_every_row_once_and_cost_the_least_of_equal_chunks(lengths, pass_cost):
    groups = cheapest_chunks(lengths, pass_cost)
    assert sorted(row for rows in groups for row in rows) == list(range(len(lengths)))

    def cost(groups):
        return sum(pass_cost + len(rows) * max(lengths[row] for row in rows) for rows in groups)

    assert cost(groups) <= cost([range(len(lengths))])
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    for count in (2, 3, 4, 6, 8):
        most = -(-len(order) // count)
        assert cost(groups) <= cost([order[start : start + most] for start in range(0, len(order), most)])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 70))
def test_mini_batches_hold_every_row_once(lengths, most):
    groups = chunks(lengths, most)
    assert sorted(row for rows in groups for row in rows) == list(range(len(lengths)))
    assert all(len(rows) == most for rows in groups[:-1])
    assert 0 < len(groups[-1]) <= most


#: Who may have asked for an operation: this package, or those that it calls.
PACKAGES = re.compile(r"/(st_contrastive|transformers|sentence_transformers)/")


class _Waits(TorchDispatchMode):
    """Notes every operation that waits for the device, and who asked for it, outside of the encoders."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "item", "unique", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices)
        made_on_cpu = name in ("lift_fresh", "lift_fresh_copy")
        if name in self.WAITING or by_mask or made_on_cpu:
            asked = [f for f in traceback.extract_stack() if PACKAGES.search(f.filename)]
            # transformers' own masks look whether anything is padded.
            if asked and "st_contrastive" in asked[-1].filename:
                self.found.append(f"{name} in {asked[-1].name} ({asked[-1].line})")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "case", crossed([name for name in CASES if name != "diffcse-gradient"], quick=ONE_OF_EACH.__contains__)
)
def test_nothing_waits_for_the_device_in_a_step(build, sentences, case):
    """As on a GPU, where rows are not grouped by length: only counts whose copy was begun earlier are read."""
    loss_class, options, count, _ = CASES[case]
    loss = loss_class(build(), **options)
    loss.saves_padding = False
    batch = columns(loss.model, sentences, count)
    loss([dict(column) for column in batch]).backward()  # the first step looks at the run
    with _Waits() as waits:
        loss([dict(column) for column in batch]).backward()
    assert [found for found in waits.found if " in places " not in found] == []


def test_a_wait_is_seen():
    with _Waits() as waits:
        CorruptedTokens(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)).places()
    assert len(waits.found) == 1
    assert " in places " in waits.found[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_is_not_waited_for(build, sentences):
    loss = CASES["infocse"][0](build().cuda())
    column = columns(loss.model, sentences, 1)[0]
    batch = [{key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in column.items()}]
    loss([dict(column) for column in batch]).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss([dict(column) for column in batch]).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_random_state_of_the_rows_device_is_restored(build, sentences, monkeypatch):
    """torch looks among the arguments of its checkpoint for the devices whose state it saves, not inside of Rows."""
    asked = []

    def checkpoint(function, *arguments, **options):
        asked.append([leaf.device for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)])
        return torch.utils.checkpoint.checkpoint(function, *arguments, **options)

    monkeypatch.setattr(_passes, "checkpoint", checkpoint)
    loss = SimCSELoss(build(), mini_batch_size=2)
    loss([loss.model.preprocess(sentences)]).backward()
    assert len(asked) == math.ceil(len(sentences) / 2)
    assert all(devices == [loss.device] for devices in asked)
