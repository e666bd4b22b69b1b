"""Fresh augmentation through the Trainer with any number of workers, and the memory that a large corpus needs."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Features, Value
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from st_contrastive import ConIsILoss, conisi_dataset, conisi_examples, text_dataset
from st_contrastive.augmentations import RandomDeletion, WordRepetition
from st_contrastive.inputs import FreshAugmentation
from tests.filters import TRAINING

pytestmark = [*TRAINING]


class Seen(torch.nn.Module):
    """Records the tokens of both columns before the loss sees them."""

    def __init__(self, loss):
        super().__init__()
        self.wrapped, self.model, self.batches = loss, loss.model, []

    def forward(self, features, labels=None):
        features = list(features)
        self.batches.append([column["input_ids"].tolist() for column in features])
        return self.wrapped(features, labels)


def drawn(build, sentences, folder, workers, seed=1):
    from transformers import set_seed

    set_seed(0)
    model = build()
    fresh = FreshAugmentation({"constructed": ("sentence", RandomDeletion(0.4))}, seed=seed)
    dataset = conisi_dataset(sentences)
    dataset.set_transform(fresh)
    loss = Seen(ConIsILoss(model, strategy="given"))
    arguments = SentenceTransformerTrainingArguments(
        str(folder),
        per_device_train_batch_size=5,
        num_train_epochs=3,
        dataloader_num_workers=workers,
        dataloader_persistent_workers=workers > 0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss, callbacks=[fresh]).train()
    pad = model.tokenizer.pad_token_id
    epochs = [{}, {}, {}]
    for place, (own, other) in enumerate(loss.batches):
        for row, made in zip(own, other, strict=True):
            clean = [tuple(i for i in ids if i != pad) for ids in (row, made)]
            epochs[place // 2][clean[0]] = clean[1]
    return epochs


def test_every_epoch_differs_and_workers_change_nothing(build, sentences, tmp_path):
    epochs = drawn(build, sentences, tmp_path, workers=0)
    assert [len(epoch) for epoch in epochs] == [10, 10, 10]
    for one, two in ((0, 1), (1, 2), (0, 2)):
        same = sum(epochs[one][row] == epochs[two][row] for row in epochs[0])
        assert same < 6
    assert drawn(build, sentences, tmp_path, workers=2) == epochs
    assert drawn(build, sentences, tmp_path, workers=0, seed=2) != epochs


@pytest.mark.parametrize("workers", [0, 1])
def test_each_pass_over_a_stream_differs(build, sentences, tmp_path, workers):
    fresh = FreshAugmentation({"constructed": ("sentence", RandomDeletion(0.4))})
    stream = conisi_dataset(sentences).to_iterable_dataset()
    features = Features({"sentence": Value("string"), "constructed": Value("string")})
    loss = Seen(ConIsILoss(build(), strategy="given"))
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), max_steps=6, per_device_train_batch_size=5, dataloader_num_workers=workers, save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    SentenceTransformerTrainer(
        model=loss.model,
        args=arguments,
        train_dataset=stream.map(fresh, batched=True, features=features),
        loss=loss,
        callbacks=[fresh],
    ).train()
    passes = [str([batch[1] for batch in loss.batches[start : start + 2]]) for start in (0, 2, 4)]
    assert len(set(passes)) == 3
    assert len({str([batch[0] for batch in loss.batches[start : start + 2]]) for start in (0, 2, 4)}) == 1


def test_columns_have_draws_of_their_own_and_copies_the_epoch():
    fresh = FreshAugmentation({"sentence": RandomDeletion(0.5), "other": ("sentence", RandomDeletion(0.5))})
    texts = [f"one two three four five six seven eight {row}" for row in range(8)]
    made = fresh({"sentence": texts})
    assert made["sentence"] != made["other"]
    apart = FreshAugmentation({"other": ("sentence", RandomDeletion(0.5))})({"sentence": texts})
    assert made["other"] == apart["other"]  # made from the column as it came, not from its augmented texts
    copied = copy.deepcopy(fresh)
    fresh.set_epoch(1)
    assert copied({"sentence": texts}) == fresh({"sentence": texts}) != made


def test_what_an_augmentation_returns_is_checked():
    fresh = FreshAugmentation({"other": ("sentence", lambda text, rng: None)})
    with pytest.raises(TypeError, match=r"augmentation of column 'other' must return a string, got NoneType for 'It"):
        fresh({"sentence": ["It rains."]})
    with pytest.raises(ValueError, match="seed must be a whole number"):
        FreshAugmentation({"sentence": RandomDeletion()}, seed=None)


def test_columns_are_replaced_or_added_and_errors_named():
    dataset = text_dataset(["one two three four five six"] * 3)
    dataset.set_transform(FreshAugmentation({"sentence": WordRepetition(1.0)}))
    assert dataset[0]["sentence"] == dataset[2]["sentence"]  # depends on the text, not on the row
    dataset.set_transform(FreshAugmentation({"other": ("text", WordRepetition())}))
    with pytest.raises(ValueError, match="no column 'text' to augment, only sentence"):
        dataset[0]
    for bad in ({}, "sentence", {"sentence": 3}, {"sentence": (1, WordRepetition())}):
        with pytest.raises(TypeError, match="columns"):
            FreshAugmentation(bad)


def test_an_augmentation_makes_the_constructed_sentences():
    texts = ["one two three four", "five six seven eight"] * 2
    made = conisi_dataset(texts, RandomDeletion(0.5), seed=3)
    examples = conisi_examples(iter(texts), RandomDeletion(0.5), seed=3)
    assert made["constructed"][:] == [example.texts[1] for example in examples]
    assert made["constructed"][0] != made["constructed"][2]  # each row has its own generator
    assert conisi_dataset(texts, RandomDeletion(0.5), seed=4)["constructed"][:] != made["constructed"][:]
    with pytest.raises(TypeError, match=r"must return a string, got NoneType for sentences\[0\]"):
        conisi_examples(texts, lambda text, rng: None)


MEMORY = """
from pathlib import Path
from st_contrastive import {name}
from st_contrastive.inputs import stream_corpus

def status(name):  # in KiB; getrusage would give the parent's peak if that was higher
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

def corpus(n):
    for i in range(n):
        yield f"Sentence number {{i}} of a corpus, as long as those of an encyclopedia are, is {{i * 7919 % 99991}}."

extra = {extra}
{name}(corpus(10), *extra)
before = status("VmRSS")
data = {name}(corpus({rows}), *extra)
growth = status("VmHWM") - before
assert len(data) == {rows}
assert "number 199999 of" in data[199_999]["sentence"]
print(growth // 1024)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "extra"), [("text_dataset", "()"), ("conisi_dataset", "(lambda text, rng: text[::-1],)")]
)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_a_large_corpus_is_not_held_in_memory(name, extra):
    code = MEMORY.format(name=name, extra=extra, rows=200_000)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.splitlines()[-1]) < 100  # MiB; a list of these texts takes three times that
