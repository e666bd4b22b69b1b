"""Every loss under fit, the Trainer, old_fit and a plain loop; saved, and loaded without this package."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch.utils.data import DataLoader

import st_contrastive as stc
from tests.conftest import without_the_package
from tests.methods import every_method, method_of
from tests.selection import crossed

#: Options of the loss, and text columns.
CASES = {
    **every_method(twins={"queue_batches": 2}, infocse={"mlm_weight": 0.1}),
    "conisi-given": ({"strategy": "given"}, 2),
    "twins-one": ({}, 1),
}

#: What `fit` and `old_fit` are called with alike.
FIT_OPTIONS = {"epochs": 2, "warmup_steps": 0, "optimizer_params": {"lr": 1e-3}, "show_progress_bar": False}

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def method(case):
    return method_of(case)


@pytest.fixture
def options(case):
    return CASES[case][0]


@pytest.fixture
def texts(sentences, case):
    # 9 rows in batches of 4: the last batch is one row.
    return [sentences[:9], sentences[:0:-1]][: CASES[case][1]]


def first_weight(model):
    return model[0].model.encoder.layer[0].attention.self.query.weight.detach().clone()


def assert_trained(model, loss, before, head_before):
    assert not torch.equal(first_weight(model), before)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    after = [parameter.detach() for parameter in owned(loss)]
    assert len(after) == len(head_before)
    assert all(not torch.equal(new, old) for new, old in zip(after, head_before, strict=True))


def owned(loss):
    mine = {id(parameter) for parameter in loss.model.parameters()}
    return [p for p in loss.parameters() if id(p) not in mine and p.requires_grad]


def copies(loss):
    return [parameter.detach().clone() for parameter in owned(loss)]


@pytest.mark.parametrize(
    ("case", "log_terms"), crossed(CASES, [True, False], quick=lambda case, log_terms: log_terms != (case == "simcse"))
)
def test_fit(build, method, options, texts, tmp_path, monkeypatch, log_terms):
    monkeypatch.chdir(tmp_path)
    model = build()
    before, loss = first_weight(model), method.loss_class(model, **options, log_terms=log_terms)
    head_before = copies(loss)
    loader = DataLoader(method.examples(*texts), batch_size=4, shuffle=True)
    model.fit(
        train_objectives=[(loader, loss)],
        output_path=str(tmp_path / "out"),
        **FIT_OPTIONS,
    )
    assert_trained(model, loss, before, head_before)
    found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts[0])
    np.testing.assert_allclose(found, model.eval().encode(texts[0]), atol=1e-6)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"loss:{method.loss}" in card
    assert "@" in loss.citation
    assert loss.citation.strip().splitlines()[0] in card
    assert '"log_terms": ' in card


@pytest.mark.parametrize("own_process", [False, pytest.param(True, marks=pytest.mark.long)])
def test_saved_models_load_where_the_package_is_not(build, sentences, tmp_path, own_process):
    """After a step with each loss, where this package can't be imported: the same embeddings."""
    expected = {}
    for name, (options, columns) in CASES.items():
        model = build()
        loss = method_of(name).loss_class(model, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss([model.preprocess(part) for part in (sentences, sentences[::-1])[:columns]]).total.backward()
        optimizer.step()
        model.save_pretrained(str(tmp_path / name))
        expected[name] = model.eval().encode(sentences)
    if not own_process:
        with without_the_package():
            for name, vectors in expected.items():
                found = SentenceTransformer(str(tmp_path / name), device="cpu").encode(sentences)
                np.testing.assert_allclose(found, vectors, atol=1e-6)
        return
    script = (
        "import sys; sys.modules['st_contrastive'] = None\n"
        "import numpy as np\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"for name in {list(expected)!r}:\n"
        f"    model = SentenceTransformer({str(tmp_path)!r} + '/' + name, device='cpu')\n"
        f"    np.save({str(tmp_path)!r} + '/' + name + '.npy', model.encode({sentences!r}))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert len(expected) == len(CASES)
    for name, vectors in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), vectors, atol=1e-6)


