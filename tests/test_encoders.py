"""Encoders that each loss trains in three steps of the Trainer, and encoders that it refuses."""

from __future__ import annotations

import math
import re
from collections import namedtuple

import peft
import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from tests.cases import CASES, ONE_OF_EACH, arguments_of, build_loss, crossed, method_of

#: An encoder, and settings of its training.
Row = namedtuple("Row", "checkpoint pooling arguments adapters dtype", defaults=["cls", {}, False, torch.float32])

#: A checkpoint has a masked-LM head if the usual checkpoints of its family have one.
ROWS = {
    "BERT": Row("bert-mlm"),
    "RoBERTa": Row("roberta-mlm"),
    "XLM-R": Row("xlm-roberta-mlm"),
    "DistilBERT": Row("distilbert-mlm"),
    "MPNet": Row("mpnet-mlm"),
    "ELECTRA": Row("electra"),
    "ALBERT": Row("albert-mlm"),
    "DeBERTa-v2": Row("deberta"),
    "ModernBERT": Row("modernbert-mlm"),
    "Qwen3, last token": Row("qwen", "lasttoken"),
    "Qwen3, mean": Row("qwen", "mean"),
    "BERT, LoRA": Row("bert-mlm", adapters=True),
    "BERT, gradient checkpointing": Row("bert-mlm", arguments={"gradient_checkpointing": True}),
    # Without code generation, because only Dynamo sees hooks and swapped layers. The long test generates code.
    "BERT, `torch.compile`": Row("bert-mlm", arguments={"torch_compile": True, "torch_compile_backend": "eager"}),
    "BERT, `bf16=True`": Row("bert-mlm", arguments={"bf16": True}),
    "BERT, loaded in bfloat16": Row("bert-mlm", dtype=torch.bfloat16),
}
#: Refused encoders, with a word of the reason. All others must train.
REFUSED = {
    **{("ALBERT", loss): "does not expose its layers" for loss in ("infocse", "pretraining", "diffcse")},
    **{(f"Qwen3, {pooling}", loss): "no mask token"
       for pooling in ("last token", "mean") for loss in ("infocse", "pretraining", "diffcse")},
}  # fmt: skip
TEXTS = [f"{subject} {rest}" for subject in ("the cat", "a child", "rain") for rest in
         ("falls", "sleeps in the garden", "is by the old river in winter", "sings")]  # fmt: skip


def encoder(checkpoint, row):
    transformer = Transformer(str(checkpoint(row.checkpoint)))
    pooling = Pooling(transformer.get_embedding_dimension(), row.pooling)
    model = SentenceTransformer(modules=[transformer, pooling], device="cpu")
    if row.adapters:
        model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=4, lora_alpha=8))
    return model.to(row.dtype)


def train(name, model, loss, folder, arguments, rate=1e-3):
    """Train three steps and return their terms."""
    steps = []
    loss.register_forward_hook(lambda _, __, terms: steps.append({key: term.item() for key, term in terms.items()}))
    texts = [TEXTS, TEXTS[::-1]][: CASES[name][2]]
    settings = arguments_of(folder, max_steps=3, learning_rate=rate, save_strategy="no", **arguments)
    SentenceTransformerTrainer(model, settings, method_of(name).dataset(*texts), loss=loss).train()
    assert len(steps) == 3
    assert all(math.isfinite(value) for step in steps for value in step.values())
    return steps


@pytest.mark.parametrize(
    ("row", "name"),
    crossed(
        ROWS, ONE_OF_EACH, quick=lambda row, name: "compile" not in row and (row == "BERT, LoRA" or name == "simcse")
    ),
)
def test_an_encoder_trains_or_is_refused(checkpoint, tmp_path, row, name):
    chosen = ROWS[row]
    model = encoder(checkpoint, chosen)
    if (row, name) in REFUSED:
        with pytest.raises(ValueError, match=f"{REFUSED[row, name]}.*Use an encoder"):
            build_loss(name, model)
        return
    loss = build_loss(name, model)
    before = {key: parameter.detach().clone() for key, parameter in loss.named_parameters()}
    parameters = dict(loss.named_parameters())  # torch.compile renames them
    embeddings = model.transformers_model.get_input_embeddings().parameters()
    frozen = [*embeddings] if getattr(loss, "freeze_embeddings", False) else []
    # bfloat16 has three digits, and smaller steps are lost to rounding.
    train(name, model, loss, tmp_path, chosen.arguments, rate=1e-2 if chosen.dtype == torch.bfloat16 else 1e-3)
    for key, parameter in parameters.items():
        assert parameter.isfinite().all(), key
        # The momentum encoder's copies have no gradient, and move with the weights that they follow.
        followed = key.replace("momentum_encoder.copies.0.", "model.0.").replace("momentum_encoder.copies.2.", "head.")
        # No pooling uses the pooler, and the bias cancels in the difference of two scores.
        trained = parameters[followed].requires_grad and not re.search(r"model\.pooler\.|classifier\.bias$", key)
        if any(parameters[followed] is weight for weight in frozen):
            trained = False
        assert "classifier.bias" in key or torch.equal(parameter, before[key]) != trained, key
    if chosen.adapters:
        trained = [key for key in parameters if key.startswith("model.") and parameters[key].requires_grad]
        assert trained
        assert all("lora" in key for key in trained)
        assert not any("lora" in key for key in parameters if not key.startswith(("model.", "momentum_encoder.")))


@pytest.mark.long
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_training_with_compiled_code(checkpoint, tmp_path, name):
    torch._dynamo.reset()
    model = encoder(checkpoint, ROWS["BERT"])
    train(name, model, build_loss(name, model), tmp_path, {"torch_compile": True})
