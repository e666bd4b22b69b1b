"""Which encoders each loss trains, in three steps of fit and of the Trainer, and what it says of the others.

The table of docs/encoders.md is what these tests observe: ``pytest tests/test_encoders.py --write-table`` writes it.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import peft
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.utils.data import DataLoader

import st_contrastive as stc
from st_contrastive.encoder.passes import EncoderPasses
from st_contrastive.methods import METHODS as ALL
from tests.filters import TRAINING
from tests.methods import every_method

PAGE = Path(__file__).parent.parent / "docs" / "encoders.md"
BEGIN, END = "<!-- encoders: begin -->", "<!-- encoders: end -->"

#: Columns of the table: options of each loss, and how many text columns it is given.
LOSSES = every_method(infocse={"mlm_weight": 0.1}, combined={"mlm_weight": 0.1})


@dataclass(frozen=True)
class Row:
    """An encoder and how it is trained. The Trainer alone takes training arguments."""

    checkpoint: str
    pooling: str = "cls"
    arguments: dict | None = None
    adapters: bool = False
    dtype: torch.dtype = torch.float32
    layers: int | None = None

    @property
    def loops(self):
        return ["fit", "trainer"] if self.arguments is None else ["trainer"]


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
    # Dynamo alone: it is what hooks and swapped layers have to do with. The slow test generates code.
    "BERT, `torch.compile`": Row(
        "bert-mlm", arguments={"torch_compile": True, "torch_compile_backend": "eager"}, layers=2
    ),
    "BERT, `bf16=True`": Row("bert-mlm", arguments={"bf16": True}),
    "BERT, loaded in bfloat16": Row("bert-mlm", dtype=torch.bfloat16),
}

#: MomentumContrastLoss's: of the encoder, its pooling and the head.
COPIES = "momentum_encoder.copies"

#: What a refusal or a warning says, and what the table says of it.
NOTES = {
    r"has no list of \d+ transformer layers of its own.* Take an encoder with separate layers": (
        "all layers share their weights, so none can be copied by itself: use an encoder with separate layers."
    ),
    r"has no mask token.* Take an encoder that was trained by masked-LM": (
        "there is neither a mask token nor a masked-LM head: use an encoder that was trained by masked-LM."
    ),
    r"takes the encoder's dropout as its only .* Load it with dropout, for instance Transformer\(": (
        "its checkpoints come without dropout, which makes both views of a sentence the same (a warning is shown): "
        "load it with `Transformer(name, config_kwargs={'attention_dropout': 0.1})`."
    ),
    r"bfloat16 weights, in which most small updates round away\. Load it with .* bf16=True": (
        "bfloat16 weights lose small updates (a warning is shown): load them in float32, and train with `bf16=True`. "
        "float16 weights are refused."
    ),
    r"checkpoint has no masked-LM head, .* Give DiffCSELoss a generator": (
        "without a masked-LM head in the checkpoint, replacements are random (a warning is shown): name a `generator`."
    ),
}

WITH_MLM = ("infocse", "pretraining", "diffcse", "combined")
#: The refusals, each by a word of its reason; every other cell must train.
REFUSED = {
    **{("ALBERT", loss): "no list of" for loss in ("infocse", "pretraining", "combined")},
    **{(f"Qwen3, {pooling}", loss): "no mask token" for pooling in ("last token", "mean") for loss in WITH_MLM},
}

pytestmark = [pytest.mark.long, *TRAINING]


@dataclass(frozen=True)
class Outcome:
    """Trained, or refused by ``reason``; the notes that go with it, and the terms of each step."""

    reason: str | None
    notes: tuple[str, ...]
    steps: tuple[dict[str, float], ...] = field(default=(), compare=False)


@pytest.fixture(scope="module", autouse=True)
def _workplace(tmp_path_factory):
    """`fit` makes a folder where it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("encoders"))
        yield


@pytest.fixture(scope="module")
def observe(checkpoint):
    """``observe(row, loss)``: the outcome of a cell, the same under fit and the Trainer; each is found out once."""
    found: dict[tuple[str, str], Outcome] = {}

    def look(row, loss):
        if (row, loss) not in found:
            outcomes = [attempt(checkpoint, ROWS[row], loss, loop) for loop in ROWS[row].loops]
            assert all(outcome == outcomes[0] for outcome in outcomes)
            found[row, loss] = outcomes[0]
        return found[row, loss]

    return look


def encoder(checkpoint, row):
    transformer = Transformer(str(checkpoint(row.checkpoint)))
    model = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension(), row.pooling)], device="cpu"
    )
    if row.layers is not None:
        transformer.model.encoder.layer = transformer.model.encoder.layer[: row.layers]
        transformer.model.config.num_hidden_layers = row.layers
    if row.adapters:
        model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=4, lora_alpha=8))
    return model.to(row.dtype)