def trainer_arguments(folder, **changes):
    options = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        **changes,
    }
    return SentenceTransformerTrainingArguments(**options)


@pytest.mark.parametrize(
    ("case", "log_terms", "lazily"),
    crossed(
        CASES,
        [True, False],
        [True, False],
        quick=lambda case, log_terms, lazily: (log_terms, lazily) == (True, case != "simcse"),
    ),
)
def test_trainer_with_evaluation_between(build, method, options, texts, tmp_path, log_terms, lazily):
    model = build()
    before, made = first_weight(model), []

    def make(encoder):
        made.append(method.loss_class(encoder, **options, log_terms=log_terms))
        made.append(copies(made[0]))
        return made[0]

    trainer = SentenceTransformerTrainer(
        model=model,
        args=trainer_arguments(tmp_path, eval_strategy="steps", eval_steps=1),
        train_dataset=method.dataset(*texts),
        eval_dataset=method.dataset(*(column[:3] for column in texts)),
        loss=make if lazily else make(model),
    )
    trainer.train()
    loss, head_before = made
    assert_trained(model, loss, before, head_before)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 6
    assert all(math.isfinite(entry["loss"]) for entry in logged)
    if isinstance(loss, stc.TwinsLoss):
        # Training's batches of 4, 4 and 1 rows, and none of the evaluation's.
        assert len(loss.queue) == (4 + 1 if loss.queue_batches == 2 else 4 + 4 + 1)
    if log_terms:
        with torch.no_grad():
            terms = loss([model.preprocess(column) for column in texts])
        for name in terms:
            assert all(name in entry for entry in logged)
            assert any(f"eval_{name}" in entry for entry in trainer.state.log_history)


@pytest.mark.parametrize(
    ("case", "log_terms"), crossed(CASES, [True, False], quick=lambda case, log_terms: case == "infocse" and log_terms)
)
def test_old_fit(build, method, options, texts, tmp_path, log_terms):
    model = build()
    before, loss = first_weight(model), method.loss_class(model, **options, log_terms=log_terms)
    head_before = copies(loss)
    model.old_fit(
        train_objectives=[(DataLoader(method.examples(*texts), batch_size=4), loss)],
        output_path=str(tmp_path / "out"),
        **FIT_OPTIONS,
    )
    assert_trained(model, loss, before, head_before)
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts[0]).shape == (9, 32)


@pytest.mark.parametrize(
    ("case", "log_terms"), crossed(CASES, [True, False], quick=lambda case, log_terms: log_terms != (case == "simcse"))
)
def test_plain_loop(build, method, options, texts, log_terms):
    model = build()
    before, loss = first_weight(model), method.loss_class(model, **options, log_terms=log_terms)
    head_before = copies(loss)
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(3):
        value = loss([model.preprocess(column) for column in texts])
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert math.isfinite(value.item())
    assert_trained(model, loss, before, head_before)


def test_several_losses_in_one_fit(build, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build()
    objectives = [
        (DataLoader(stc.text_examples(sentences), batch_size=4), stc.SimCSELoss(model)),
        (DataLoader(stc.twins_examples(sentences, sentences[::-1]), batch_size=4), stc.TwinsLoss(model)),
    ]
    before = first_weight(model)
    model.fit(train_objectives=objectives, epochs=1, warmup_steps=0, show_progress_bar=False)
    assert not torch.equal(first_weight(model), before)


def test_saved_model_has_nothing_of_the_loss(build, sentences, tmp_path):
    model = build()
    names = set(model.state_dict())
    loss = stc.TwinsLoss(model)
    loss([model.preprocess(sentences), model.preprocess(sentences)]).backward()
    assert set(model.state_dict()) == names
    model.save(str(tmp_path))
    assert not any("queue" in path.name or "head" in path.name for path in tmp_path.rglob("*"))
    hooks = [h for module in model.modules() for h in (*module._forward_pre_hooks, *module._forward_hooks)]
    assert not hooks
