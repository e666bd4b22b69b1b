"""One rank of ``test_ranks``. Not a test by itself.

rank.py gradients|train|resume BERT GERMAN FOLDER
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.utils.data import DataLoader
from transformers import TrainerCallback

import st_contrastive as stc
from st_contrastive.components import CorruptedTokens, ReplacedTokenDetector, TokenCorruption
from st_contrastive.training import ContrastiveTrainer, KeepBest, LossStateCallback
from tests.conftest import SENTENCES, switch_off_dropout
from tests.methods import method_of

#: Options of the loss, and text columns.
GATHERING = {
    "simcse": ({}, 1),
    "simcse-mlm": ({"mlm_weight": 0.3}, 1),
    "conisi": ({"strategy": "given"}, 2),
    "twins": ({"queue_batches": 2, "train_pooling": "cls"}, 2),
    "twins-german": ({"queue_batches": 2, "train_pooling": "cls"}, 1),
    "infocse": ({"mlm_weight": 0.3, "head": "projector"}, 1),
    "infocse-rtd": ({"mlm_weight": 0.3, "weighting": "loss", "ablation": stc.InfoCSEAblation(rtd_weight=0.2)}, 1),
    "diffcse": ({"rtd_weight": 0.2}, 1),
    "momentum": ({"queue_size": 7, "positives": "momentum"}, 2),
    "combined": ({"strategy": "given", "mlm_weight": 0.3, "interaction_weight": 0.4}, 2),
}


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
    """Not the generator's likeliest tokens: which of two nearly equal ones is that, rounding decides."""
    ids = features["input_ids"]
    return torch.where(masked.chosen, ids - 1, ids)


def gradients(case, bert, german, columns, dtype):
    """Gradients of the third of three batches, so that a queue is in use, and what else the loss keeps."""
    options, count = GATHERING[case]
    torch.manual_seed(0)
    model = build(bert, dropout=False, pooling="mean").to(dtype)
    with torch.no_grad():  # sentences far apart, or float32 is less exact than what is asked here
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
    loss = method_of(case).loss_class(model, **options, gather_across_devices=True, log_terms=False).to(dtype)
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
            assert errors[part] < (1e-5 if dtype == torch.float32 else 1e-7), (case, name, part, errors)
        for key, value in buffers.items():
            if "keys" not in key:  # which have as many places a slot as the largest batch
                torch.testing.assert_close(own_buffers[key], value, rtol=1e-4, atol=1e-6)
        if queue is not None:
            for ours, theirs in zip(own_queue.entries(), queue.entries(), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        if dist.get_rank() == 0:
            found = ", ".join(f"{part} {error:.1e}" for part, error in errors.items())
            print(f"{case} {name} {dtype} agrees: {found}", flush=True)


TRAINED = {
    "conisi": ({}, 1),
    "twins": ({"gather_across_devices": True}, 2),
    "twins-apart": ({}, 2),
    "infocse": ({"mlm_weight": 0.1, "head": "projector", "gather_across_devices": True}, 1),
    "pretraining": ({}, 1),
}


def arguments(folder, **changes):
    options = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "max_steps": 20,
        "learning_rate": 1e-3,
        "max_grad_norm": 0.5,
        "logging_steps": 5,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "save_steps": 10,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        **changes,
    }
    return SentenceTransformerTrainingArguments(str(folder), **options)


def made(case, bert):
    """Model, loss and data. What the ranks own differs before training."""
    method, (options, columns) = method_of(case), TRAINED[case]
    torch.manual_seed(100 + (dist.get_rank() if dist.is_initialized() else 0))
    model = build(bert)
    texts = [SENTENCES, SENTENCES[::-1]][:columns]
    return model, method.loss_class(model, **options), method.dataset(*texts), method.examples(*texts)


class Norms(TrainerCallback):
    """The norm of all gradients as they are stepped with."""

    def __init__(self):
        self.norms = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.norms.append(torch.stack([gradient.norm() for gradient in gradients]).norm().item())


def state_of(loss):
    state = loss.state_dict()
    return {name.replace("model.module.", "model."): value.detach().clone() for name, value in state.items()}


def assert_same_on_all_ranks(loss, but=()):
    state = {name: value for name, value in state_of(loss).items() if not any(part in name for part in but)}
    assert len(state) > 10
    for name, value in state.items():
        others = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(others, value)
        assert all(torch.equal(other, value) for other in others), name