def attempt(checkpoint, row, name, loop):
    """Three steps, or a refusal by the constructor; any other error is one."""
    method, (options, columns) = ALL[name], LOSSES[name]
    torch.manual_seed(0)
    model = encoder(checkpoint, row)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loss = method.loss_class(model, **options)
        except (ValueError, TypeError) as error:
            return Outcome(str(error), (note_on(str(error)),))
    texts = [TEXTS, TEXTS[::-1]][:columns]
    steps = []
    loss.register_forward_hook(lambda _, __, terms: steps.append({name: term.item() for name, term in terms.items()}))
    before = {name: parameter.detach().clone() for name, parameter in loss.named_parameters()}
    parameters = dict(loss.named_parameters())  # torch.compile renames them
    # Adam without decay leaves what has no gradient as it is. bfloat16 has three digits, and smaller steps round off.
    rate = 1e-2 if row.dtype == torch.bfloat16 else 1e-3
    if loop == "fit":
        loader = DataLoader(method.examples(*texts), batch_size=4)
        model.fit(
            [(loader, loss)],
            epochs=1,
            warmup_steps=0,
            optimizer_params={"lr": rate},
            weight_decay=0.0,
            show_progress_bar=False,
        )
    else:
        arguments = SentenceTransformerTrainingArguments(
            "out",
            per_device_train_batch_size=4,
            num_train_epochs=1,
            learning_rate=rate,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            **(row.arguments or {}),
        )
        SentenceTransformerTrainer(model, arguments, method.dataset(*texts), loss=loss).train()
    assert len(steps) == 3
    assert all(math.isfinite(value) for step in steps for value in step.values())
    for key, parameter in parameters.items():
        assert parameter.isfinite().all(), key
        # The momentum encoder's copies move as what they follow, without a gradient.
        followed = key.replace(f"{COPIES}.0.", "model.0.").replace(f"{COPIES}.2.", "head.")
        trained = parameters[followed].requires_grad and "model.pooler." not in key  # no pooling asks for it
        assert torch.equal(parameter, before[key]) != trained, key
    if row.adapters:
        trained = [name for name in parameters if name.startswith("model.") and parameters[name].requires_grad]
        assert trained
        assert all("lora" in name for name in trained)
        assert not any("lora" in name for name in parameters if not name.startswith(("model.", COPIES)))
    return Outcome(None, tuple(sorted({note_on(str(warning.message)) for warning in caught})), tuple(steps))


TEXTS = [f"{subject} {rest}" for subject in ("the cat", "a child", "rain") for rest in
         ("falls", "sleeps in the garden", "is by the old river in winter", "sings")]  # fmt: skip


def note_on(message):
    notes = [text for pattern, text in NOTES.items() if re.search(pattern, message, re.DOTALL)]
    assert len(notes) == 1, message
    return notes[0]


def cell(outcome, numbers):
    """What the table says of an outcome; notes that it has not got yet take the next numbers."""
    marks = [str(numbers.setdefault(note, len(numbers) + 1)) for note in outcome.notes]
    return ("yes" if outcome.reason is None else "no") + (f" ({', '.join(marks)})" if marks else "")


def titled():
    return "| | " + " | ".join(ALL[loss].title for loss in LOSSES) + " |"


def page():
    """The text before the table, its heading, the cells of each row, the number of each note, and the text after it."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    table, end, after = rest.partition(f"{END}\n")
    head, _, *lines = (line for line in table.splitlines() if line.startswith("|"))
    assert begin
    assert end
    rows = {name: parts for name, *parts in ([part.strip() for part in line.split("|")[1:-1]] for line in lines)}
    notes = {note[0].lower() + note[1:]: int(number) for number, note in re.findall(r"^(\d+)\. (.*)$", table, re.M)}
    return before, head, rows, notes, after


@pytest.fixture(scope="module")
def documented(request):
    """``documented(row, loss, outcome)`` compares with the page, or keeps what is to be written."""
    writing = request.config.getoption("--write-table")
    before, _, rows, notes, after = page()
    found: dict[tuple[str, str], Outcome] = {}

    def check(row, loss, outcome):
        found[row, loss] = outcome
        if not writing:
            written = dict(zip(LOSSES, rows[row], strict=True))
            assert cell(outcome, dict(notes)) == written[loss], "pytest tests/test_encoders.py --write-table"

    yield check
    if writing and len(found) == len(ROWS) * len(LOSSES):
        numbers: dict[str, int] = {}
        lines = ["", titled(), "|---|" + "---|" * len(LOSSES)]
        for row in ROWS:
            lines.append(f"| {row} | {' | '.join(cell(found[row, loss], numbers) for loss in LOSSES)} |")
        lines += ["", *(f"{number}. {note[0].upper()}{note[1:]}" for note, number in numbers.items()), ""]
        PAGE.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}\n{after}"]), encoding="utf-8")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("row", ROWS)
def test_trains_or_says_why_not(observe, documented, row, loss):
    expected, outcome = REFUSED.get((row, loss)), observe(row, loss)
    assert (outcome.reason is None) == (expected is None), outcome.reason
    if expected is not None:
        assert expected in outcome.reason
    documented(row, loss, outcome)


def test_the_page_has_these_rows_and_each_note_once(request):
    if request.config.getoption("--write-table"):
        pytest.skip("it is being written")
    _, head, rows, notes, _ = page()
    assert head == titled()
    assert list(rows) == list(ROWS)
    named = {int(number) for row in rows.values() for part in row for number in re.findall(r"\d+", part)}
    assert named == set(notes.values()) == set(range(1, len(notes) + 1))
    assert set(notes) <= set(NOTES.values())


def test_what_was_compiled_without_hooks_is_not_run_with_them(checkpoint, no_dropout):
    """Dynamo puts no guard on hooks that were not there: another pass's code would leave the layers unseen."""
    model = encoder(checkpoint, Row("bert-mlm", layers=2)).train()
    batch = model.preprocess(TEXTS[:4])
    loss = stc.AuxiliaryMLMPretrainingLoss(model)
    no_dropout(loss)

    def terms():
        torch.manual_seed(0)
        return {name: term.item() for name, term in loss([batch]).items()}

    expected = terms()
    loss.model = torch.compile(model, backend="eager")
    loss.model(dict(batch))
    assert terms() == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_trains_under_compiled_code(checkpoint, loss):
    torch._dynamo.reset()
    row = Row("bert-mlm", arguments={"torch_compile": True}, layers=2)
    assert attempt(checkpoint, row, loss, "trainer") == Outcome(None, ())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("setting", ["gradient checkpointing", "`torch.compile`"])
