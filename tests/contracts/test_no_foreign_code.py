"""No pickle is loaded and no code of a checkpoint is run: tried on checkpoints that would."""

from __future__ import annotations

import builtins
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_contrastive import DiffCSELoss, FraternalEmbedding, InfoCSELoss
from st_contrastive.cli import main
from st_contrastive.components import MaskedLMHead, load_auxiliary
from st_contrastive.inputs import Translator


class Sprung:
    """Unpickling this makes a folder."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


CODE = """
from pathlib import Path
Path({marker!r}).touch()
import torch, transformers
class Evil(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
    @classmethod
    def load(cls, *args, **kwargs):
        return cls()
    from_pretrained = load
"""
CLASSES = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoTokenizer")


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """Where code that is run leaves its mark; and nobody is asked whether it may."""
    asked = []
    monkeypatch.setattr(builtins, "input", lambda *question: asked.append(question) or "y")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = tmp_path / "code was run"
    yield file
    assert not file.exists()
    assert not asked


def code_beside(folder: Path, marker: Path) -> None:
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    (folder / "evil").mkdir()
    (folder / "evil" / "__init__.py").write_text(CODE.format(marker=str(marker)))


def configured(folder: Path, name: str, **changes) -> None:
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def of_an_unknown_kind(folder, marker):
    """Its configuration names code that alone can load it."""
    code_beside(folder, marker)
    named = dict.fromkeys(CLASSES, "evil.Evil")
    configured(folder, "config.json", auto_map=named, model_type="evil", architectures=["Evil"])
    configured(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")


def of_modules_of_its_own(folder, marker):
    """A saved model with a module class of its own."""
    code_beside(folder, marker)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    configured(folder, "config_sentence_transformers.json", model_type="SentenceTransformer")
    configured(folder, "config.json", auto_map=dict.fromkeys(CLASSES, "evil.Evil"), model_type="evil")


def with_a_pickle(folder, marker):
    """Pickles for weights, and settings that ask for them to be run."""
    for file in folder.glob("*.safetensors"):
        file.unlink()
    for name in ("pytorch_model.bin", "model.pt"):
        torch.save({"embeddings.word_embeddings.weight": Sprung(marker)}, folder / name)
    loosely = {"weights_only": False, "use_safetensors": False, "trust_remote_code": True}
    configured(folder, "sentence_bert_config.json", model_args=loosely, model_kwargs=loosely)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Dense").mkdir()
    dense = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": "torch.nn.Identity"}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    torch.save({"linear.weight": Sprung(marker)}, folder / "1_Dense" / "pytorch_model.bin")


TRAPS = [of_an_unknown_kind, of_modules_of_its_own, with_a_pickle]


@pytest.fixture(params=TRAPS, ids=lambda trap: trap.__name__)
def trap(request, checkpoint, tmp_path, marker, monkeypatch):
    folder = tmp_path / "trap"
    shutil.copytree(checkpoint("bert-mlm"), folder)
    request.param(folder, marker)
    monkeypatch.chdir(folder)  # its code could be imported from here
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_the_traps_would_spring(tmp_path, checkpoint):
    for trap in TRAPS:
        mark, folder = tmp_path / f"{trap.__name__} ran", tmp_path / trap.__name__
        shutil.copytree(checkpoint("bert-mlm"), folder)
        trap(folder, mark)
        if trap is with_a_pickle:
            torch.load(folder / "pytorch_model.bin", weights_only=False)
        else:
            with pytest.raises(Exception):  # noqa: B017, PT011 - its code is no model
                SentenceTransformer(str(folder), trust_remote_code=True).encode("a")
        assert mark.exists(), trap.__name__


def test_no_loading_call_springs_a_trap(trap, build):
    model = build()
    encoder, tokenizer = model[0].model, model.tokenizer
    calls = {
        "auxiliary": lambda: load_auxiliary(trap, encoder, tokenizer),
        "auxiliary file": lambda: load_auxiliary(trap / "model.pt", encoder, tokenizer),
        "infocse": lambda: InfoCSELoss(model, auxiliary=trap),
        "fraternal": lambda: FraternalEmbedding.from_pretrained(str(trap), model),
        "generator": lambda: DiffCSELoss(model, generator=str(trap)),
        "translator": lambda: Translator(str(trap), prefix=""),
    }
    for name, call in calls.items():
        with pytest.raises((OSError, ValueError)) as info:
            call()
        # Of a model of another kind, transformers names the kind.
        assert str(trap) in str(info.value) or (name == "translator" and "BertConfig" in str(info.value)), name
    # A head of the checkpoint's own is looked for; without one, a new one is made, or it is said that there is none.
    encoder.config._name_or_path = str(trap)
    if "evil" in (trap / "config.json").read_text():
        with pytest.raises(ValueError, match="no suitable masked-LM head"):
            MaskedLMHead.for_encoder(encoder)
    else:
        assert MaskedLMHead.for_encoder(encoder).source == "new"


def test_no_command_springs_a_trap(trap, checkpoint, sentences, sts, tmp_path, capsys):
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out"
    corpus.write_text("\n".join(sentences))
    train = ["train", "--data", str(corpus), "--output_dir", str(out), "--max_steps", "1", "--loss"]
    bert = ["--model", str(checkpoint("bert"))]
    for command in (
        [*train, "simcse", "--model", str(trap)],
        [*train, "infocse", *bert, "--auxiliary", str(trap)],
        [*train, "diffcse", *bert, "--generator", str(trap)],
        ["evaluate", str(trap), "--sts", str(sts)],
    ):
        assert main(command) == 2, command
        assert str(trap) in capsys.readouterr().err, command
        assert not out.exists()
