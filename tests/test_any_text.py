"""Random Unicode through every builder, every augmentation, every reader and every loss: no crash, no NaN, no lost row.

A few hundred texts with ``make test-long``; 20,000 with ``pytest -m slow tests/test_any_text.py``.
"""

from __future__ import annotations

import gzip
import json
import random

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch.utils.data import DataLoader

import st_contrastive as stc
from st_contrastive.augmentations import (
    AntonymReplacement,
    RandomDeletion,
    RandomInsertion,
    SynonymReplacement,
    WordRepetition,
)
from st_contrastive.evaluation import EvaluationDataError, read_sts
from st_contrastive.inputs import FreshAugmentation, Translator, read_corpus, read_parallel, translate_corpus
from st_contrastive.methods import METHODS
from tests import foreign
from tests.filters import TRAINING
from tests.methods import every_method, method_of
from tests.unicode_sentences import KINDS, LONGEST, mended, sentences, with_halves

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:.* rows have an empty text"),
    pytest.mark.filterwarnings("ignore:Of the .* sentences translated now"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
    *TRAINING,
]
SIZES = [pytest.param(400, id="400"), pytest.param(20_000, id="20000", marks=pytest.mark.slow)]
#: A method of each pair of builders.
BUILDERS = ("simcse", "conisi", "twins")
AUGMENTATIONS = {
    "repetition": WordRepetition,
    "deletion": lambda: RandomDeletion(0.3),
    "insertion": RandomInsertion,
    "insertion of words": lambda: RandomInsertion(words=["so", "猫", "👍🏽"]),
    "synonym": SynonymReplacement,
    "antonym": AntonymReplacement,
}
#: Options of the loss, and text columns.
LOSSES = {
    **every_method(
        twins={"queue_batches": 2},
        infocse={"mlm_weight": 0.1, "ablation": stc.InfoCSEAblation(rtd_weight=0.1)},
        diffcse={"rtd_weight": 0.1, "sampling": True},
        momentum={"queue_size": 150},
        combined={"mlm_weight": 0.1},
        pretraining={"whole_words": True},
    ),
    "conisi-subword": ({"strategy": "subword"}, 1),
    "conisi-given": ({"strategy": "given"}, 2),
    "twins-one": ({}, 1),
}


@pytest.fixture(scope="module")
def texts():
    made = {}
    return lambda count: made.setdefault(count, sentences(count))


def test_the_texts_are_of_every_kind(texts):
    found = texts(400)
    assert len(KINDS) == 18
    assert sum(len(text) == LONGEST for text in found) == 3
    assert {"", "\r", "\x85", "\u2028"} & set(found)
    joined = "".join(text for text in found if len(text) < LONGEST)
    for character in "\x00\u200d\u200b\ufeff\u202e😀ש\u2028\x85\r":
        assert character in joined
    assert found == sentences(400) != sentences(400, seed=1)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", BUILDERS)
def test_builders_keep_every_row_as_it_is(texts, name, count):
    examples, dataset = METHODS[name].examples, METHODS[name].dataset
    one = texts(count)
    assert [example.texts for example in examples(one)] == [[text] for text in one]
    made = dataset(iter(one))
    assert made["sentence"][:] == one
    two = one[::-1]
    assert [example.texts for example in examples(one, two)] == [list(row) for row in zip(one, two, strict=True)]
    made = dataset(one, two)
    assert [made[column][:] for column in made.column_names] == [one, two]
    if name == "twins":
        made = dataset(one, lambda batch: [text[::-1] for text in batch])
        assert made["translation"][:] == [text[::-1] for text in one]


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", BUILDERS)
def test_half_a_surrogate_pair_is_named_with_its_remedy(texts, name, count):
    examples, dataset = METHODS[name].examples, METHODS[name].dataset
    spoilt, places = with_halves(texts(count))
    whole = texts(count)
    message = rf"^sentences\[{places[0]}\] holds half of a surrogate pair, .* Repair it with text\.encode"
    for build in (examples, dataset):
        with pytest.raises(ValueError, match=message) as info:
            build(spoilt)
        assert "\n" not in str(info.value)
        assert len(str(info.value)) < 400
        with pytest.raises(ValueError, match=rf"\[{places[0]}\]"):
            build(whole, spoilt)
    mended_texts = [mended(text) for text in spoilt]
    assert dataset(mended_texts)["sentence"][:] == mended_texts
    assert all(new == old for new, old in zip(mended_texts, whole, strict=True) if "\ufffd" not in new)


def test_what_a_function_makes_is_held_to_the_same(texts):
    for build in (stc.conisi_examples, stc.conisi_dataset):
        with pytest.raises(ValueError, match=r"the result of constructed for sentences\[1\] holds half"):
            build(["a", "b"], lambda text, rng: "\ud83d" if text == "b" else text)
    for build in (stc.twins_examples, stc.twins_dataset):
        with pytest.raises(ValueError, match=r"translations\(\.\.\.\)\[1\] holds half of a surrogate pair"):
            build(["a", "b"], lambda batch: ["a", "\udfff"])


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentations_take_any_text(texts, name, count):
    augment = AUGMENTATIONS[name]()
    rng = random.Random(0)
    for text in [*texts(count), *with_halves(texts(count))[0]]:
        made = augment(text, rng)
        assert isinstance(made, str)
        assert bool(made.split()) == bool(text.split())
        if text.isprintable():
            assert made.isprintable()
    made = stc.conisi_dataset(texts(count), augment)
    assert made["sentence"][:] == texts(count)
    fresh = FreshAugmentation({"constructed": ("sentence", augment)})
    spoilt = with_halves(texts(count))[0]
    assert len(fresh({"sentence": spoilt})["constructed"]) == count


