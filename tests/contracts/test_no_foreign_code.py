"""No pickle is loaded and no code of a checkpoint is run: read off the source, and tried on checkpoints that would."""

from __future__ import annotations

import ast
import builtins
import json
import os
import pickle
import shutil
import textwrap
from pathlib import Path

import pytest
import torch

import st_contrastive
from st_contrastive import DiffCSELoss, FraternalEmbedding, InfoCSELoss
from st_contrastive.cli import main
from st_contrastive.components import MaskedLMHead, load_auxiliary
from st_contrastive.inputs import TranslationError, Translator
from tests.filters import TRAINING

ROOT = Path(st_contrastive.__file__).parent
PICKLES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
RUNS = {"eval", "exec", "compile", "__import__", "import_module", "run_path", "run_module"}
pytestmark = [
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
    *TRAINING,
]


def faults(source: str) -> list[str]:
    """What in a source loads a pickle, runs foreign code, or leaves it to a default whether to."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLES:
            found.append(f"from {node.module} import")
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.split(".")[0] in PICKLES and name != "pickle.UnpicklingError":
                found.append(name)
        if isinstance(node, ast.Dict):
            pairs = [(key.value, value) for key, value in zip(node.keys, node.values, strict=True)
                     if isinstance(key, ast.Constant)]  # fmt: skip
            found += [f"{name} in a dict" for name, value in pairs if not _is_safe(name, value)]
        if isinstance(node, ast.Call):
            found += _call_faults(node)
    return found


def _is_safe(name: object, value: ast.expr) -> bool:
    safe = {"trust_remote_code": False, "weights_only": True, "use_safetensors": True, "allow_pickle": False}
    return name not in safe or (isinstance(value, ast.Constant) and value.value is safe[name])


def _call_faults(node: ast.Call) -> list[str]:
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    found = [f"{name}=..." for name, value in given.items() if not _is_safe(name, value)]
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    own_room = name == "import_module" and ast.unparse(node.args[0]).startswith(("f'{__name__}.", "'st_contrastive."))
    namesake = (name == "eval" and owner) or (owner, name) == ("re", "compile")  # PyTorch's evaluation mode
    if name in RUNS and not own_room and not namesake:
        found.append(name)
    needed: set[str] = set()
    if (owner, name) == ("torch", "load"):
        needed = {"weights_only"}
    elif owner.startswith("Auto") and name in ("from_pretrained", "from_config"):
        needed = {"trust_remote_code"}
        if owner.startswith("AutoModel") and name == "from_pretrained":
            needed |= {"use_safetensors"}
    elif name == "SentenceTransformer" and node.args:
        needed = {"trust_remote_code"}
    elif name == "Transformer":
        needed = {"model_kwargs", "config_kwargs", "processor_kwargs"}
    return found + [f"{name} without {missing}" for missing in sorted(needed - given.keys())]


def test_the_source_loads_no_pickle_and_runs_no_code_of_others():
    loads = 0
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        assert not faults(source), path
        loads += source.count(".from_pretrained(") + source.count("torch.load(")
    assert loads > 8


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import pickle\npickle.load(f)", "pickle.load"),
        ("from pickle import loads", "from pickle import"),
        ("torch.load(f)", "load without weights_only"),
        ("torch.load(f, weights_only=False)", "weights_only=..."),
        ("AutoConfig.from_pretrained(n)", "from_pretrained without trust_remote_code"),
        ("AutoModel.from_pretrained(n, trust_remote_code=False)", "from_pretrained without use_safetensors"),
        ("AutoTokenizer.from_pretrained(n, trust_remote_code=trust)", "trust_remote_code=..."),
        ("o = {'trust_remote_code': True}", "trust_remote_code in a dict"),
        ("SentenceTransformer(n)", "SentenceTransformer without trust_remote_code"),
        ("Transformer(n, model_kwargs=m)", "Transformer without config_kwargs"),
        ("exec(text)", "exec"),
        ("importlib.import_module(n)", "import_module"),
    ],
)
def test_the_reading_finds_what_it_looks_for(source, fault):
    assert fault in faults(source)


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
    (folder / "evil.py").write_text(textwrap.dedent(CODE.format(marker=str(marker))))
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


def with_a_bare_pickle(folder, marker):
    """As pickle writes it, without torch."""
    with_a_pickle(folder, marker)
    for file in [*folder.rglob("*.bin"), *folder.glob("*.pt")]:
        file.write_bytes(pickle.dumps(Sprung(marker)))


def with_a_pickled_module(folder, marker):
    """An encoder that is as it should be, before a module that is a pickle."""
    weights = {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}
    with_a_pickle(folder, marker)
    for name, content in weights.items():
        (folder / name).write_bytes(content)


CODE_TRAPS = [of_an_unknown_kind, of_modules_of_its_own]
PICKLE_TRAPS = [with_a_pickle, with_a_bare_pickle]


@pytest.fixture(params=[*CODE_TRAPS, *PICKLE_TRAPS], ids=lambda trap: trap.__name__)
def trap(request, checkpoint, tmp_path, marker, monkeypatch):
    folder = tmp_path / "trap"
    shutil.copytree(checkpoint("bert-mlm"), folder)
    request.param(folder, marker)
    monkeypatch.chdir(folder)  # its code could be imported from here
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences))
    return path


def test_the_traps_would_spring(tmp_path, checkpoint):
    from sentence_transformers import SentenceTransformer

    for trap in [*CODE_TRAPS, *PICKLE_TRAPS]:
        mark, folder = tmp_path / f"{trap.__name__} ran", tmp_path / trap.__name__
        shutil.copytree(checkpoint("bert-mlm"), folder)
        trap(folder, mark)
        if trap is with_a_bare_pickle:  # torch refuses it anyway
            pickle.loads((folder / "pytorch_model.bin").read_bytes())
        elif trap is with_a_pickle:
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
        with pytest.raises((OSError, ValueError, TranslationError)) as info:
            call()
        assert str(trap) in str(info.value), name
        assert "\n" not in str(info.value), name
        assert len(str(info.value)) < 800, name
    # A head of the checkpoint's own is looked for; without one, a new one is made, or it is said that there is none.
    encoder.config._name_or_path = str(trap)
    if "evil" in (trap / "config.json").read_text():
        with pytest.raises(ValueError, match="no suitable masked-LM head"):
            MaskedLMHead.for_encoder(encoder)
    else:
        assert MaskedLMHead.for_encoder(encoder).source == "new"


def test_no_command_springs_a_trap(trap, checkpoint, corpus, tmp_path, sentences, capsys):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{text}\t{text}\n" for text in sentences))
    sts = tmp_path / "sts" / "tiny"
    sts.mkdir(parents=True)
    rows = [{"sentence1": text, "sentence2": "a", "score": place} for place, text in enumerate(sentences)]
    (sts / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = ["--output", str(tmp_path / "out"), "--max-steps", "1", "--data"]
    train, bert = ["train", *common, str(corpus), "--method"], ["--model", str(checkpoint("bert"))]
    commands = [
        [*train, "simcse", "--model", str(trap)],
        [*train, "simcse", "--model", str(trap), "--pooling", "keep"],
        [*train, "infocse", *bert, "--auxiliary", str(trap)],
        [*train, "diffcse", *bert, "--generator", str(trap)],
        [
            "train",
            *common,
            str(pairs),
            "--translations",
            str(pairs),
            "--method",
            "twins",
            *bert,
            "--translation-encoder",
            str(trap),
        ],
        ["pretrain-infocse", *common, str(corpus), "--model", str(trap)],
        ["evaluate", str(trap), "--eval-data", str(sts.parent)],
        ["evaluate", str(trap), "--pooling", "mean", "--eval-data", str(sts.parent)],
        ["translate", "--model", str(trap), "--data", str(corpus), "--output", str(tmp_path / "out.jsonl")],
    ]
    for command in commands:
        assert main(command) == 2, command
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("st-contrastive: ")]
        assert len(lines) == 1
        assert str(trap) in lines[0]
        assert not list(tmp_path.glob("*out*"))


def test_a_module_behind_the_encoder_springs_no_trap(checkpoint, corpus, tmp_path, marker, capsys):
    folder = tmp_path / "pickled"
    shutil.copytree(checkpoint("bert-mlm"), folder)
    with_a_pickled_module(folder, marker)
    given = ["train", "--method", "simcse", "--model", str(folder), "--data", str(corpus), "--pooling", "keep"]
    assert main([*given, "--output", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"--model {folder}: it can't be loaded: its weights are a pickle that holds more than tensors" in line


def test_code_that_is_not_needed_is_passed_over(checkpoint, corpus, tmp_path, marker):
    """A known family loads as transformers' own, whatever code lies beside it."""
    folder = tmp_path / "known"
    shutil.copytree(checkpoint("bert-mlm"), folder)
    code_beside(folder, marker)
    configured(folder, "config.json", auto_map=dict.fromkeys(CLASSES, "evil.Evil"))
    output = str(tmp_path / "out")
    given = ["train", "--method", "diffcse", "--model", str(folder), "--generator", str(folder)]
    assert main([*given, "--data", str(corpus), "--output", output, "--max-steps", "1", "--batch-size", "4"]) == 0


def test_weights_that_are_no_safetensors_are_refused_with_the_remedy(checkpoint, tmp_path, corpus, capsys):
    from safetensors.torch import load_file

    folder = tmp_path / "old"
    shutil.copytree(checkpoint("bert"), folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    for pooling in ("cls", "keep"):
        given = ["train", "--method", "simcse", "--model", str(folder), "--pooling", pooling, "--data", str(corpus)]
        assert main([*given, "--output", str(tmp_path / "out")]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        convert = [f"{name}.from_pretrained({str(folder)!r})" for name in ("AutoModelForMaskedLM", "AutoTokenizer")]
        assert "Its weights must be safetensors; to convert them:" in line
        assert all(part in line for part in convert)  # the masked-LM head, if there is one, is kept
        assert str(folder) in line
