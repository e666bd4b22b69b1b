"""No pickle is loaded and no code of a checkpoint is run: read off the source, and tried on checkpoints that would."""

from __future__ import annotations

import ast
import builtins
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

import st_contrastive
from st_contrastive import DiffCSELoss, FraternalEmbedding, InfoCSELoss
from st_contrastive.cli import main
from st_contrastive.components import MaskedLMHead, load_auxiliary
from st_contrastive.inputs import Translator

ROOT = Path(st_contrastive.__file__).parent
#: Arguments that must be named at calls of these functions, and the only value that they may have.
SAFE = {"trust_remote_code": False, "weights_only": True, "use_safetensors": True, "allow_pickle": False}
NEEDED = {
    "torch.load": {"weights_only"}, "from_pretrained": {"trust_remote_code"}, "from_config": {"trust_remote_code"},
    "SentenceTransformer": {"trust_remote_code"},
}  # fmt: skip


def faults(source: str) -> list[str]:
    """What in a source loads a pickle, runs foreign code, or leaves it to a default whether to."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [name for name in names if name in ("dill", "cloudpickle", "joblib", "shelve", "marshal")]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found += [key.value for key, value in pairs if isinstance(key, ast.Constant) and not safe(key.value, value)]
        if isinstance(node, ast.Call):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            found += [f"{name}=" for name, value in given.items() if not safe(name, value)]
            function = ast.unparse(node.func)
            found += [function] * (function in ("eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads"))
            owner, _, name = function.rpartition(".")
            loads = (name != "from_pretrained" and name != "from_config") or owner.startswith("Auto")
            needed = NEEDED.get(function, NEEDED.get(name, set())) if loads else set()
            if node.args or name == "from_config":
                found += [f"{function} without {missing}" for missing in needed - given.keys()]
    return found


def safe(name: object, value: ast.expr) -> bool:
    return name not in SAFE or (isinstance(value, ast.Constant) and value.value is SAFE[name])


def test_the_source_loads_no_pickle_and_runs_no_code_of_others():
    loads = 0
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        assert not faults(source), path
        loads += source.count(".from_pretrained(") + source.count("torch.load(")
    assert loads > 5
    for source in (
        "pickle.load(f)", "from dill import loads", "torch.load(f)", "torch.load(f, weights_only=False)", "exec(text)",
        "AutoConfig.from_pretrained(n)", "AutoTokenizer.from_pretrained(n, trust_remote_code=trust)",
        "o = {'trust_remote_code': True}", "SentenceTransformer(n)",
    ):  # fmt: skip
        assert faults(source), source


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
    """A checkpoint whose configuration names the code that loads it."""
    code_beside(folder, marker)
    named = dict.fromkeys(CLASSES, "evil.Evil")
    configured(folder, "config.json", auto_map=named, model_type="evil", architectures=["Evil"])
    configured(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")


def of_modules_of_its_own(folder, marker):
    """A saved model with a custom module class."""
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


def test_the_traps_work(tmp_path, checkpoint):
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
    encoder.config.name_or_path = str(trap)
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