@pytest.mark.parametrize("count", SIZES)
def test_files_account_for_every_row(texts, tmp_path, count):
    spoilt = with_halves(texts(count))[0]
    path = tmp_path / "pairs.jsonl.gz"
    with gzip.open(path, "wt", encoding="ascii") as file:  # JSON writes halves as escapes
        file.writelines(json.dumps({"en": text, "de": text[::-1]}) + "\n" for text in spoilt)
    report = read_parallel(path, max_characters=2 * LONGEST).report
    assert report.lines == count == report.taken + report.blank + report.undecodable + report.too_long
    assert report.undecodable == sum(not text.isascii() and mended(text) != text for text in spoilt)
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(b"\n".join(text.encode("utf-8", "surrogatepass") for text in spoilt))
    report = read_corpus(corpus).report
    assert report.lines == corpus.read_bytes().removesuffix(b"\n").count(b"\n") + 1
    assert report.lines == report.taken + report.blank + report.undecodable + report.too_long
    assert min(report.taken, report.blank, report.undecodable, report.too_long) > 0


@pytest.mark.parametrize("count", SIZES)
def test_translations_come_back_as_they_were(texts, tmp_path, count):
    one = texts(count)
    path = translate_corpus(one, tmp_path / "pairs.jsonl.gz", lambda batch: [text[::-1] for text in batch],
                            progress=False)  # fmt: skip
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        rows = [json.loads(line) for line in file]
    assert [row["sentence"] for row in rows] == one
    assert [row["translation"] for row in rows] == [text[::-1] for text in one]
    made = stc.twins_dataset(one, path)  # by the corpus readers' rules: control characters go, ends are stripped
    assert made["sentence"][:] == one


def test_a_translation_model_and_a_fraternal_language_take_any_text(texts, seq2seq, build, tmp_path):
    one = texts(400)[:100]
    translator = Translator(seq2seq, languages=("en", "de"), batch_size=50, max_length=8)
    fraternal = stc.FraternalEmbedding.from_pretrained(str(foreign.checkpoint(tmp_path / "german")), build())
    assert len(stc.twins_examples(one, translator)) == 100
    assert len(stc.twins_dataset(one, one[::-1], fraternal=fraternal)) == 100
    labels = fraternal.labels(texts(400))
    model = build()
    loss = stc.TwinsLoss(model, fraternal=fraternal)
    for start in range(0, 400, 100):
        rows = texts(400)[start : start + 100]
        terms = loss([model.preprocess(rows)], torch.from_numpy(labels[start : start + 100]))
        terms.backward()
        assert all(term.isfinite() for term in terms.values())


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("family", ["bert", "roberta"])  # word pieces, and byte-level BPE
@pytest.mark.parametrize("name", LOSSES)
def test_losses_stay_finite(texts, build, name, family, count):
    method, (options, columns) = method_of(name), LOSSES[name]
    one = texts(count)
    data = method.dataset(*[one, one[::-1]][:columns])
    model = build(family)
    model.max_seq_length = 16
    loss = method.loss_class(model, **options)
    size, seen = 100, 0
    for start in range(0, count, size):
        rows = data[start : start + size]
        batch = [model.preprocess(rows[column]) for column in data.column_names]
        seen += len(batch[0]["input_ids"])
        terms = loss(batch)
        terms.backward()  # added up: one that is not finite stays so to the end
        assert all(bool(term.isfinite()) for term in terms.values()), (start, terms)
    assert seen == count
    gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    assert len(gradients) > 30
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert all(bool(value.isfinite().all()) for value in loss.state_dict().values() if value.is_floating_point())


def test_the_trainer_and_fit_take_any_text(texts, build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = texts(400)
    model = build()
    arguments = SentenceTransformerTrainingArguments(
        "trainer", per_device_train_batch_size=50, num_train_epochs=1, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    dataset = stc.conisi_dataset(one, one[::-1])
    loss = stc.ConIsILoss(model, strategy="given")
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss).train()
    model.save_pretrained("out")  # with a card that shows some of the rows
    loader = DataLoader(stc.text_examples(one), batch_size=50)
    model.fit(train_objectives=[(loader, stc.SimCSELoss(model))], epochs=1, warmup_steps=0, output_path="fit",
              show_progress_bar=False)  # fmt: skip
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert "\x00" in "".join(one)
    for folder in ("out", "fit"):
        assert (tmp_path / folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (r'{"sentence1": "a", "sentence2": "\ud83d", "score": 1}', "line 3: sentence2 holds half of a surrogate pair"),
        ('{"sentence1": "a", "sentence2": "b", "score": 1' + "0" * 400 + "}", "line 3: score must be a finite number"),
        ('{"sentence1": "a", "sentence2": "b", "score": 1' + "0" * 9000 + "}", "line 3 is not JSON"),
        ('{"sentence1": "a", "sentence2": "b", "score": "1"}', "line 3: score must be a finite number"),
        ("[" * 100_000, "line 3 is not JSON"),
    ],
    ids=["half", "huge", "digits", "text", "nested"],
)
def test_graded_pairs_that_no_model_can_read_are_named(tmp_path, line, message):
    path = tmp_path / "test.jsonl"
    rows = [json.dumps({"sentence1": text, "sentence2": text, "score": 1}) for text in ("\u2028\r\x00", "")]
    path.write_text("\n".join([*rows, line]) + "\n", encoding="utf-8")
    with pytest.raises(EvaluationDataError, match=message) as info:
        read_sts(path)
    assert len(str(info.value)) < 400
