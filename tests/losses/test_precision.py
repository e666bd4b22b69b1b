"""The run's precision reaches what a loss owns: under the Trainer, ``fit``, and in nobody's but the run's."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainer
from torch import nn
from torch.utils.data import DataLoader
from transformers import AttentionInterface, AttentionMaskInterface, modeling_utils

from st_contrastive import (
    ConIsILoss,
    DiffCSELoss,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
    input_examples,
    text_dataset,
)
from st_contrastive.components import MaskedLMHead, ReplacedTokenDetector
from st_contrastive.losses import conisi
from st_contrastive.losses import step as step_module
from st_contrastive.training import ContrastiveTrainer
from tests.cases import arguments_of, switch_off_dropout

#: Each loss with what it can own, and fewest linear layers in that.
OWNERS = {
    "simcse": (lambda model: SimCSELoss(model, mlm_weight=0.1), 2),
    "conisi": (lambda model: ConIsILoss(model), 2),
    "infocse": (lambda model: InfoCSELoss(model, mlm_weight=0.1, head="projector", rtd_weight=0.1), 40),
    "diffcse": (lambda model: DiffCSELoss(model, rtd_weight=0.1), 30),
    "momentum": (lambda model: MomentumContrastLoss(model), 20),
}
GPU = torch.cuda.is_available()


def train(way, model, loss, sentences, folder, **options):
    """One step of all sentences."""
    if way == "fit":
        loader = DataLoader(input_examples(text_dataset(sentences)), batch_size=len(sentences), shuffle=False)
        model.fit([(loader, loss)], epochs=1, warmup_steps=0, use_amp=True, show_progress_bar=False)
        return
    options |= {"max_steps": 1, "per_device_train_batch_size": len(sentences), "learning_rate": 5e-5}
    arguments = arguments_of(folder, save_strategy="no", use_cpu=not GPU, **options)
    trainer_class = {"Trainer": SentenceTransformerTrainer, "ContrastiveTrainer": ContrastiveTrainer}[way]
    trainer_class(model, arguments, text_dataset(sentences), loss=loss).train()


@pytest.fixture
def step(build, sentences, tmp_path, monkeypatch):
    """``step(name, way, **options)``: the types of what each owned linear layer gave in a step, of what the objectives
    were given, and the terms."""
    monkeypatch.chdir(tmp_path)

    def run(name, way, **options):
        torch.manual_seed(0)
        model = build("bert-mlm", dropout=False)
        if GPU:
            model.to("cuda")
        loss = OWNERS[name][0](model)
        switch_off_dropout(loss)
        kinds, objectives, terms = {}, set(), {}
        encoders = {id(part) for part in model.modules()}
        for key, part in loss.named_modules():
            if isinstance(part, nn.Linear) and id(part) not in encoders:
                part.register_forward_hook(lambda _, __, out, key=key: kinds.setdefault(key, set()).add(out.dtype))

        def noted(function):
            def call(*args, **kwargs):
                result = function(*args, **kwargs)
                objectives.add(result[0].dtype if isinstance(result, tuple) else result.dtype)
                return result

            return call

        for owner, objective in ((step_module, "info_nce"), (MaskedLMHead, "summed_losses"),
                                 (ReplacedTokenDetector, "summed_losses"), (conisi, "interaction")):  # fmt: skip
            monkeypatch.setattr(owner, objective, noted(getattr(owner, objective)))
        loss.register_forward_hook(lambda _, __, out: terms.update({key: term.item() for key, term in out.items()}))
        torch.manual_seed(1)
        train(way, model, loss, sentences, tmp_path / "run", **options)
        monkeypatch.undo()
        return kinds, objectives, terms

    return run


@pytest.mark.parametrize("way", ["Trainer", "ContrastiveTrainer"])
@pytest.mark.parametrize("name", OWNERS)
def test_owned_modules_run_in_bfloat16_and_objectives_in_float32(step, name, way):
    plain, _, expected = step(name, way)
    assert {kind for found in plain.values() for kind in found} == {torch.float32}
    kinds, objectives, terms = step(name, way, bf16=True)
    assert len(kinds) >= OWNERS[name][1]
    assert kinds.keys() == plain.keys()
    assert {key: found for key, found in kinds.items() if found != {torch.bfloat16}} == {}
    assert objectives == {torch.float32}
    assert terms == pytest.approx(expected, rel=0.05, abs=0.02)
    assert terms != expected


@pytest.mark.parametrize("way", ["fit", "ContrastiveTrainer"])
@pytest.mark.parametrize("name", OWNERS)
@pytest.mark.skipif(not GPU, reason="float16 is for a GPU; on a CPU, use_amp does nothing")
def test_owned_modules_run_in_float16(step, name, way):
    kinds, objectives, terms = step(name, way, **({} if way == "fit" else {"fp16": True}))
    _, _, expected = step(name, "Trainer")
    assert len(kinds) >= OWNERS[name][1]
    assert {kind for found in kinds.values() for kind in found} == {torch.float16}
    assert objectives == {torch.float32}
    assert terms == pytest.approx(expected, rel=0.02, abs=0.01)


def test_after_a_run_in_bfloat16_the_loss_is_in_float32_again(step, build, sentences, tmp_path):
    """accelerate's settings outlive the run, as in a notebook."""
    model = build(dropout=False)
    loss = SimCSELoss(model)
    expected = loss([model.preprocess(sentences)]).item()
    step("simcse", "Trainer", bf16=True)
    kinds = []
    loss.head.linear.register_forward_hook(lambda _, __, out: kinds.append(out.dtype))
    assert loss([model.preprocess(sentences)]).item() == expected
    train("Trainer", model, loss, sentences, tmp_path)
    assert set(kinds) == {torch.float32}


def flash(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    """As FlashAttention's kernels, which take half precision only."""
    if query.dtype == torch.float32:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    bias = None if attention_mask is None else attention_mask[:, :, :, : key.shape[2]]
    found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register("pretended_flash", flash)
AttentionMaskInterface.register("pretended_flash", AttentionMaskInterface()["sdpa"])


@pytest.mark.parametrize("family", ["bert-mlm", "modernbert-mlm"])
@pytest.mark.parametrize("make", [
    lambda model: InfoCSELoss(model, mlm_weight=0.1, rtd_weight=0.1), DiffCSELoss, TwinsLoss, MomentumContrastLoss,
])  # fmt: skip
def test_flash_attention_under_autocast(build, sentences, tmp_path, monkeypatch, family, make):
    model = build(family)
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", lambda *args, **kwargs: None)  # looks for it
    model[0].model.set_attn_implementation("pretended_flash")
    with pytest.raises(RuntimeError, match="only support fp16"):
        model.encode(sentences)
    loss = make(model)
    seen = []
    loss.register_forward_hook(lambda _, __, out: seen.append(out.total.item()))
    train("Trainer", model, loss, sentences, tmp_path, bf16=True)
    assert len(seen) == 1
    assert torch.isfinite(torch.tensor(seen)).all()
