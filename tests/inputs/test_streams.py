"""A filtered stream keeps the order, the epochs and the state of the stream inside."""

from __future__ import annotations

import datasets
import pytest
from datasets import Features, IterableDataset, Value
from datasets.distributed import split_dataset_by_node
from datasets.iterable_dataset import _BaseExamplesIterable
from torch.utils.data import DataLoader

from st_contrastive.inputs import load_pairs, load_sentences

pytestmark = pytest.mark.filterwarnings("ignore:One pass over source")
TYPES = Features({"t": Value("string"), "u": Value("string")})


def rows_of(shards):
    for shard in shards:
        yield from ({"t": f"{shard}{row}", "u": f"{row}{shard}"} for row in range(7))
        yield {"t": "", "u": shard}
        yield {"t": "a0", "u": "0a"}


@pytest.fixture(params=[None, TYPES], ids=["untyped", "typed"])
def stream(request):
    """A stream of three shards with 21 different rows."""
    return IterableDataset.from_generator(rows_of, request.param, gen_kwargs={"shards": ["a", "b", "c"]})


def texts(data):
    return [row["sentence"] for row in data]


def kept(stream):
    return [*dict.fromkeys(row["t"] for row in stream if row["t"])]


def test_values_that_are_not_texts():
    def rows(value):
        yield from ({"t": None if row == 0 else value if row == 7 else f"row {row}"} for row in range(9))

    kept_rows = load_sentences(IterableDataset.from_generator(rows, gen_kwargs={"value": None}), column="t")
    assert len(texts(kept_rows)) == 7  # also of a stream whose first text is missing
    for value in (7.5, 0, False):
        stream = load_sentences(IterableDataset.from_generator(rows, gen_kwargs={"value": value}), column="t")
        with pytest.raises(ValueError, match=f"row 7 of column 't' is not a text but {value}"):
            texts(stream)


@pytest.mark.parametrize("size", [1, 5, 30])
def test_every_epoch_has_the_order_of_the_stream(stream, size):
    shuffled = stream.shuffle(seed=3, buffer_size=size)
    filtered = {"sentences": load_sentences(shuffled, column="t"), "pairs": load_pairs(shuffled, columns="t,u")}
    orders = []
    for epoch in (0, 1, 2, 0):
        for data in (shuffled, *filtered.values()):
            data.set_epoch(epoch)
        orders.append(kept(shuffled))
        for data in filtered.values():
            assert texts(data) == orders[-1]
    assert orders[0] == orders[3]
    assert size == 1 or orders[0] != orders[1] != orders[2]
    behind = load_sentences(stream, column="t").shuffle(seed=3, buffer_size=5)
    first = texts(behind)
    behind.set_epoch(1)
    assert sorted(first) == sorted(texts(behind)) == sorted(kept(stream))
    assert first != texts(behind)


@pytest.mark.parametrize("done", [0, 1, 9, 20, 21])
def test_a_pass_resumes_from_its_state(stream, done):
    shuffled = stream.shuffle(seed=3, buffer_size=5)
    data = load_sentences(shuffled, column="t")
    data.set_epoch(2)
    iterator = iter(data)
    for _ in range(done):
        next(iterator)
    state = data.state_dict()
    rest = texts(iterator)
    resumed = load_sentences(shuffled, column="t")
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert texts(resumed) == rest
    assert len(rest) == 21 - done


def test_processes_workers_and_interleaved_passes_read_every_row_once(stream):
    data = load_sentences(stream, column="t")
    whole = texts(data)
    assert whole == kept(stream)
    for count in (2, 3):
        parts = [texts(split_dataset_by_node(data, rank, count)) for rank in range(count)]
        assert sorted(text for part in parts for text in part) == sorted(whole)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for workers in (0, 2):
        batches = DataLoader(data, batch_size=4, num_workers=workers)
        assert [text for batch in batches for text in batch["sentence"]] == whole
    assert [(one["sentence"], two["sentence"]) for one, two in zip(data, data, strict=True)] == [
        (text, text) for text in whole
    ]


#: What inputs/streams.py overrides or inherits from a private class of datasets 4.0 to 5.2.
KNOWN = {
    "__init__", "__iter__", "_init_state_dict", "features", "is_typed", "iter_arrow", "load_state_dict", "num_shards",
    "reshard_data_sources", "shard_data_sources", "shuffle_data_sources", "sleep_on_threads_shutdown",
    "split_shard_indices_by_worker", "state_dict",
}  # fmt: skip


def test_the_private_class_of_datasets_has_no_other_methods():
    """A new method may need an override: read it, extend inputs/streams.py if needed, and add its name here."""
    names = {
        name for name, value in vars(_BaseExamplesIterable).items() if callable(value) or isinstance(value, property)
    }
    assert names <= KNOWN, f"datasets {datasets.__version__}"
