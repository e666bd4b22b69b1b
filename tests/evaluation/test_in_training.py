"""The evaluator in both training loops, and that it leaves training as it is."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from torch.utils.data import DataLoader

from st_contrastive import SimCSELoss, text_dataset, text_examples
from st_contrastive.evaluation import EvaluationDataError, STSEvaluator, STSPairs, sts_spearman
from st_contrastive.training import ContrastiveTrainer
from tests.filters import TRAINING

pytestmark = [*TRAINING]


@pytest.fixture
def pairs(sentences):
    return STSPairs(tuple(sentences), tuple(sentences[3:] + sentences[:3]), tuple(map(float, range(len(sentences)))))


def arguments(folder, **more):
    return SentenceTransformerTrainingArguments(
        str(folder), per_device_train_batch_size=4, max_steps=4, learning_rate=1e-3, save_strategy="no",
        report_to="none", use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True, **more,
    )  # fmt: skip


def test_trainer_evaluates(build, sentences, pairs, tmp_path):
    model = build()
    trainer = ContrastiveTrainer(
        model,
        arguments(tmp_path, eval_strategy="steps", eval_steps=2),
        text_dataset(sentences),
        loss=SimCSELoss(model),
        evaluator=STSEvaluator(pairs, "x", batch_size=3),
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "eval_x_spearman" in entry]
    assert [entry["step"] for entry in logged] == [2, 4]
    assert logged[-1]["eval_x_spearman"] == pytest.approx(sts_spearman(model.eval(), pairs), abs=1e-9)


def test_an_evaluation_draws_nothing(build, pairs):
    model = build()
    before = torch.get_rng_state()
    assert STSEvaluator(pairs)(model)["stsb-dev_spearman"] != 0
    assert torch.equal(torch.get_rng_state(), before)


def test_fit_keeps_the_best(build, sentences, pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build()
    seen = []
    evaluator = STSEvaluator(pairs)
    original = STSEvaluator.__call__
    monkeypatch.setattr(
        STSEvaluator, "__call__", lambda self, *a, **k: seen.append(original(self, *a, **k)) or dict(seen[-1])
    )
    loader = DataLoader(text_examples(sentences), batch_size=4, shuffle=True)
    model.fit(
        [(loader, SimCSELoss(model))], evaluator=evaluator, evaluation_steps=1, epochs=2, warmup_steps=0,
        optimizer_params={"lr": 1e-2}, output_path=str(tmp_path / "out"), show_progress_bar=False,
    )  # fmt: skip
    values = [entry["stsb-dev_spearman"] for entry in seen]
    assert len(set(values)) > 2
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert sts_spearman(saved, pairs) == pytest.approx(max(values), abs=1e-6)


def test_precision_and_bad_files(build, pairs, tmp_path):
    model = build().eval()
    plain, low = (STSEvaluator(pairs, "x", dtype=dtype)(model)["x_spearman"] for dtype in (None, torch.bfloat16))
    assert plain == sts_spearman(model, pairs)
    assert low == pytest.approx(plain, abs=0.2)
    assert STSEvaluator(pairs).description == "Semantic Similarity"
    with pytest.raises(EvaluationDataError, match="No such file"):
        STSEvaluator(tmp_path / "none.jsonl")


def test_the_evaluators_precision_is_that_of_the_encoder(build, pairs):
    seen, model = [], build()
    layer = model[0].model.encoder.layer[0]
    layer.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    for dtype in (None, torch.bfloat16):
        seen.clear()
        STSEvaluator(pairs, dtype=dtype)(model)
        assert set(seen) == {dtype is not None}
