"""What is uploaded: the model, its card and what loads it. The hub's client is replaced, and nothing is sent."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import transformers.trainer
from huggingface_hub.utils import filter_repo_objects

from st_contrastive import recipes
from st_contrastive.training import ContrastiveTrainer
from tests.cases import SENTENCES

#: Of the tiny encoder.
MODEL = {
    "1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json", "model.safetensors",
    "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip


class Uploaded(str):
    """The answer to an upload, and its future."""

    repo_id, url = "me/model", "https://example.org"

    def done(self):
        return True

    def result(self):
        return None


class Hub:
    """The hub's client: keeps the files of each upload by its message."""

    def __init__(self):
        self.uploads = {}

    def create_repo(self, *args, **kwargs):
        return Uploaded("me/model")

    def upload_folder(self, *, folder_path, commit_message, ignore_patterns=None, **kwargs):
        root = Path(folder_path)
        names = [str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()]
        names = filter_repo_objects(names, ignore_patterns=ignore_patterns)
        self.uploads[commit_message] = {name: (root / name).read_bytes() for name in names}
        return Uploaded("uploaded")


@pytest.fixture
def hub(monkeypatch):
    client = Hub()
    monkeypatch.setattr(transformers.trainer, "hf_api", lambda *args, **kwargs: client)
    return client


PUSHED = {"push_to_hub": True, "hub_model_id": "me/model", "save_steps": 2, "max_steps": 4}


@pytest.mark.parametrize("strategy", ["every_save", "end"])
def test_a_run_of_two_stages_publishes_its_model(hub, checkpoint, tmp_path, strategy):
    data = tmp_path / "home-of-jane" / "mails.txt"
    data.parent.mkdir()
    data.write_text("\n".join(SENTENCES), encoding="utf-8")
    recipes.run(
        "infocse-bert-base", model=str(checkpoint("bert-mlm")), data=data, dev=None, output_dir=tmp_path / "out",
        per_device_train_batch_size=4, hub_strategy=strategy, **PUSHED,
    )  # fmt: skip
    assert len(hub.uploads) == (3 if strategy == "every_save" else 1)
    for files in hub.uploads.values():
        assert files.keys() == MODEL
        private = (b"home-of-jane", bytes(tmp_path))
        assert [name for name, content in files.items() if any(path in content for path in private)] == []
    end = hub.uploads["End of training"]
    assert end["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()
    assert not {*Path(tmp_path, "out").iterdir()} & {Path(tmp_path, "out", "training_args.bin")}


def test_a_pretrained_model_comes_with_its_auxiliary_network(hub, checkpoint, tmp_path):
    given = {"model": str(checkpoint("bert-mlm")), "data": SENTENCES, "per_device_train_batch_size": 4}
    recipes.run(
        recipes.Recipe("", "pretraining", {}), output_dir=tmp_path / "out", hub_strategy="every_save", **given, **PUSHED
    )
    auxiliary = {"auxiliary.safetensors", "auxiliary_config.json"}
    assert hub.uploads["End of training"].keys() == MODEL | auxiliary
    assert hub.uploads["Training in progress, step 4"].keys() == MODEL


def test_a_trainer_publishes_its_model(hub, made, arguments):
    """Also one that did not push while it trained; checkpoints are uploaded where the strategy asks for them."""
    loss, data = made("twins")
    trainer = ContrastiveTrainer(loss.model, arguments(max_steps=2), data, loss=loss)
    trainer.train()
    trainer.push_to_hub()
    assert hub.uploads["End of training"].keys() == MODEL
    assert trainer.args.output_dir == arguments().output_dir
    loss, data = made("twins")
    changes = {**PUSHED, "max_steps": 2, "hub_strategy": "checkpoint", "output_dir": f"{arguments().output_dir}-2"}
    ContrastiveTrainer(loss.model, arguments(**changes), data, loss=loss).train()
    states = hub.uploads["Training in progress, step 2"].keys()
    assert states >= MODEL | {"loss_state.safetensors", "trainer_state.json", "optimizer.pt"}
    assert "training_args.bin" not in states


def test_a_checkpoint_may_be_deleted_before_it_is_uploaded(hub, made, arguments):
    """With save_total_limit, transformers deletes it when the next one is saved, or at the end of training."""

    def slowly(**given):
        time.sleep(0.5)
        return upload(**given)

    upload, executor = hub.upload_folder, ThreadPoolExecutor(4)
    hub.upload_folder = lambda **given: executor.submit(slowly, **given)
    loss, data = made("twins")
    changes = {**PUSHED, "max_steps": 3, "save_steps": 1, "save_total_limit": 1, "hub_always_push": True}
    trainer = ContrastiveTrainer(loss.model, arguments(**changes), data, loss=loss)
    trainer.train()
    assert [hub.uploads[f"Training in progress, step {step}"].keys() for step in (1, 2, 3)] == [MODEL] * 3
    assert not [*Path(trainer.args.output_dir).glob(".upload-*")]
