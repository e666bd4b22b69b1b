"""What is saved reads as the encoder did before training, in its precision; each model of a search has its own loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback

import st_contrastive as stc
from st_contrastive.training import ContrastiveTrainer
from tests.cases import ByStep, assert_equal, state_of

LONG = "the cat " * 100


def widths(model):
    return model.preprocess([LONG])["input_ids"].shape[1], model.max_seq_length


def truncation(folder):
    return json.loads((Path(folder) / "tokenizer.json").read_text())["truncation"]["max_length"]


class Widths(SentenceEvaluator):
    """What an evaluator reads."""

    def __init__(self):
        super().__init__()
        self.seen, self.primary_metric = [], "score"

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        self.seen.append(widths(model))
        return {"score": float(-steps)}


class Interrupted(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [False, True])
def test_training_alone_is_cut(build, arguments, sentences, tmp_path, interrupted):
    read = []

    def run(resume=None, callbacks=None):
        model, evaluator = build(), Widths()
        loss = stc.SimCSELoss(model)
        assert loss.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0][0]["input_ids"].shape[1]))
        data = stc.text_dataset([f"{text} {LONG}" for text in sentences])
        options = arguments(
            max_steps=6, eval_strategy="steps", eval_steps=2, metric_for_best_model="score", greater_is_better=True,
            load_best_model_at_end=True,
        )  # fmt: skip
        trainer = ContrastiveTrainer(
            model, options, data, data, loss=loss, evaluator=evaluator, max_length=8, callbacks=callbacks
        )
        if callbacks:
            with pytest.raises(KeyboardInterrupt):
                trainer.train(resume)
        else:
            trainer.train(resume)
        model.save_pretrained(str(tmp_path / "out"))
        assert set(read) == {8}
        assert set(evaluator.seen) == {(64, 64)}
        assert widths(model) == (64, 64)
        for folder in (tmp_path / "out", *(tmp_path / "run").glob("checkpoint-*")):
            assert truncation(folder) == 64
            assert widths(SentenceTransformer(str(folder), device="cpu")) == (64, 64)
        return trainer

    whole = run(callbacks=[Interrupted()] if interrupted else None)
    resumed = run(resume=str(tmp_path / "run" / "checkpoint-2"))
    assert resumed.state.global_step == 6
    if not interrupted:
        assert_equal(state_of(whole.loss), state_of(resumed.loss))


@pytest.mark.parametrize("length", [65, 2, 8.0, True])
def test_a_length_that_can_not_be(build, arguments, sentences, length):
    model = build()
    with pytest.raises((TypeError, ValueError), match=r"max_length"):
        ContrastiveTrainer(
            model, arguments(), stc.text_dataset(sentences), loss=stc.SimCSELoss(model), max_length=length
        )


def test_a_data_collator_of_ones_own(build, arguments, sentences):
    model, data = build(), stc.text_dataset(sentences)
    theirs = SentenceTransformerDataCollator(model.preprocess)
    options = {"loss": stc.SimCSELoss(model), "max_length": 8}
    run = ContrastiveTrainer(model, arguments(), data, data_collator=theirs, **options)
    assert run.data_collator([{"sentence": LONG}])["sentence_input_ids"].shape[1] == 8
    with pytest.raises(ValueError, match=r"max_length 8 would not cut.*data_collator"):
        ContrastiveTrainer(model, arguments(), data, data_collator=lambda rows: theirs(rows), **options)


@pytest.mark.parametrize("precision", ["bf16_full_eval", "fp16_full_eval"])
def test_an_evaluation_leaves_the_weights_as_they_are(made, arguments, precision):
    """Before training, after it, and in predict; buffers too."""

    def trainer(**options):
        loss, data = made("simcse")
        loss.model.register_buffer("scale", torch.rand(3))
        changes = {"max_steps": 2, "save_strategy": "no", **options}
        return ContrastiveTrainer(loss.model, arguments(**changes), data, data, loss, evaluator=ByStep(float))

    plain, run = trainer(), trainer(**{precision: True})
    before = state_of(run.loss)
    run.evaluate()
    run.predict(run.eval_dataset)
    assert_equal(before, state_of(run.loss))
    for each in (plain, run):
        torch.manual_seed(1)
        each.train()
    assert_equal(state_of(plain.loss), state_of(run.loss))
    trained = state_of(run.loss)
    run.evaluate()
    assert_equal(trained, state_of(run.loss))


def searching(build, arguments, sentences, loss, families=("bert",), **options):
    """A Trainer whose runs begin with a new model each, of one family after the other."""
    kinds = iter(families * 4)

    def anew():
        torch.manual_seed(0)
        return build(next(kinds))

    changes = {"save_strategy": "no", "weight_decay": 0.0, **options}
    data = Dataset.from_dict({"sentence": sentences})
    data = dict.fromkeys(loss, data) if isinstance(loss, dict) else data
    return ContrastiveTrainer(args=arguments(**changes), train_dataset=data, loss=loss, model_init=anew)


@pytest.mark.parametrize("method", ["SimCSELoss", "TwinsLoss"])
def test_each_run_of_a_search_starts_with_the_loss_as_it_was(build, arguments, sentences, method):
    trainer, logs = searching(build, arguments, sentences, getattr(stc, method)), []
    for _ in range(2):
        trainer.train()
        logs.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert logs[0] == logs[1]
    assert len(set(logs[0])) > 1


def test_each_model_of_a_search_has_a_loss_of_its_own(build, arguments, sentences):
    trainer = searching(build, arguments, sentences, lambda model: stc.TwinsLoss(model, key_momentum=0.9))
    for _ in range(2):
        trainer.train()
        model = trainer.model
        embeddings = model[0].model.get_input_embeddings().weight
        assert trainer.loss.model is model
        assert not embeddings.requires_grad
        assert torch.equal(embeddings, build()[0].model.get_input_embeddings().weight)
        assert "st-contrastive" in model.model_card_data.tags
    trainer = searching(build, arguments, sentences, {"a": stc.TwinsLoss, "b": stc.SimCSELoss})
    trainer.train()
    assert all(loss.model is trainer.model for loss in trainer.loss.values())


@pytest.mark.long
def test_models_of_several_families_in_a_search(build, arguments, sentences, tmp_path):
    """The constructor makes two; networks, tokens and saved tokenizers are those of the model that is trained."""
    loss = lambda model: stc.InfoCSELoss(model, mlm_weight=0.1)  # noqa: E731
    families = ("bert-mlm", "bert-mlm", "roberta", "bert-mlm")
    trainer = searching(build, arguments, sentences, loss, families, save_strategy="steps", save_steps=2, max_steps=2)
    for kind in ("Roberta", "Bert"):
        trainer.train()
        assert kind in type(trainer.loss.auxiliary.encoder).__name__
        saved = SentenceTransformer(str(tmp_path / "run" / "checkpoint-2"), device="cpu")
        assert saved.tokenizer.get_vocab() == trainer.model.tokenizer.get_vocab()


def test_a_loss_of_another_model_than_a_search_makes(build, arguments, sentences):
    with pytest.raises(ValueError, match=r"model_init.*loss=lambda model: TwinsLoss\(model\)"):
        searching(build, arguments, sentences, stc.TwinsLoss(build()))
    pairs = MultipleNegativesRankingLoss(build())  # sentence-transformers gives it the new model
    searching(build, arguments, sentences, pairs)
