"""Runs that are killed and resumed, against one that is not. Not a test by itself: ``test_killed`` starts it.

    killed.py CASE KILLS SEED BERT FOLDER

Each process is forked, and killed at a random point: in a step, or in a file operation of a checkpoint. The next one
resumes. The final state must equal that of an uninterrupted run, bit for bit.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import TrainerCallback

from st_contrastive.training import ContrastiveTrainer
from st_contrastive.training.loss_state import missing_files
from tests.cases import SENTENCES, arguments_of, every_method, method_of

STEPS, EACH = 11, 3
#: Options of the loss, and text columns.
CASES = every_method(twins={"queue_batches": 3}, infocse={"mlm_weight": 0.1, "head": "projector"})
#: Changes of the training arguments.
CHANGES = {"simcse": {"bf16": True}, "twins": {"gradient_accumulation_steps": 2}}


class KilledAtStep(TrainerCallback):
    def __init__(self, step: int, event: str) -> None:
        self.step = step
        setattr(self, event, self.kill)

    def kill(self, args, state, control, **kwargs):
        if state.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def trainer_for(case, bert, folder):
    options, columns = CASES[case]
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[Transformer(bert), Pooling(32, "cls")], device="cpu")
    data = method_of(case).dataset(*[SENTENCES[:9], SENTENCES[:0:-1]][:columns])
    often = {"max_steps": STEPS, "save_steps": EACH, "save_total_limit": 2, "max_grad_norm": 0.5}
    arguments = arguments_of(folder, per_device_train_batch_size=2, **often, **CHANGES.get(case, {}))
    loss = method_of(case).loss_class(model, **options)
    return ContrastiveTrainer(model, arguments, data, loss=loss)


def watch_saving(at):
    """Count the file operations inside checkpoint folders, and die at one of them."""
    counted = 0

    def hook(event, arguments):
        nonlocal counted
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir") and "checkpoint-" in str(arguments[0]):
            counted += 1
            if counted == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: counted


def life(case, bert, folder, rng=None, operations=0):
    """One process: trains from the newest whole checkpoint on. Gives back how it ended."""
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            trainer = trainer_for(case, bert, str(folder))
            in_a_step = rng is not None and rng.random() < 0.4
            counted = watch_saving(rng.randrange(operations) if rng and not in_a_step else None)
            if in_a_step:
                event = rng.choice(["on_step_begin", "on_pre_optimizer_step", "on_step_end", "on_epoch_begin"])
                trainer.add_callback(KilledAtStep(rng.randrange(STEPS), event))
            whole = any(not missing_files(entry) for entry in folder.glob("checkpoint-*"))
            trainer.train(resume_from_checkpoint=whole or None)
            tensors = {name: tensor.contiguous().clone() for name, tensor in trainer.loss.state_dict().items()}
            save_file(tensors, folder / "end.safetensors")
            (folder / "end.json").write_text(json.dumps({"operations": counted()}))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    case, kills, seed, bert, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    whole, broken = Path(folder, "whole"), Path(folder, "broken")
    whole.mkdir()
    broken.mkdir()
    assert life(case, bert, whole) == 0
    expected = json.loads((whole / "end.json").read_text())
    assert expected["operations"] > 50
    rng, died, cut = random.Random(int(seed)), 0, 0
    while died < int(kills):
        ended = life(case, bert, broken, random.Random(rng.random()), expected["operations"])
        assert ended in (0, -signal.SIGKILL), ended
        died += ended != 0
        cut += any(missing_files(entry) for entry in broken.glob("checkpoint-*"))
        if ended == 0:  # it was through before its point came: back to its end, an earlier checkpoint, or the start
            (broken / "end.json").unlink()
            checkpoints = sorted(broken.glob("checkpoint-*"), key=lambda entry: int(entry.name.rpartition("-")[2]))
            for newest in checkpoints[rng.randrange(3) :]:
                shutil.rmtree(newest)
    assert life(case, bert, broken) == 0
    first, second = load_file(whole / "end.safetensors"), load_file(broken / "end.safetensors")
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    owned = [name for name in first if not name.startswith("model.")]
    assert owned, "nothing was owned"
    print(f"{case}: {died} kills, {cut} checkpoints cut short, {len(first)} tensors are equal")


if __name__ == "__main__":
    main()