def test_what_changes_the_way_changes_no_value(checkpoint, observe, setting, loss, monkeypatch):
    row = f"BERT, {setting}"
    # Not done there, and another pass draws another dropout.
    monkeypatch.setattr(EncoderPasses, "narrows_last_layer", False)
    if "compile" in setting:
        monkeypatch.setattr(EncoderPasses, "saves_padding", False)
    plain = attempt(checkpoint, replace(ROWS[row], arguments={}), loss, "trainer").steps
    other = observe(row, loss).steps
    assert len(plain) == len(other) == 3
    for one, two in zip(plain, other, strict=True):
        assert one == pytest.approx(two, rel=1e-4)


@pytest.mark.parametrize(
    ("family", "refused"),
    [
        ("funnel", {**dict.fromkeys(WITH_MLM, "no list of 4"), "diffcse": "no suitable masked-LM head"}),
        ("xlnet", dict.fromkeys(WITH_MLM, "no suitable masked-LM head")),
        ("deberta", dict.fromkeys(WITH_MLM, "'legacy': True")),
    ],
)  # fmt: skip
def test_odd_families_are_refused_when_the_loss_is_built(checkpoint, family, refused):
    options = {"legacy": False} if family == "deberta" else {}
    transformer = Transformer(str(checkpoint(family)), config_kwargs=options)
    model = SentenceTransformer(modules=[transformer, Pooling(32, "mean")], device="cpu").train()
    for name, (options, columns) in LOSSES.items():
        loss_class = ALL[name].loss_class
        if name in refused:
            with pytest.raises(ValueError, match=refused[name]) as caught:
                loss_class(model, **options)
            assert "Take an encoder" in str(caught.value)
        else:
            batch = [model.preprocess(TEXTS[:4]), model.preprocess(TEXTS[4:8])][:columns]
            terms = loss_class(model, **options)(batch)
            terms.backward()
            assert math.isfinite(terms.item())
    assert all(module.training for module in model.modules())  # probing leaves the encoder as it was


@pytest.mark.parametrize("family", ["modernbert", "qwen"])
def test_the_remedy_for_missing_dropout_works(checkpoint, family):
    folder = str(checkpoint(family))

    def build(**settings):
        return SentenceTransformer(
            modules=[Transformer(folder, config_kwargs=settings), Pooling(32, "mean")], device="cpu"
        ).train()

    with pytest.warns(UserWarning, match="Load it with dropout") as caught:
        stc.SimCSELoss(build())
    remedy = re.search(r"config_kwargs=(\{.*\})\)", str(caught[0].message))[1]
    assert "0.1" in remedy
    model = build(**{name: float(value) for name, value in re.findall(r"'(\w+)': ([\d.]+)", remedy)})
    stc.SimCSELoss(model)
    first, second = (model(model.preprocess(TEXTS[:2]))["sentence_embedding"] for _ in range(2))
    assert not torch.allclose(first, second)


def test_a_decoders_first_token_is_warned_of(checkpoint):
    model = encoder(checkpoint, Row("qwen", "lasttoken"))
    with pytest.warns(UserWarning, match="TwinsLoss") as caught:
        stc.TwinsLoss(model, train_pooling="cls")
    assert any("Take train_pooling='lasttoken' or 'mean'" in str(warning.message) for warning in caught)


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
