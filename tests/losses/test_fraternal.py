"""Twins with another tokenizer for the fraternal language: fusion against a loop, fit and the Trainer."""

from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from torch.utils.data import DataLoader

from st_contrastive import FraternalEmbedding, SimCSELoss, TwinsLoss, input_examples, twins_dataset
from tests import foreign
from tests.cases import arguments_of, without_the_package


def batch(dataset):
    return torch.tensor(dataset["label"][:])


def fused(model, fraternal, sentence, translation, rate, limit):
    """Position by position (eq. 3)."""
    own_matrix = model.transformers_model.get_input_embeddings().weight.double()
    own = model.tokenizer(sentence, truncation=True, max_length=limit)["input_ids"]
    foreign_ids = fraternal.tokenizer(translation)["input_ids"]
    if len(foreign_ids) > limit:
        foreign_ids = [*foreign_ids[: limit - 1], foreign_ids[-1]]
    rows = []
    for token, other in itertools.zip_longest(own, foreign_ids):
        y = None if token is None else own_matrix[token]
        if other is None:
            rows.append(y)
            continue
        y_f = fraternal.weight[other].double() @ fraternal.projection.double() + fraternal.bias.double()
        rows.append(y_f if y is None else rate * y + (1 - rate) * y_f)
    return torch.stack(rows)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_fusion_equals_the_loop(build, german, family):
    model = build(family, dropout=False)
    model.max_seq_length = 10
    fraternal = FraternalEmbedding.from_pretrained(german, model, max_length=30)
    pairs = [
        ("the lake is cold in winter", "der see ist kalt"),  # the translation is shorter
        ("rain falls", "regen fällt auf den kleinen see und auf das haus"),  # longer, and cut
        ("birds sing in the morning", ""),
        ("", "vögel singen"),
        ("the train is late again and the rain falls on the old house by the river", "spät"),  # cut
    ]
    labels = batch(twins_dataset(*zip(*pairs, strict=True), fraternal=fraternal))
    loss, encoder = TwinsLoss(model, fraternal=fraternal, fusion_rate=0.7), model.transformers_model
    with mock.patch.object(encoder, "forward", wraps=encoder.forward) as forward:
        loss([model.preprocess([sentence for sentence, _ in pairs])], labels)
    embeddings = forward.call_args.kwargs["inputs_embeds"].chunk(3)[2].detach().double()
    masks = forward.call_args.kwargs["attention_mask"].chunk(3)
    assert embeddings.shape[1] == 10
    for row, (sentence, translation) in enumerate(pairs):
        expected = fused(model, fraternal, sentence, translation, 0.7, 10)
        assert masks[2][row].sum() == len(expected)
        assert masks[2][row, : len(expected)].all()
        torch.testing.assert_close(embeddings[row, : len(expected)], expected, rtol=1e-5, atol=1e-6)
        own = len(model.tokenizer(sentence, truncation=True, max_length=10)["input_ids"])
        assert masks[0][row].sum() == own == masks[1][row].sum()  # the anchor is only the sentence


def train(way, model, loss, data, folder, workers=0):
    if way == "fit":
        loader = DataLoader(input_examples(data), batch_size=4, shuffle=False, num_workers=workers)
        model.fit([(loader, loss)], epochs=2, warmup_steps=0, optimizer_params={"lr": 1e-3}, show_progress_bar=False)
        return
    arguments = arguments_of(folder, eval_strategy="epoch", dataloader_num_workers=workers, save_strategy="no")
    trainer = SentenceTransformerTrainer(model, arguments, data, data, loss)
    trainer.train()
    logged = {key for entry in trainer.state.log_history for key in entry}
    assert {"eval_fraternal", "eval_twins", "eval_identical"} <= logged


WAYS = [("fit", 0), ("trainer", 0), pytest.param("trainer", 2, marks=pytest.mark.long)]  # forks while threads run


@pytest.mark.parametrize(("way", "workers"), WAYS)
def test_training_saves_no_fraternal_embedding(build, german, sentences, tmp_path, monkeypatch, way, workers):
    monkeypatch.chdir(tmp_path)
    model = build()
    before = model.encode(sentences)
    fraternal = FraternalEmbedding.from_pretrained(german, model)
    # 9 rows in batches of 4: the last batch is one row.
    data = twins_dataset(sentences[:9], foreign.GERMAN[:9], fraternal=fraternal)
    loss = TwinsLoss(model, fraternal=fraternal, queue_batches=2)
    matrix = fraternal.weight.clone()
    train(way, model, loss, data, tmp_path / "work", workers)
    assert torch.equal(fraternal.weight, matrix)
    expected = model.encode(sentences)
    assert not np.allclose(expected, before, atol=1e-3)
    model.save_pretrained(str(tmp_path / "out"))
    build().save_pretrained(str(tmp_path / "reference"))
    files = [sorted(p.relative_to(f) for p in f.rglob("*")) for f in (tmp_path / "out", tmp_path / "reference")]
    assert files[0] == files[1]
    with without_the_package():
        found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(sentences)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_prompts_of_different_length_are_refused(build, german, sentences):
    model = build()
    fraternal = FraternalEmbedding.from_pretrained(german, model)
    loss = TwinsLoss(model, fraternal=fraternal)
    labels = batch(twins_dataset(sentences[:2], ["a b c", "d e f"], fraternal=fraternal))
    assert loss([model.preprocess(sentences[:2])], labels)
    with pytest.raises(ValueError, match="prompts of the sentences and of the translations differ in length"):
        loss([model.preprocess(sentences[:2], prompt="the red ")], labels)


def test_what_does_not_go_together_is_refused(build, german, sentences):
    model = build()
    fraternal = FraternalEmbedding.from_pretrained(german, model)
    loss = TwinsLoss(model, fraternal=fraternal)
    pair = [model.preprocess(sentences), model.preprocess(foreign.GERMAN)]
    labels = batch(twins_dataset(sentences, foreign.GERMAN, fraternal=fraternal))
    with pytest.raises(ValueError, match="Build the data with twins_dataset"):
        loss(pair, labels)
    for none in (None, torch.zeros(10, dtype=torch.long)):  # what fit gives for examples without a label
        with pytest.raises(ValueError, match="labels are not translations"):
            loss(pair[:1], none)
    for count in (1, 2):
        with pytest.raises(ValueError, match="fraternal=None"):
            TwinsLoss(model)(pair[:count], labels)
    other = TwinsLoss(build("electra"), fraternal=fraternal)  # made for embeddings of another width
    with pytest.raises(RuntimeError, match="size"):
        other([other.model.preprocess(sentences[: len(labels)])], labels)
    with pytest.raises(ValueError, match="fraternal must be of type FraternalEmbedding"):
        TwinsLoss(model, fraternal=german)
    assert loss.get_config_dict()["fraternal"].startswith("FraternalEmbedding")
    assert SimCSELoss(model)(pair[:1], labels)  # a loss without use for the labels does not mind


@pytest.mark.parametrize(("own", "longest"), [(50, 50), (128, 128), (300, 128)])
def test_translations_are_truncated_like_sentences_at_most_128_tokens(build, german, own, longest):
    model = build()
    model.max_seq_length = own
    assert FraternalEmbedding.from_pretrained(german, model).max_length == longest