def check_training(bert, folder):
    for case in TRAINED:
        model, loss, data, _ = made(case, bert)
        norms = Norms()
        trainer = ContrastiveTrainer(model, arguments(folder / case), data, data, loss, callbacks=[norms])
        trainer.remove_callback(norms)
        trainer.add_callback(norms)  # behind the clipping
        trainer.train()
        assert trainer.state.global_step == 20
        assert max(norms.norms) <= 0.5 * (1 + 1e-4)
        assert any(log.get("eval_loss") for log in trainer.state.log_history)
        # Running statistics and queues are each rank's own where their batches are not one.
        apart = {"conisi": ["running"], "twins-apart": ["queue"]}.get(case, [])
        assert_same_on_all_ranks(loss, but=apart)
        ended = state_of(loss)
        model, loss, data, _ = made(case, bert)
        trainer = ContrastiveTrainer(model, arguments(folder / case), data, data, loss)
        trainer.train(resume_from_checkpoint=str(folder / case / "checkpoint-10"))
        for name, value in state_of(loss).items():
            assert torch.equal(value, ended[name]), (case, name)
        if dist.get_rank() == 0:
            print(f"{case}: no drift, resumed to the bit", flush=True)
    check_callback(bert, folder)
    check_fit(bert, folder)
    check_two_losses(bert, folder)
    check_evaluated_before(bert, folder)
    check_mini_batches(bert)
    check_shares(bert, folder)


def check_callback(bert, folder):
    model, loss, data, _ = made("conisi", bert)
    SentenceTransformerTrainer(
        model, arguments(folder / "callback"), data, data, loss, callbacks=[LossStateCallback(loss)]
    ).train()
    assert_same_on_all_ranks(loss, but=["running"])
    dist.barrier()
    names = {entry.name for entry in (folder / "callback" / "checkpoint-20").glob("loss_state*")}
    assert names == {"loss_state.safetensors"} | {
        f"loss_state.rank{rank}.safetensors" for rank in range(1, dist.get_world_size())
    }
    if dist.get_rank() == 0:
        print("callback: no drift", flush=True)


def check_fit(bert, folder):
    os.environ["ACCELERATE_USE_CPU"] = "true"  # fit has no argument that says so
    model, loss, _, examples = made("conisi", bert)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(
            [(DataLoader(examples, batch_size=2), loss)], epochs=5, warmup_steps=0, show_progress_bar=False,
            checkpoint_path=str(folder / "fit"), checkpoint_save_steps=1000,
        )  # fmt: skip
    assert sum("neither clipped nor saved" in str(warning.message) for warning in caught) == 1
    assert_same_on_all_ranks(loss, but=["running"])
    if dist.get_rank() == 0:
        print("fit: no drift, warned once", flush=True)


def check_two_losses(bert, folder):
    """A loss for each of two datasets: in one step the ranks have different ones."""
    options = {"eval_strategy": "no", "save_strategy": "no", "multi_dataset_batch_sampler": "round_robin"}

    def trainer(case, **second):
        model, first, data, _ = made(case, bert)
        first.log_terms = second.get("log_terms", True)
        losses = {"a": first, "b": stc.SimCSELoss(model, **second)}
        datasets = {"a": data, "b": stc.text_dataset(SENTENCES)}
        return ContrastiveTrainer(model, arguments(folder / "two", **options), datasets, loss=losses)

    apart = trainer("conisi", log_terms=False)
    apart.train()
    for loss in apart.loss.values():
        assert_same_on_all_ranks(loss, but=["running", "tracked"])
    for case, message, second in (
        ("infocse", "gather_across_devices=True does not go", {"log_terms": False}),
        ("conisi", "log_terms=True does not go", {}),
    ):
        with pytest.raises(ValueError, match=message):
            trainer(case, **second).train()
    model, first, _, examples = made("conisi", bert)
    objectives = [(DataLoader(examples, batch_size=2), loss) for loss in (first, stc.SimCSELoss(model))]
    with pytest.raises(ValueError, match="Each device may train on a different dataset"):
        model.fit(objectives, warmup_steps=0, show_progress_bar=False, checkpoint_path=str(folder / "fit2"))
    if dist.get_rank() == 0:
        print("two losses: no drift", flush=True)


