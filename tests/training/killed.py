"""Runs that are killed and resumed, against one that is not. Not a test by itself: ``test_killed`` starts it.

    killed.py CASE KILLS SEED BERT GERMAN FOLDER

Each life is a forked process, which takes SIGKILL at a random point: in a step, or at one of the file operations or
moments of a checkpoint. The next resumes. What the last ends with must equal, bit for bit, what a run ends with that
nobody killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import TrainerCallback

import st_contrastive as stc
from st_contrastive.augmentations import RandomDeletion
from st_contrastive.inputs import FreshAugmentation
from st_contrastive.training import ContrastiveTrainer
from tests.conftest import SENTENCES
from tests.methods import method_of

STEPS, EACH = 19, 3
TWO = [SENTENCES[:9], SENTENCES[:0:-1]]

#: Options of the loss, text columns, and changes of the training arguments.
CASES = {
    "simcse": ({}, 1, {"bf16": True}),
    "conisi": ({"strategy": "subword"}, 1, {}),
    "conisi-fresh": ({"strategy": "given"}, 1, {}),
    "twins": ({"queue_batches": 2}, 2, {"gradient_accumulation_steps": 2}),
    "twins-german": ({"queue_batches": 3}, 2, {}),
    "infocse": (
        {"mlm_weight": 0.1, "head": "projector", "ablation": stc.InfoCSEAblation(rtd_weight=0.1)},
        1,
        {},
    ),
    "diffcse": ({"sampling": True}, 1, {}),
    "pretraining": ({"whole_words": True}, 1, {}),
}


class KilledAtStep(TrainerCallback):
    def __init__(self, step: int, event: str) -> None:
        self.step = step
        setattr(self, event, self.kill)

    def kill(self, args, state, control, **kwargs):
        if state.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def trainer_for(case, bert, german, folder):
    method, (options, columns, changes) = method_of(case), CASES[case]
    torch.manual_seed(0)
    transformer = Transformer(bert)
    model = SentenceTransformer(modules=[transformer, Pooling(32, "cls")], device="cpu")
    built, callbacks = {}, []
    if case == "twins-german":
        built["fraternal"] = stc.FraternalEmbedding.from_pretrained(german, model)
    data = method.dataset(*TWO[:columns], **built)
    if case == "conisi-fresh":
        fresh = FreshAugmentation({"constructed": ("sentence", RandomDeletion(0.3))})
        data.set_transform(fresh)
        callbacks.append(fresh)
    arguments = SentenceTransformerTrainingArguments(
        folder,
        per_device_train_batch_size=2,
        max_steps=STEPS,
        learning_rate=1e-3,
        max_grad_norm=0.5,
        logging_steps=2,  # so that some checkpoints fall between two logs
        save_steps=EACH,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **changes,
    )
    loss = method.loss_class(model, **options, **built)
    return ContrastiveTrainer(model, arguments, data, loss=loss, callbacks=callbacks)


def watch_saving(trainer, rng, events):
    """Count the file operations of all checkpoints. With ``rng``, die at one of them, or some milliseconds into one."""
    inner, counted, saving = trainer._save_checkpoint, 0, False
    at = rng.randrange(events) if rng and rng.random() < 0.6 else None
    moment = rng.random() * 0.04 if rng and at is None else None

    def hook(event, _):
        nonlocal counted
        if saving and event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"):
            counted += 1
            if counted == at:
                os.kill(os.getpid(), signal.SIGKILL)

    def save(*args):
        nonlocal saving
        saving = True
        if moment is not None:
            threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
        inner(*args)
        saving = False

    sys.addaudithook(hook)
    trainer._save_checkpoint = save
    return lambda: counted


def life(case, bert, german, folder, kill=None, events=None):
    """One process: trains from the newest complete checkpoint on. Gives back how it ended."""
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            trainer = trainer_for(case, bert, german, str(folder))
            in_a_step = kill is not None and kill.random() < 0.4
            counted = watch_saving(trainer, None if in_a_step else kill, events)
            if in_a_step:
                event = kill.choice(["on_step_begin", "on_pre_optimizer_step", "on_step_end", "on_epoch_begin"])
                trainer.add_callback(KilledAtStep(kill.randrange(STEPS), event))
            resumed = any(folder.glob("checkpoint-*"))
            trainer.train(resume_from_checkpoint=resumed or None)
            tensors = {name: tensor.contiguous().clone() for name, tensor in trainer.loss.state_dict().items()}
            save_file(tensors, folder / "end.safetensors")
            logs = [
                {k: v for k, v in log.items() if "runtime" not in k and "per_second" not in k}
                for log in trainer.state.log_history
            ]
            (folder / "end.json").write_text(json.dumps({"logs": logs[:-1], "events": counted()}))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    case, kills, seed, bert, german, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    whole, broken = Path(folder, "whole"), Path(folder, "broken")
    whole.mkdir()
    broken.mkdir()
    assert life(case, bert, german, whole) == 0
    expected = json.loads((whole / "end.json").read_text())
    rng = random.Random(int(seed))
    died = 0
    while died < int(kills):
        point = random.Random(rng.random())
        ended = life(case, bert, german, broken, point, expected["events"])
        assert ended in (0, -signal.SIGKILL), ended
        died += ended != 0
        if ended == 0:  # it was through before its point came: back to its end, an earlier checkpoint, or the start
            (broken / "end.json").unlink()
            for newest in sorted(broken.glob("checkpoint-*"))[rng.randrange(3) :]:
                shutil.rmtree(newest)
        left = sorted(entry.name for entry in broken.glob("checkpoint-*"))
        assert all((broken / name / "loss_state.safetensors").is_file() for name in left), left
    assert life(case, bert, german, broken) == 0
    found = json.loads((broken / "end.json").read_text())
    assert len(expected["logs"]) == STEPS // 2
    assert found["logs"] == expected["logs"], (found["logs"], expected["logs"])
    first, second = load_file(whole / "end.safetensors"), load_file(broken / "end.safetensors")
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    owned = [name for name in first if not name.startswith("model.")]
    assert owned, "nothing was owned"
    print(f"{case}: {died} kills, {len(first)} tensors ({len(owned)} owned) and {len(found['logs'])} logs are equal")


if __name__ == "__main__":
    main()
