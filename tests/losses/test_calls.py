"""How a loss is called: modes, loops of one's own, wrappers, prompts, and arguments that no loss can be built with."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss

from st_contrastive import (
    AuxiliaryMLMPretrainingLoss,
    CombinedLoss,
    ConIsILoss,
    DiffCSELoss,
    InfoCSEAblation,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
    text_dataset,
)
from st_contrastive.encoder import Rows, has_dropout
from st_contrastive.losses.base import LossTerms
from tests.filters import TRAINING

pytestmark = [*TRAINING, pytest.mark.filterwarnings("ignore:TwinsLoss was given one column")]


def test_an_encoder_in_the_mode_in_which_it_was_loaded(build, sentences, tmp_path):
    """Its container is in training mode, so that it looks as if it were."""
    build().save_pretrained(str(tmp_path))
    model = SentenceTransformer(str(tmp_path), device="cpu")
    assert model.training
    assert not model[0].model.training
    loss = TwinsLoss(model)
    batch = [model.preprocess(sentences)]
    message = r"was called with gradients and the encoder in evaluation mode.*model\.train"
    with pytest.warns(UserWarning, match=f"TwinsLoss {message}"):
        loss(batch)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*evaluation mode")
        loss(batch)  # said once
        with torch.no_grad():
            TwinsLoss(model)(batch)  # an evaluation
    assert len(loss.queue) == 0
    model.train()
    loss(batch)
    assert len(loss.queue) == len(sentences)
    model.encode(sentences)  # an evaluation in a loop of one's own leaves the whole model in evaluation mode
    with pytest.warns(UserWarning, match=f"SimCSELoss {message}"):
        SimCSELoss(model)(batch)


def test_terms_as_the_tensor_that_loops_expect():
    weight = torch.tensor(2.0, requires_grad=True)
    terms = LossTerms(contrastive=weight * 3, mlm=weight * 1)
    assert float(terms) == terms.item() == 8
    assert (terms / 4).item() == 2
    assert (terms * 0.5).item() == (0.5 * terms).item() == 4
    assert (terms + terms).item() == sum([terms, terms]).item() == 16
    assert (terms + 1).item() == (torch.tensor(1.0) + terms).item() == 9
    assert not terms.detach().requires_grad
    (terms / 4).backward()  # as accelerator.backward does under gradient accumulation
    assert weight.grad.item() == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: SimCSELoss(model, log_terms=False), r"SimCSELoss has a head.*Wrap SimCSELoss\(head=False\)"),
        (lambda model: ConIsILoss(model, log_terms=False), "ConIsILoss has a head"),
        (lambda model: TwinsLoss(model, log_terms=False), "TwinsLoss has a queue of whole vectors"),
        (lambda model: TwinsLoss(model, queue_batches=0, train_pooling="cls", log_terms=False), "train_pooling"),
    ],
)
def test_what_a_loss_that_cuts_the_embeddings_can_not_wrap(build, sentences, make, message):
    model = build().train()
    with pytest.raises(ValueError, match=message):
        MatryoshkaLoss(model, make(model), matryoshka_dims=[32, 16])([model.preprocess(sentences)], None)


def test_what_it_can_wrap(build, sentences):
    model = build().train()
    for loss in (
        SimCSELoss(model, head=False, log_terms=False), TwinsLoss(model, queue_batches=0, log_terms=False),
    ):  # fmt: skip
        total = MatryoshkaLoss(model, loss, matryoshka_dims=[32, 16])([model.preprocess(sentences)], None)
        assert math.isfinite(total.item())


def test_prompts_of_different_length_are_not_fused(build, sentences):
    model = build().train()
    loss = TwinsLoss(model, queue_batches=0)
    prompted, plain = model.preprocess(sentences, prompt="the small cat "), model.preprocess(sentences[::-1])
    with pytest.raises(ValueError, match="prompts of the two columns differ in length"):
        loss([prompted, plain])
    loss([prompted, model.preprocess(sentences[::-1], prompt="the small cat ")])


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (TwinsLoss, {"forgetting_rate": "0.1"}, "forgetting_rate must be a number"),
        (TwinsLoss, {"forgetting_rate": None}, "forgetting_rate must be a number"),
        (TwinsLoss, {"queue_batches": 0, "forgetting_rate": -7}, "forgetting_rate must be a number"),
        (TwinsLoss, {"queue_batches": False}, "queue_batches must be a whole number"),
        (CombinedLoss, {"queue_batches": 0, "forgetting_rate": "x"}, "forgetting_rate must be a number"),
        (MomentumContrastLoss, {"momentum": "0.9"}, "momentum must be a number"),
        (MomentumContrastLoss, {"queue_size": False}, "queue_size must be a whole number"),
        (InfoCSELoss, {"mask_rate": float("nan")}, "mask_rate must be a number above 0"),
        (InfoCSELoss, {"mask_rate": 0}, "mask_rate must be a number above 0"),
        (DiffCSELoss, {"mask_rate": 0}, "mask_rate must be a number above 0"),
        (CombinedLoss, {"mask_rate": 2}, "mask_rate must be a number above 0"),
        (AuxiliaryMLMPretrainingLoss, {"mask_rate": 0}, "mask_rate must be a number above 0"),
        (SimCSELoss, {"mlm_weight": 0.1, "mask_rate": 0}, "mask_rate must be a number above 0"),
        (ConIsILoss, {"replacement_rate": None}, "replacement_rate must be a number"),
        (InfoCSELoss, {"mlm_weight": 0, "ablation": InfoCSEAblation(contrastive_weight=0)}, "no term is left"),
    ],
)
def test_arguments_that_no_loss_is_built_with(build, kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind(build("bert-mlm"), **arguments)


def test_numbers_of_numpy(build):
    loss = TwinsLoss(build(), temperature=np.float32(0.05), queue_batches=np.int64(2), forgetting_rate=np.float64(0.1))
    assert loss.queue.batches == 2


def test_pairs_that_truncation_makes_alike_are_left_out(build):
    model = build().train()
    words = ["rain"] * 58
    rows = Rows.of(model.preprocess([" ".join([*words, "cat"]), " ".join([*words, "dog"])]), model)
    pairs, distinct = ConIsILoss(model).pairs([rows], interacting=True)
    alike = (pairs.ids[:2] == pairs.ids[2:]).all(dim=1)
    assert alike.any()  # 64 positions hold no more than the words in common
    assert torch.equal(distinct, ~alike)
    rows = Rows.of(model.preprocess(["rain cat", "rain dog"]), model)
    assert ConIsILoss(model).pairs([rows], interacting=True)[1].tolist() == [True, True]


def test_the_head_of_an_encoder_that_was_trained_since_it_was_loaded_is_tied_too(build):
    model = build("bert-mlm")
    assert SimCSELoss(model, mlm_weight=0.1).mlm_head.tied
    with torch.no_grad():
        model[0].model.get_input_embeddings().weight += 0.01
    head = SimCSELoss(model, mlm_weight=0.1).mlm_head
    assert head.tied
    assert head.source == "checkpoint"
    width = model.tokenizer.vocab_size * 32
    assert all(parameter.numel() < width for parameter in head.parameters())


@pytest.mark.parametrize(
    "make", [AuxiliaryMLMPretrainingLoss, lambda model: InfoCSELoss(model, ablation=InfoCSEAblation(detach=False))]
)
def test_evaluation_of_a_cast_encoder(build, sentences, tmp_path, make):
    model = build("bert-mlm")
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), bf16_full_eval=True, use_cpu=True, report_to="none", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model, arguments, text_dataset(sentences), eval_dataset=text_dataset(sentences), loss=make(model)
    )
    assert math.isfinite(trainer.evaluate()["eval_loss"])


@pytest.mark.parametrize("kind", [InfoCSELoss, DiffCSELoss, CombinedLoss])
def test_adapters_with_trained_tokens(build, sentences, kind):
    peft = pytest.importorskip("peft")
    model = build("bert-mlm").train()
    model.add_adapter(peft.LoraConfig(target_modules=["query"], trainable_token_indices=[5, 6]))
    kind(model)([model.preprocess(sentences)]).backward()


def test_prompt_tuning_has_no_places_for_masked_tokens(build):
    peft = pytest.importorskip("peft")
    model = build("bert-mlm")
    config = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    model[0].model = peft.get_peft_model(model[0].model, config)
    with pytest.raises(ValueError, match="mlm_weight reads the encoder's own token vectors, and prompt tuning"):
        SimCSELoss(model, mlm_weight=0.1)


def test_a_batch_without_a_token(build):
    model = build()
    empty = {"input_ids": torch.zeros(2, 0, dtype=torch.long), "attention_mask": torch.zeros(2, 0, dtype=torch.long)}
    with pytest.raises(ValueError, match="No text of this batch has a token: leave empty texts out"):
        SimCSELoss(model)([empty])


def test_dropout_without_a_module_counts(build):
    model = build(dropout=False)
    config = transformers.BloomConfig(vocab_size=len(model.tokenizer), hidden_size=32, n_layer=1, n_head=4)
    for rate in (0.0, 0.1):
        config.hidden_dropout, config.attention_dropout = rate, 0.0
        model[0].model = transformers.BloomModel(config)
        column = model.train().preprocess(["rain falls"])
        first, second = (model(dict(column))["sentence_embedding"] for _ in range(2))
        assert has_dropout(model) == (not torch.equal(first, second)) == bool(rate)


def test_the_remedy_for_an_encoder_without_dropout(build, monkeypatch):
    model = build()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model[0].model.config.attention_dropout = 0
    with pytest.warns(UserWarning, match=r"config_kwargs=\{'hidden_dropout_prob': 0\.1\}"):
        SimCSELoss(model)
    settings = type(model[0].model.config).to_dict
    names = ("dropout", "_pdrop")
    monkeypatch.setattr(
        type(model[0].model.config),
        "to_dict",
        lambda self: {key: value for key, value in settings(self).items() if not any(name in key for name in names)},
    )
    with pytest.warns(UserWarning, match="no setting for it: use another encoder, or SimCSELoss with two text columns"):
        SimCSELoss(model)
