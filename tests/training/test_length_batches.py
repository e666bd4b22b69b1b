"""Batches of like length: every row once, drawn at random, little padding, through the Trainers."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from st_contrastive import SimCSELoss, text_dataset
from st_contrastive.training import ContrastiveTrainer, LengthBatchSampler


def sampler(dataset, size=8, drop_last=False, seed=0, epoch=0):
    made = LengthBatchSampler(dataset, size, drop_last, ["label"], torch.Generator(), seed)
    made.set_epoch(epoch)
    return made


@given(st.integers(1, 300), st.integers(1, 40), st.booleans())
def test_every_row_comes_once(rows, size, drop_last):
    dataset = Dataset.from_dict({"sentence": ["x" * (number % 37) for number in range(rows)]})
    made = sampler(dataset, size, drop_last)
    batches = list(made)
    assert len(batches) == len(made)
    seen = sorted(row for batch in batches for row in batch)
    if not drop_last:
        assert seen == list(range(rows))
    assert len(set(seen)) == len(seen) == (rows // size * size if drop_last else rows)
    assert all(len(batch) == size for batch in batches[: rows // size])


def test_rows_of_a_batch_are_of_like_length_and_drawn_anew_each_epoch():
    lengths = torch.randint(5, 100, (4000,), generator=torch.Generator().manual_seed(1)).tolist()
    dataset = Dataset.from_dict({"sentence": ["x" * length for length in lengths], "label": ["y" * 999] * 4000})
    batches = list(sampler(dataset))
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)
    assert padded / sum(lengths) < 1.02
    means = [sum(lengths[row] for row in batch) / len(batch) for batch in batches]
    assert abs(torch.corrcoef(torch.tensor([means, list(range(len(means)))]))[0, 1]) < 0.1  # in no order
    assert list(sampler(dataset)) == batches
    assert list(sampler(dataset, seed=1)) != batches
    again = list(sampler(dataset, epoch=1))
    met = {frozenset((a, b)) for batch in batches for a in batch for b in batch if a != b}
    met_again = {frozenset((a, b)) for batch in again for a in batch for b in batch if a != b}
    assert len(met & met_again) / len(met) < 0.1  # others meet


def test_pools_are_smaller_than_the_corpus():
    dataset = Dataset.from_dict({"sentence": ["x" * number for number in range(4000)]})
    spans = [max(batch) - min(batch) for batch in sampler(dataset)]
    assert min(spans) > 7  # sorted over all, each batch would be eight neighbours


def test_pairs_by_the_longer_and_a_transform_is_not_run():
    dataset = Dataset.from_dict({"sentence": ["a", "aaaa", "a"], "other": ["bbb", "b", "b"]})
    dataset.set_transform(lambda batch: 1 / 0)
    assert sampler(dataset).lengths.tolist() == [3, 4, 1]
    assert sampler(dataset.select([2, 0])).lengths.tolist() == [1, 3]
    with pytest.raises(ValueError, match="column of texts"):
        sampler(Dataset.from_dict({"number": [1, 2]}))


@pytest.mark.parametrize("trainer", [SentenceTransformerTrainer, ContrastiveTrainer])
def test_trains(build, sentences, tmp_path, trainer):
    model = build()
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=2,
        num_train_epochs=2,
        batch_sampler=LengthBatchSampler,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    data = text_dataset(sentences[:6])
    made = trainer(model, arguments, data, loss=SimCSELoss(model))
    assert made.train().global_step == 6
