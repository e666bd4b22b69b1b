"""One rank of ``test_ranks``. Not a test by itself.

rank.py gradients|train|alone BERT GERMAN FOLDER
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.utils.data import DataLoader

import st_contrastive as stc
from st_contrastive.components import ReplacedTokenDetector, TokenCorruption
from st_contrastive.distributed import shut_down
from st_contrastive.encoder.token_batch import CorruptedTokens
from st_contrastive.training import ContrastiveTrainer, load_loss_state
from tests.cases import SENTENCES, arguments_of, every_method, method_of, switch_off_dropout

#: Options of the loss, and text columns.
GATHERING = {
    "simcse": ({}, 1),
    "simcse-mlm": ({"mlm_weight": 0.3}, 1),
    "conisi": ({"strategy": "given"}, 2),
    "twins": ({"queue_batches": 2, "train_pooling": "cls"}, 2),
    "twins-german": ({"queue_batches": 2, "train_pooling": "cls"}, 1),
    "infocse": ({"mlm_weight": 0.3, "head": "projector"}, 1),
    "infocse-rtd": ({"mlm_weight": 0.3, "rtd_weight": 0.2}, 1),
    "diffcse": ({"rtd_weight": 0.2}, 1),
    "momentum": ({"queue_size": 7, "positives": "momentum"}, 2),
    "pretraining": ({}, 1),
}
GATHER = {"gather_across_devices": True}
TRAINED = {
    **every_method(twins={"queue_batches": 2}, infocse={"mlm_weight": 0.1}),
    "twins-gathering": ({"queue_batches": 2, **GATHER}, 2),
    "infocse-gathering": ({"mlm_weight": 0.1, "head": "projector", **GATHER}, 1),
}
#: Those that one process continues.
ALONE = ("twins", "infocse", "pretraining")


def build(bert: str, dropout: bool = True, pooling: str = "cls") -> SentenceTransformer:
    transformer = Transformer(bert)
    model = SentenceTransformer(modules=[transformer, Pooling(32, pooling)], device="cpu").train()
    if not dropout:
        switch_off_dropout(model)
    return model


def fixed(self: TokenCorruption, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> CorruptedTokens:
    """What a token becomes depends on the token alone, so that a batch can be cut in two."""
    chosen = attention_mask.bool() & ~self.special[input_ids] & (input_ids % 3 == 0)
    return CorruptedTokens(torch.where(chosen, self.mask_id, input_ids), chosen)


def filled(self: ReplacedTokenDetector, features: dict, masked: CorruptedTokens) -> torch.Tensor:
    """Replaces the generator's argmax, because rounding may decide between two nearly equal logits."""
    ids = features["input_ids"]
    return torch.where(masked.chosen, ids - 1, ids)


def gradients(case, bert, german, columns, dtype):
    """Gradients of the third of three batches, so that a queue is in use, and what else the loss keeps."""
    options, count = GATHERING[case]
    torch.manual_seed(0)
    model = build(bert, dropout=False, pooling="mean").to(dtype)
    with torch.no_grad():  # spread the vectors: for similar sentences, float32 is less exact than the tolerance
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 5
    labels = None
    if case == "twins-german":
        fraternal = stc.FraternalEmbedding.from_pretrained(german, model)
        options = {**options, "fraternal": fraternal}
        labels = torch.tensor(stc.twins_dataset(columns[0], columns[1], fraternal=fraternal)["label"][:])
    if case == "diffcse" and dtype == torch.float32:
        # Behind BatchNorm over so few rows, float32 is far from float64 in one process already.
        options = {**options, "head": None}
    options = options if case == "pretraining" else {**options, "gather_across_devices": True}
    loss = method_of(case).loss_class(model, **options).to(dtype)
    switch_off_dropout(loss)
    for _ in range(3):
        loss.zero_grad()
        loss([model.preprocess(part) for part in columns[:count]], labels).backward()
    found = {name: p.grad for name, p in loss.named_parameters() if p.grad is not None}
    return found, dict(loss.named_buffers()), getattr(loss, "queue", None)


