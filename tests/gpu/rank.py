"""A rank of ``test_processes``, which torchrun starts with ``rank.py BERT FOLDER``.

The backend is NCCL on GPUs and gloo on CPUs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from st_contrastive.components import ReplacedTokenDetector, TokenCorruption
from st_contrastive.distributed import shut_down
from st_contrastive.training import ContrastiveTrainer
from tests.cases import SENTENCES, method_of, switch_off_dropout
from tests.gpu.cases import moved
from tests.training.rank import GATHERING, TRAINED, arguments, assert_same_on_all_ranks, build, filled, fixed

#: All cases except the one with a German checkpoint.
CASES = [case for case in GATHERING if case != "twins-german"]


def gradients(case, bert, columns, device):
    """Gradients of the second batch in float64. The first batch fills the queue."""
    options, count = GATHERING[case]
    torch.manual_seed(0)
    model = build(bert, dropout=False, pooling="mean").double().to(device)
    options = options if case == "pretraining" else {**options, "gather_across_devices": True}
    loss = method_of(case).loss_class(model, **options)
    loss.to(device, torch.float64)
    switch_off_dropout(loss)
    for _ in range(2):
        loss.zero_grad()
        torch.manual_seed(1)
        loss(moved([model.preprocess(part) for part in columns[:count]], device)).backward()
    return {name: p.grad for name, p in loss.named_parameters() if p.grad is not None}


def shares_of(ranks):
    """First row and end of each rank's share. Shares have three rows, and the last share has two."""
    ends = [3 * (rank + 1) for rank in range(ranks)]
    return [(end - 3, end if end < 3 * ranks else end - 1) for end in ends]


def check_gradients(bert, device, cases, start):
    """Check that the ranks together have the gradient that a single process has.

    Args:
        start: starts the process group. It is called after the single process's gradients are computed.
    """
    shares = shares_of(int(os.environ.get("WORLD_SIZE", "1")))
    whole = SENTENCES[: shares[-1][1]]
    columns = [whole, [f"{text} again" for text in whole[::-1]]]
    with (
        mock.patch.object(TokenCorruption, "forward", fixed),
        mock.patch.object(ReplacedTokenDetector, "replace", filled),
    ):
        expected = {case: gradients(case, bert, columns, device) for case in cases}
        start()
        first, end = shares[dist.get_rank()]
        for case in cases:
            found = gradients(case, bert, [part[first:end] for part in columns], device)
            for part, inside in (("encoder", True), ("loss", False)):
                names = [name for name in expected[case] if name.startswith("model.") == inside]
                if not names:
                    continue
                mine = torch.cat([found[name].flatten() for name in names])
                if inside:  # DDP averages these gradients, and the loss has averaged the others
                    dist.all_reduce(mine)
                    mine /= dist.get_world_size()
                theirs = torch.cat([expected[case][name].flatten() for name in names])
                assert theirs.norm() > 1e-6
                error = ((mine - theirs).norm() / theirs.norm()).item()
                assert error < 1e-7, (case, part, error)
            _say(f"{case}: the gradient of one process")


def check_training(bert, device, folder):
    """Check that all ranks end with the same weights and state after training with DDP in bfloat16."""
    for case in ("twins", "infocse"):
        method, (options, count) = method_of(case), TRAINED[case]
        torch.manual_seed(100 + dist.get_rank())
        model = build(bert)
        loss = method.loss_class(model, **options)
        data = method.dataset(*[SENTENCES, SENTENCES[::-1]][:count])
        on_cpu = device.type == "cpu"
        settings = arguments(folder / case, use_cpu=on_cpu, dataloader_pin_memory=not on_cpu, max_steps=6, bf16=True)
        ContrastiveTrainer(model, settings, data, data, loss).train()
        assert {parameter.device.type for parameter in loss.parameters()} == {device.type}
        assert_same_on_all_ranks(loss, buffers=False)
        _say(f"{case}: no drift")


def _say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def main(bert, folder):
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    check_gradients(bert, device, CASES, lambda: dist.init_process_group(backend))
    check_training(bert, device, Path(folder))
    _say(f"all done with {backend}")
    shut_down()


if __name__ == "__main__":
    main(*sys.argv[1:])
