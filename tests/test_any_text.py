"""Random Unicode through every builder, augmentation, reader and loss: no crash, no NaN, no lost row."""

from __future__ import annotations

import gzip
import json
import random

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainer
from torch.utils.data import DataLoader

import st_contrastive as stc
from st_contrastive.augmentations import AntonymReplacement
from st_contrastive.inputs import load_sentences, load_translations, translate_corpus
from st_contrastive.inputs.row_filter import get_row_counts
from st_contrastive.methods import METHODS
from tests import foreign
from tests.cases import TRAINED_CASES, arguments_of, method_of
from tests.unicode_sentences import mended, sentences, with_halves

pytestmark = pytest.mark.long
#: A method of each pair of builders.
BUILDERS = ("simcse", "conisi", "twins")
#: Options of the loss, and text columns.
LOSSES = {
    **TRAINED_CASES,
    "momentum": ({"queue_size": 150}, 1),
    "conisi-subword": ({"strategy": "subword"}, 1),
    "conisi-given": ({"strategy": "given"}, 2),
}
COUNT = 400


@pytest.fixture(scope="module")
def texts():
    return sentences(COUNT)


@pytest.mark.parametrize("name", BUILDERS)
def test_half_a_surrogate_pair_is_named_with_its_remedy(texts, name):
    spoilt, places = with_halves(texts)
    build = METHODS[name].dataset
    with pytest.raises(ValueError, match=rf"^sentences\[{places[0]}\] .* text\.encode") as info:
        build(spoilt)
    assert len(str(info.value)) < 400
    with pytest.raises(ValueError, match=rf"\[{places[0]}\]"):
        build(texts, spoilt)
    repaired = [mended(text) for text in spoilt]
    for columns in ([repaired], [repaired, texts[::-1]]):
        data = build(*columns)
        assert [data[column][:] for column in data.column_names] == columns
        assert [example.texts for example in stc.input_examples(data)] == [
            list(row) for row in zip(*columns, strict=True)
        ]
    with pytest.raises(ValueError, match=r"constructed\[1\] holds half"):
        stc.conisi_dataset(["a", "b"], lambda text, rng: "\ud83d" if text == "b" else text)


def test_antonyms_take_any_text(texts):
    augment = AntonymReplacement()
    rng = random.Random(0)
    for text in [*texts, *with_halves(texts)[0]]:
        augmented = augment(text, rng)
        assert bool(augmented.split()) == bool(text.split())
        if text.isprintable():
            assert augmented.isprintable()
    with pytest.warns(UserWarning, match="equal their sentence"):  # most of these texts have no English word
        data = stc.conisi_dataset(texts, augment)
    assert data["sentence"][:] == texts


def visible(text):
    text = text.strip().strip("\ufeff").strip()
    return text if any(c.isprintable() and not c.isspace() for c in text) else ""


def test_readers_account_for_every_row(texts, tmp_path):
    expected = list(dict.fromkeys(filter(None, map(visible, texts))))
    assert len(expected) > 250
    assert load_sentences(texts)["sentence"][:] == expected
    path = tmp_path / "c.jsonl.gz"
    with gzip.open(path, "wt", encoding="ascii") as file:
        file.writelines(json.dumps({"en": text, "de": text[::-1]}) + "\n" for text in texts)
    data = load_sentences(path, column="en")
    counts = get_row_counts(data)
    assert data["sentence"][:] == expected
    assert counts.rows == COUNT == len(data) + sum(counts.dropped.values())
    pairs = load_translations(path)
    counts = get_row_counts(pairs)
    assert (counts.rows, counts.dropped["empty"]) == (COUNT, COUNT - len(pairs))
    assert pairs["sentence"][:] == [visible(text) for text in texts if visible(text) and visible(text[::-1])]
    translated = translate_corpus(texts, tmp_path / "pairs.jsonl", lambda batch: [text[::-1] for text in batch])
    assert load_translations(translated).to_dict() == pairs.to_dict()


def test_a_fraternal_language_takes_any_text(texts, build, tmp_path):
    model = build()
    fraternal = stc.FraternalEmbedding.from_pretrained(str(foreign.checkpoint(tmp_path / "german")), model)
    data = stc.twins_dataset(texts, texts[::-1], fraternal=fraternal)
    loss = stc.TwinsLoss(model, fraternal=fraternal)
    for start in range(0, COUNT, 100):
        rows = data[start : start + 100]
        terms = loss([model.preprocess(rows["sentence"])], torch.tensor(rows["label"]))
        sum(terms.values()).backward()
        assert all(term.isfinite() for term in terms.values())


@pytest.mark.parametrize("family", ["bert", "roberta"])  # word pieces, and byte-level BPE
@pytest.mark.parametrize("name", LOSSES)
def test_losses_stay_finite(texts, build, name, family):
    method, (options, columns) = method_of(name), LOSSES[name]
    data = method.dataset(*[texts, texts[::-1]][:columns])
    model = build(family)
    model.max_seq_length = 16
    loss = method.loss_class(model, **options)
    for start in range(0, COUNT, 100):
        rows = data[start : start + 100]
        terms = loss([model.preprocess(rows[column]) for column in data.column_names])
        sum(terms.values()).backward()  # added up: one that is not finite stays so to the end
        assert all(bool(term.isfinite()) for term in terms.values()), (start, terms)
    gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    assert len(gradients) > 30
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert all(bool(value.isfinite().all()) for value in loss.state_dict().values() if value.is_floating_point())


def test_the_trainer_and_fit_take_any_text(texts, build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build()
    arguments = arguments_of("trainer", per_device_train_batch_size=50, max_steps=8, save_strategy="no")
    dataset = stc.conisi_dataset(texts, texts[::-1])
    loss = stc.ConIsILoss(model, strategy="given")
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss).train()
    model.save_pretrained("out")  # with a card that shows some of the rows
    loader = DataLoader(stc.input_examples(stc.text_dataset(texts)), batch_size=50)
    model.fit(train_objectives=[(loader, stc.SimCSELoss(model))], epochs=1, warmup_steps=0, output_path="fit",
              show_progress_bar=False)  # fmt: skip
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    for folder in ("out", "fit"):
        assert (tmp_path / folder / "README.md").read_text(encoding="utf-8")