def check_gradients(bert, german):
    TokenCorruption.forward, ReplacedTokenDetector.replace = fixed, filled
    ranks = int(os.environ["WORLD_SIZE"])
    equal = [[3 * r, 3 * r + 3] for r in range(ranks)]
    uneven = [[0, 4], *([r, r + 1] for r in range(4, 3 + ranks))]
    expected = {}
    for dtype, name, shares in (
        (torch.float64, "equal", equal),
        (torch.float64, "uneven", uneven),
        (torch.float32, "equal", equal),
    ):
        whole = SENTENCES[: shares[-1][1]]
        for case in GATHERING:
            columns = [whole, [f"{text} again" for text in whole[::-1]]]
            expected[dtype, name, case] = columns, shares, gradients(case, bert, german, columns, dtype)
    dist.init_process_group("gloo")
    for (dtype, name, case), (columns, shares, (whole, buffers, queue)) in expected.items():
        start, end = shares[dist.get_rank()]
        found, own_buffers, own_queue = gradients(case, bert, german, [part[start:end] for part in columns], dtype)
        assert {name for name, gradient in whole.items() if gradient.abs().sum()} <= set(found)
        errors = {}
        for part, inside in (("encoder", True), ("owned", False)):
            names = [n for n in whole if n.startswith("model.") == inside]
            if not names:
                assert part == "owned"
                assert case.startswith("twins")
                continue
            mine = torch.cat([found[n].flatten() for n in names])
            if inside:  # what DDP does; the loss's own are averaged already
                dist.all_reduce(mine)
                mine /= dist.get_world_size()
            theirs = torch.cat([whole[n].flatten() for n in names])
            assert theirs.norm() > 1e-6
            errors[part] = ((mine - theirs).norm() / theirs.norm()).item()
            assert errors[part] < (1e-4 if dtype == torch.float32 else 1e-7), (case, name, part, errors)
        for key, value in buffers.items():
            torch.testing.assert_close(own_buffers[key], value, rtol=1e-4, atol=1e-6)
        if queue is not None:
            for ours, theirs in zip(own_queue.keys_and_weights(), queue.keys_and_weights(), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        if dist.get_rank() == 0:
            found = ", ".join(f"{part} {error:.1e}" for part, error in errors.items())
            print(f"{case} {name} {dtype} agrees: {found}", flush=True)


def arguments(folder, **changes):
    options = {"max_steps": 4, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "max_grad_norm": 0.5}
    sizes = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    return arguments_of(folder, **{**options, **sizes, **changes})


def made(case, bert):
    """Loss, data and examples. What the ranks own differs before training."""
    method, (options, columns) = method_of(case), TRAINED[case]
    torch.manual_seed(100 + (dist.get_rank() if dist.is_initialized() else 0))
    loss = method.loss_class(build(bert), **options)
    texts = [SENTENCES, SENTENCES[::-1]][:columns]
    dataset = method.dataset(*texts)
    return loss, dataset, stc.input_examples(dataset)


def trainer_of(case, bert, folder, **changes):
    loss, data, _ = made(case, bert)
    return ContrastiveTrainer(loss.model, arguments(folder, **changes), data, data, loss)


def state_of(loss):
    state = loss.state_dict()
    return {name.replace("model.module.", "model."): value.detach().clone() for name, value in state.items()}


def assert_same_on_all_ranks(loss, *, buffers):
    """Queues and running statistics are each rank's own where their batches are not one."""
    own = () if buffers else dict(loss.named_buffers())
    state = {name: value for name, value in loss.state_dict().items() if name not in own}
    assert len(state) > 10
    for name, value in state.items():
        others = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(others, value)
        assert all(torch.equal(other, value) for other in others), name


def check_training(bert, folder):
    for case in TRAINED:
        trainer = trainer_of(case, bert, folder / case)
        start = state_of(trainer.loss)
        trainer.train()
        end = state_of(trainer.loss)
        changed = [name for name, value in start.items() if not torch.equal(value, end[name])]
        assert {name.startswith("model.") for name in changed} == {True, False}, case
        assert_same_on_all_ranks(trainer.loss, buffers="gathering" in case)
        resumed = trainer_of(case, bert, folder / case)
        resumed.train(resume_from_checkpoint=str(folder / case / "checkpoint-2"))
        for name, value in state_of(resumed.loss).items():
            assert torch.equal(value, end[name]), (case, name)
        say(f"{case}: no drift, resumed to the bit")
    check_fit(bert, folder)
    check_refused(bert, folder)
    check_mini_batches(bert)


def say(text):
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(text, flush=True)


def check_fit(bert, folder):
    os.environ["ACCELERATE_USE_CPU"] = "true"  # fit has no argument that says so
    loss, _, examples = made("conisi", bert)
    loss.model.fit(
        [(DataLoader(examples, batch_size=2), loss)], epochs=3, warmup_steps=0, show_progress_bar=False,
        checkpoint_path=str(folder / "fit"), checkpoint_save_steps=1000,
    )  # fmt: skip
    assert_same_on_all_ranks(loss, buffers=False)
    say("fit: no drift")


def check_refused(bert, folder):
    """Refuses several losses, because ranks may use different ones in a step, and an encoder without DDP."""
    loss, data, _ = made("conisi", bert)
    losses = {"a": loss, "b": stc.SimCSELoss(loss.model)}
    trainer = ContrastiveTrainer(
        loss.model, arguments(folder / "two", eval_strategy="no"), {"a": data, "b": data}, loss=losses
    )
    with pytest.raises(ValueError, match="loss is a dict of 2 losses"):
        trainer.train()
    trainer = trainer_of("conisi", bert, folder / "evaluated")
    trainer.evaluate()
    with pytest.raises(ValueError, match=r"has not wrapped the model.*Evaluate after"):
        trainer.train()
    say("refused")


def check_mini_batches(bert):
    """DDP averages once, behind all mini-batches, whose passes are made again within the backward pass."""
    gradients = []
    for mini_batch_size in (None, 1):
        torch.manual_seed(0)
        model = build(bert, dropout=False)
        options = {"mlm_weight": 0.3, "head": "projector", "gather_across_devices": True}
        loss = stc.InfoCSELoss(model, **options, mini_batch_size=mini_batch_size)
        switch_off_dropout(loss.double())
        wrap = torch.nn.parallel.DistributedDataParallel
        loss.model = wrap(model, find_unused_parameters=True, broadcast_buffers=False)
        share = SENTENCES[3 * dist.get_rank() :][:3]
        for step in range(2):
            loss.zero_grad()
            torch.manual_seed(step)
            loss([model.preprocess(share)]).backward()
        gradients.append({name: p.grad for name, p in loss.named_parameters() if p.grad is not None})
    assert len(gradients[0]) > 70
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-6, atol=1e-9)
    say("mini-batches: the gradient of the whole batch")


def check_resumed_alone(bert, folder):
    """One process continues with what several wrote."""
    for case in ALONE:
        checkpoint = folder / case / "checkpoint-2"
        trainer = trainer_of(case, bert, folder / "alone" / case, eval_strategy="no")
        load_loss_state(trainer.loss, checkpoint)
        state, saved = state_of(trainer.loss), load_file(checkpoint / "loss_state.safetensors")
        derived = getattr(trainer.loss, "derived_tensors", ())
        owned = [name for name in state if not name.startswith("model.") and name not in derived]
        assert owned
        assert all(torch.equal(state[name], saved[name]) for name in owned)
        trainer.train(resume_from_checkpoint=str(checkpoint))
        assert trainer.state.global_step == 4
        assert trainer.collapsed is None
        say(f"{case}: resumed alone")


def main() -> None:
    mode, bert, german, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if mode == "gradients":
        check_gradients(bert, german)
    elif mode == "train":
        arguments(folder)  # the first makes the process group
        assert dist.is_initialized()
        check_training(bert, Path(folder))
    else:
        check_resumed_alone(bert, Path(folder))
    say("all done")
    shut_down()


if __name__ == "__main__":
    main()