def check_evaluated_before(bert, folder):
    """The trainer prepares a model that it evaluates first, and then leaves it without DDP."""
    model, loss, data, _ = made("conisi", bert)
    trainer = ContrastiveTrainer(model, arguments(folder / "evaluated"), data, data, loss)
    trainer.evaluate()
    with pytest.raises(ValueError, match=r"has not wrapped the encoder.*Evaluate after"):
        trainer.train()
    first = dist.get_rank() == 0
    if first:  # as after load_loss_state
        loss.note_restored_state()
    with pytest.raises(ValueError, match="load_loss_state was called on some of the devices only"):
        loss([model.train().preprocess(SENTENCES[:2])])
    if first:
        print("evaluated before: refused", flush=True)


def check_mini_batches(bert):
    """DDP averages once, behind all mini-batches, whose passes are made again within the backward pass."""
    found = []
    for mini_batch_size in (None, 1):
        torch.manual_seed(0)
        model = build(bert, dropout=False)
        options = {"mlm_weight": 0.3, "head": "projector", "gather_across_devices": True}
        loss = stc.InfoCSELoss(model, **options, mini_batch_size=mini_batch_size)
        switch_off_dropout(loss.double())
        wrap = torch.nn.parallel.DistributedDataParallel
        loss.model = wrap(model, find_unused_parameters=True)
        if mini_batch_size:
            with pytest.raises(ValueError, match="give it broadcast_buffers=False"):
                loss([model.preprocess(SENTENCES[:3])])
        loss.model = wrap(model, find_unused_parameters=True, broadcast_buffers=False)
        share = SENTENCES[3 * dist.get_rank() :][:3]
        for step in range(2):
            loss.zero_grad()
            torch.manual_seed(step)
            loss([model.preprocess(share)]).backward()
        found.append({name: p.grad for name, p in loss.named_parameters() if p.grad is not None})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-6, atol=1e-9)
        others = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(others, found[1][name].contiguous())
        assert all(torch.equal(other, found[1][name]) for other in others), name
    if dist.get_rank() == 0:
        print("mini-batches: the gradient of the whole batch", flush=True)


class Distance(SentenceEvaluator):
    """How far a vector is from where it was at first: the farther the better, except on the ranks after the first."""

    def __init__(self):
        super().__init__()
        self.primary_metric, self.first = "distance", None

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        vector = model.encode(SENTENCES[0])
        self.first = vector if self.first is None else self.first
        return {"distance": float(((vector - self.first) ** 2).sum()) * (-1 if dist.get_rank() else 1)}


def check_shares(bert, folder):
    """All ranks evaluate the mixtures and end with the first one's choice."""
    model, loss, data, _ = made("conisi", bert)
    evaluator = Distance()
    best = KeepBest("distance", shares=(0, 0.5, 1), evaluator=evaluator)
    options = arguments(folder / "shares", save_strategy="no")
    ContrastiveTrainer(model, options, data, data, loss, evaluator=evaluator, callbacks=[best]).train()
    assert best.choice.share == 1
    assert list(best.choice.values) == [0, 0.5, 1]
    assert best.choice.values[1] > best.choice.values[0]
    assert_same_on_all_ranks(loss, but=["running", "head", "classifier"])
    if dist.get_rank() == 0:
        print("shares: the first rank's choice", flush=True)


class FirstState(TrainerCallback):
    """Keeps the loss's state when training begins."""

    def __init__(self, loss):
        self.loss, self.state = loss, {}

    def on_train_begin(self, *_, **__):
        self.state = state_of(self.loss)


def check_resumed_alone(bert, folder):
    """One process continues with what several wrote."""
    for case in TRAINED:
        model, loss, data, _ = made(case, bert)
        checkpoint = folder / case / "checkpoint-10"
        first = FirstState(loss)
        options = arguments(folder / "alone", max_steps=25)
        trainer = ContrastiveTrainer(model, options, data, data, loss, callbacks=[first])
        trainer.train(resume_from_checkpoint=str(checkpoint))
        saved = load_file(checkpoint / "loss_state.safetensors")
        owned = [name for name in first.state if not name.startswith("model.")]
        assert owned
        assert all(torch.equal(first.state[name], saved[f"loss:{name}"]) for name in owned)
        assert trainer.state.global_step == 25
        assert all(math.isfinite(log["loss"]) for log in trainer.state.log_history if "loss" in log)
        print(f"{case}: resumed alone", flush=True)


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
    print("all done", flush=True)


if __name__ == "__main__":
    main()
