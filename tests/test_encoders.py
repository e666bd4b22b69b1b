"""Which encoders each loss trains, in three steps of the Trainer, and what it says of the others."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import peft
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from st_contrastive import AuxiliaryMLMPretrainingLoss
from tests.cases import CASES, ONE_OF_EACH, build_loss, crossed, method_of, switch_off_dropout


@dataclass(frozen=True)
class Row:
    """An encoder and how it is trained."""

    checkpoint: str
    pooling: str = "cls"
    arguments: dict[str, Any] = field(default_factory=dict)
    adapters: bool = False
    dtype: torch.dtype = torch.float32


#: With a masked-LM head in the checkpoint, or without, as those that people load.
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
    # Dynamo alone: it is what hooks and swapped layers have to do with. The long test generates code.
    "BERT, `torch.compile`": Row("bert-mlm", arguments={"torch_compile": True, "torch_compile_backend": "eager"}),
    "BERT, `bf16=True`": Row("bert-mlm", arguments={"bf16": True}),
    "BERT, loaded in bfloat16": Row("bert-mlm", dtype=torch.bfloat16),
}
#: The refusals, each by a word of its reason; every other cell must train.
REFUSED = {
    **{("ALBERT", loss): "no list of" for loss in ("infocse", "pretraining", "diffcse")},
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
    """The terms of three steps."""
    steps = []
    loss.register_forward_hook(lambda _, __, terms: steps.append({key: term.item() for key, term in terms.items()}))
    texts = [TEXTS, TEXTS[::-1]][: CASES[name][2]]
    given = SentenceTransformerTrainingArguments(
        str(folder), per_device_train_batch_size=4, num_train_epochs=1, learning_rate=rate, report_to="none",
        save_strategy="no", disable_tqdm=True, use_cpu=True, **arguments,
    )  # fmt: skip
    SentenceTransformerTrainer(model, given, method_of(name).dataset(*texts), loss=loss).train()
    assert len(steps) == 3
    assert all(math.isfinite(value) for step in steps for value in step.values())
    return steps


@pytest.mark.parametrize(
    ("row", "name"),
    crossed(
        ROWS, ONE_OF_EACH, quick=lambda row, name: "compile" not in row and (row == "BERT, LoRA" or name == "simcse")
    ),
)
def test_trains_or_says_why_not(checkpoint, tmp_path, row, name):
    chosen = ROWS[row]
    model = encoder(checkpoint, chosen)
    if (row, name) in REFUSED:
        with pytest.raises(ValueError, match=f"{REFUSED[row, name]}.*Take an encoder"):
            build_loss(name, model)
        return
    loss = build_loss(name, model)
    before = {key: parameter.detach().clone() for key, parameter in loss.named_parameters()}
    parameters = dict(loss.named_parameters())  # torch.compile renames them
    embeddings = model.transformers_model.get_input_embeddings().parameters()
    frozen = [*embeddings] if getattr(loss, "freeze_embeddings", False) else []
    # bfloat16 has three digits, and smaller steps round off.
    train(name, model, loss, tmp_path, chosen.arguments, rate=1e-2 if chosen.dtype == torch.bfloat16 else 1e-3)
    for key, parameter in parameters.items():
        assert parameter.isfinite().all(), key
        # The momentum encoder's copies move as what they follow, without a gradient.
        followed = key.replace("momentum_encoder.copies.0.", "model.0.").replace("momentum_encoder.copies.2.", "head.")
        # No pooling asks for the pooler; the bias cancels in the difference of two scores.
        trained = parameters[followed].requires_grad and not re.search(r"model\.pooler\.|classifier\.bias$", key)
        if any(parameters[followed] is own for own in frozen):
            trained = False
        assert "classifier.bias" in key or torch.equal(parameter, before[key]) != trained, key
    if chosen.adapters:
        trained = [key for key in parameters if key.startswith("model.") and parameters[key].requires_grad]
        assert trained
        assert all("lora" in key for key in trained)
        assert not any("lora" in key for key in parameters if not key.startswith(("model.", "momentum_encoder.")))


@pytest.mark.parametrize(
    "setting", ["BERT, gradient checkpointing", pytest.param("BERT, `torch.compile`", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", ["simcse", "infocse", pytest.param("twins", marks=pytest.mark.long)])
def test_what_changes_the_way_changes_no_value(checkpoint, tmp_path, setting, name):
    found = []
    for arguments in ({}, ROWS[setting].arguments):
        torch.manual_seed(0)
        model = encoder(checkpoint, ROWS[setting])
        loss = build_loss(name, model)
        loss.group_by_length = False  # another pass draws another dropout
        found.append(train(name, model, loss, tmp_path, arguments))
    for plain, other in zip(*found, strict=True):
        assert plain == pytest.approx(other, rel=1e-4)


@pytest.mark.long
def test_what_was_compiled_without_hooks_is_not_run_with_them(checkpoint):
    """Dynamo puts no guard on hooks that were not there: another pass's code would leave the layers unseen."""
    model = encoder(checkpoint, ROWS["BERT"]).train()
    batch = model.preprocess(TEXTS[:4])
    loss = AuxiliaryMLMPretrainingLoss(model)
    switch_off_dropout(loss)

    def terms():
        torch.manual_seed(0)
        return {name: term.item() for name, term in loss([batch]).items()}

    expected = terms()
    loss.model = torch.compile(model, backend="eager")
    loss.model(dict(batch))
    assert terms() == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_trains_under_compiled_code(checkpoint, tmp_path, name):
    torch._dynamo.reset()
    model = encoder(checkpoint, ROWS["BERT"])
    train(name, model, build_loss(name, model), tmp_path, {"torch_compile": True})


def test_every_family_has_its_real_tokenizer(checkpoint):
    classes = {
        "bert-mlm": "BertTokenizer",
        "roberta-mlm": "RobertaTokenizer",
        "xlm-roberta-mlm": "XLMRobertaTokenizer",
        "distilbert-mlm": "DistilBertTokenizer",
        "mpnet-mlm": "MPNetTokenizer",
        "electra": "BertTokenizer",  # transformers 5 keeps ElectraTokenizer as another name for it
        "albert-mlm": "AlbertTokenizer",
        "deberta": "DebertaV2Tokenizer",
        "modernbert-mlm": "TokenizersBackend",
        "qwen": "Qwen2Tokenizer",
    }
    assert set(classes) == {row.checkpoint for row in ROWS.values()}
    for name, kind in classes.items():
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint(name))
        assert type(tokenizer).__name__ == kind
        assert tokenizer.unk_token_id not in tokenizer(TEXTS[0])["input_ids"] or name == "qwen"
