"""What is saved reads as the encoder did before training, in its precision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from transformers import TrainerCallback

import st_contrastive as stc
from st_contrastive.training import ContrastiveTrainer
from tests.cases import assert_equal, state_of

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
def test_max_length_only_truncates_training(build, arguments, sentences, tmp_path, interrupted):
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


@pytest.mark.parametrize("length", [2, 8.0, True])
def test_an_invalid_max_length_is_refused(build, arguments, sentences, length):
    model, data = build(), stc.text_dataset(sentences)
    with pytest.raises(ValueError, match=r"max_length"):
        ContrastiveTrainer(model, arguments(), data, loss=stc.SimCSELoss(model), max_length=length)


def test_max_length_is_limited_by_the_model(build, arguments, sentences):
    model, data = build(), stc.text_dataset(sentences)
    with pytest.warns(UserWarning, match="max_length is 65, but the model reads 64"):
        run = ContrastiveTrainer(model, arguments(), data, loss=stc.SimCSELoss(model), max_length=65)
    assert run.max_length == run.data_collator.max_length == 64


def test_a_custom_data_collator(build, arguments, sentences):
    model, data = build(), stc.text_dataset(sentences)
    theirs = SentenceTransformerDataCollator(model.preprocess)
    options = {"loss": stc.SimCSELoss(model), "max_length": 8}
    run = ContrastiveTrainer(model, arguments(), data, data_collator=theirs, **options)
    assert run.data_collator([{"sentence": LONG}])["sentence_input_ids"].shape[1] == 8
    with pytest.raises(ValueError, match=r"max_length 8 would not truncate.*data_collator"):
        ContrastiveTrainer(model, arguments(), data, data_collator=lambda rows: theirs(rows), **options)
