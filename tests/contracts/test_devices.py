"""Every loss on a pretend GPU: the CPU's numbers, all tensors on one device, and few waits for it.

docs/synchronisations.md holds what these tests count: ``pytest tests/contracts/test_devices.py --write-table`` writes
it anew.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from sentence_transformers.util import batch_to_device
from torch.nn.attention import SDPBackend, sdpa_kernel

import st_contrastive as stc
from st_contrastive.components import load_auxiliary
from st_contrastive.evaluation import (
    FirstLastAverage,
    RetrievalSet,
    STSEvaluator,
    STSPairs,
    Whitened,
    evaluate_geometry,
    evaluate_in_domain_retrieval,
    similarity_by_score,
    sts_spearman,
    twins_information,
)
from st_contrastive.evaluation.retrieval import ranked
from st_contrastive.evaluation.transfer import TransferSplit, features
from st_contrastive.training import load_loss_state, save_loss_state
from tests import foreign
from tests.contracts.test_losses import CASES, IN_CHUNKS, ONE_OF_EACH, columns
from tests.pretend_device import DEVICE, PretendTensor, pretend_device, watching
from tests.selection import crossed

DOCUMENT = Path(__file__).parents[2] / "docs" / "synchronisations.md"
FRATERNAL = "twins-fraternal"
IN_MINI_BATCHES = {
    f"{name}-mini": (loss_class, {**options, "mini_batch_size": 5}, count, names)
    for name, (loss_class, options, count, names) in CASES.items()
    if name in ("simcse", "twins", "twins-momentum", "infocse-rtd", "combined")
}
RUNS = {
    **CASES,
    **IN_MINI_BATCHES,
    FRATERNAL: (stc.TwinsLoss, {"fraternal": "german"}, 1, ["identical", "fraternal", "twins"]),
}
#: What the package waits for: where, and the word that the document explains.
WAITS = {
    "st_contrastive.encoder.rows.places": "drawn",
    "st_contrastive.components.fraternal_embedding.read": "translations",
    "st_contrastive.encoder.rows.lengths": "lengths",
    "st_contrastive.encoder.passes._groups": "groups",
}
LIBRARIES = ("transformers.", "sentence_transformers.")

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
]


@pytest.fixture(scope="module")
def german(tmp_path_factory):
    return str(foreign.checkpoint(tmp_path_factory.mktemp("german")))


def label(name):
    """The loss as it is built, and its columns."""
    loss_class, options, count, _ = RUNS[name]
    arguments = []
    for key, value in options.items():
        if key == "ablation":
            changed = {name: one for name, one in vars(value).items() if one != getattr(type(value)(), name)}
            arguments.append(f"{key}={type(value).__name__}({', '.join(f'{n}={v!r}' for n, v in changed.items())})")
        else:
            arguments.append(key if key == "fraternal" else f"{key}={value!r}")
    return f"`{loss_class.__name__}({', '.join(arguments)})`" + (", two columns" if count == 2 else "")


@pytest.fixture(scope="module")
def documented(request):
    """``documented(name, own, libraries)`` compares with the document, or keeps what is to be written."""
    writing = request.config.getoption("--write-table")
    written = {} if writing else rows_of(DOCUMENT.read_text())
    found = {}

    def check(name, own, libraries):
        found[name] = f"| {label(name)} | {own} | {libraries} |"
        if not writing:
            hint = "pytest tests/contracts/test_devices.py --write-table"
            assert label(name) in written, hint
            assert written[label(name)][0] == own, hint
            assert libraries <= int(written[label(name)][1]), hint

    yield check
    if writing and set(found) == set(RUNS):
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(with_rows(DOCUMENT.read_text(), [found[name] for name in RUNS]))


def rows_of(text):
    return {first: rest for first, *rest in re.findall(r"^\| (`.*?) \| (.*?) \| (\d+) \|$", text, re.MULTILINE)}


def with_rows(text, rows):
    """The document with these rows in its table."""
    table = re.compile(r"(\| Loss \| .*\n\|---.*\n)(?:\| .*\n)+")
    assert len(table.findall(text)) == 1
    return table.sub(lambda found: found[1] + "".join(f"{row}\n" for row in rows), text)


def moved(features, device):
    return batch_to_device(dict(features), device)


def made(name, model, german, sentences):
    """The loss, its columns on the CPU, and labels."""
    loss_class, options, count, _ = RUNS[name]
    labels = torch.zeros(len(sentences))
    if name == FRATERNAL:
        fraternal = stc.FraternalEmbedding.from_pretrained(german, model, max_length=30)
        labels = torch.tensor(fraternal.labels(foreign.GERMAN))
        options = {"fraternal": fraternal}
    loss = loss_class(model, **options)
    loss.saves_padding = False  # as on a GPU
    return loss, columns(model, sentences, count), labels


def trained(name, model, german, sentences, device):
    """Two steps: what was computed, and what the second waited for."""
    torch.manual_seed(3)
    loss, batch, labels = made(name, model.to(device), german, sentences)
    own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    # The bias of attention's keys has no gradient but rounding, of which a smaller eps would make whole steps.
    optimizer = torch.optim.AdamW(own, lr=1e-3, eps=1e-4)
    found = {}
    for step in range(2):
        features = [moved(column, device) for column in batch]
        there = labels.to(device)
        torch.manual_seed(step)
        with watching() as waits:
            terms = loss(features, there)
            terms.total.backward()
            gradients = {key: p.grad.clone() for key, p in loss.named_parameters() if p.grad is not None}
            torch.nn.utils.clip_grad_norm_(own, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        found[f"terms {step}"] = {key: value.detach().clone() for key, value in terms.items()}
        found[f"gradients {step}"] = gradients
    found["state"] = {key: value.clone() for key, value in loss.state_dict().items()}
    return found, waits


@pytest.mark.parametrize("name", crossed(RUNS, quick=lambda name: name in (*ONE_OF_EACH, FRATERNAL)))
def test_a_gpu_computes_what_the_cpu_does_and_waits_as_documented(
    build, german, sentences, name, documented, limit_logits
):
    if name in IN_CHUNKS:
        limit_logits(200)
    model = build("bert-mlm")
    other = copy.deepcopy(model)
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's own kernels round otherwise
        expected, _ = trained(name, model, german, sentences, "cpu")
    with pretend_device():
        found, waits = trained(name, other, german, sentences, DEVICE)
        assert list(found) == list(expected)
        for part, values in expected.items():
            assert len(values) > 0, part
            assert set(found[part]) == set(values), part
            for key, value in values.items():
                assert isinstance(found[part][key], PretendTensor), f"{part} {key} lies on the CPU"
                torch.testing.assert_close(found[part][key].cpu(), value, msg=lambda m, at=(part, key): f"{at}: {m}")
    places = Counter(wait.place for wait in waits)
    libraries = sum(places.pop(place) for place in list(places) if place.startswith(LIBRARIES))
    unknown = set(places) - set(WAITS)
    assert not unknown, f"waits that WAITS has no word for: {unknown}"
    own = ", ".join(f"{places[place]} {word}" for place, word in WAITS.items() if places[place])
    documented(name, own or "none", libraries)


def test_the_document_tells_of_these_losses_alone(request):
    if request.config.getoption("--write-table"):
        pytest.skip("it is being written")
    text = DOCUMENT.read_text()
    assert set(rows_of(text)) == {label(name) for name in RUNS}
    assert re.findall(r"^- \*\*(\w+)\*\*: ", text, re.MULTILINE) == list(WAITS.values())


@pytest.mark.parametrize(
    "name",
    crossed([*ONE_OF_EACH, FRATERNAL, "twins-momentum"], quick=("twins", "momentum", "pretraining").__contains__),
)
def test_state_is_restored_onto_the_device(build, german, sentences, tmp_path, name):
    model = build("bert-mlm")
    loss, batch, labels = made(name, copy.deepcopy(model), german, sentences)
    loss(batch, labels)
    save_loss_state(loss, tmp_path / "cpu")
    with pretend_device():
        again, *_ = made(name, model.to(DEVICE), german, sentences)
        load_loss_state(again, tmp_path / "cpu")
        state = {key: value for key, value in again.state_dict().items() if not key.startswith("model.")}
        assert all(isinstance(value, PretendTensor) for value in state.values())
        for key, value in loss.state_dict().items():
            if key in state:
                torch.testing.assert_close(state[key].cpu(), value)
        again([moved(column, DEVICE) for column in batch], labels.to(DEVICE)).backward()  # which uses the queue
        save_loss_state(again, tmp_path / "device")
    load_loss_state(loss, tmp_path / "device")


@pytest.fixture
def device():
    """The pretend GPU, open for a whole test."""
    with pretend_device():
        yield DEVICE


@pytest.mark.parametrize("rtd_weight", [0, 0.1], ids=["mlm", "rtd"])
def test_gradient_norms_take_what_preprocess_gives(build, sentences, device, rtd_weight):
    model = build("bert-mlm", dropout=False)
    other = copy.deepcopy(model).to(device)
    norms = []
    for own in (model, other):
        torch.manual_seed(0)
        loss = stc.InfoCSELoss(own, ablation=stc.InfoCSEAblation(rtd_weight=rtd_weight))
        for module in loss.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        torch.manual_seed(0)
        norms.append(loss.gradient_norms(own.preprocess(sentences)))
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert len(norms[0]) == 2 + (rtd_weight > 0)


def test_an_auxiliary_network_is_saved_from_the_device_and_loaded_onto_it(build, sentences, device, tmp_path):
    model = build("bert-mlm").to(device)
    first = stc.AuxiliaryMLMPretrainingLoss(model)
    first([moved(model.preprocess(sentences), device)]).backward()
    first.save_auxiliary(tmp_path)
    loss = stc.InfoCSELoss(model, auxiliary=tmp_path, mlm_weight=0.1)
    assert all(isinstance(parameter, PretendTensor) for parameter in loss.auxiliary.parameters())
    for key, value in first.auxiliary.state_dict().items():
        torch.testing.assert_close(loss.auxiliary.state_dict()[key].cpu(), value.cpu())
    loss([moved(model.preprocess(sentences), device)]).backward()
    on_cpu = load_auxiliary(tmp_path, build("bert-mlm").transformers_model, model.tokenizer)
    assert not any(isinstance(parameter, PretendTensor) for parameter in on_cpu.parameters())
    detector = stc.DiffCSELoss(model, generator=tmp_path)
    assert all(isinstance(parameter, PretendTensor) for parameter in detector.parameters())


@pytest.mark.parametrize("named", [True, False], ids=["by-name", "as-model"])
def test_a_generator_from_the_cpu_comes_along(build, checkpoint, sentences, device, named):
    import transformers

    model = build("bert-mlm").to(device)
    generator = str(checkpoint("bert-mlm"))
    if not named:
        generator = transformers.AutoModelForMaskedLM.from_pretrained(generator)
    loss = stc.DiffCSELoss(model, generator=generator)
    assert all(isinstance(value, PretendTensor) for value in (*loss.parameters(), *loss.buffers()))
    loss([moved(model.preprocess(sentences), device)]).backward()


def test_a_fraternal_embedding_maps_on_the_device(build, german, device):
    model = build()
    own, there = (
        stc.FraternalEmbedding.from_pretrained(german, encoder) for encoder in (model, copy.deepcopy(model).to(device))
    )
    ids, _ = own.read(torch.tensor(own.labels(foreign.GERMAN)))
    vectors = there(ids.to(device))
    assert isinstance(vectors, PretendTensor)
    torch.testing.assert_close(vectors.cpu(), own(ids))
    read = there.read(torch.tensor(own.labels(foreign.GERMAN)).to(device), limit=5)
    assert all(isinstance(part, PretendTensor) for part in read)


def test_twins_information_is_the_cpus(build, german, sentences, device):
    model = build()
    found = []
    for encoder in (model, copy.deepcopy(model).to(device)):
        fraternal = stc.FraternalEmbedding.from_pretrained(german, encoder)
        loss = stc.TwinsLoss(encoder, fraternal=fraternal)
        torch.manual_seed(0)
        labels = torch.tensor(fraternal.labels(foreign.GERMAN))
        found.append(twins_information(loss, [encoder.preprocess(sentences)], labels))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert set(found[0]) == {"identical", "fraternal"}


def scored(model, sentences):
    """What the evaluators make of a model, as lists of numbers."""
    pairs = STSPairs(tuple(sentences), tuple(sentences[::-1]), tuple(float(i % 6) for i in range(len(sentences))))
    documents = {str(row): text for row, text in enumerate(sentences)}
    data = RetrievalSet(documents, {"a": "birds sing", "b": "rain"}, {"a": {"6": 1.0}, "b": {"2": 1.0}})
    geometry = evaluate_geometry(model, pairs, above_score=3.0)
    return {
        "sts": [sts_spearman(model, pairs)],
        "evaluator": list(STSEvaluator(pairs)(model).values()),
        "geometry": [score.value for score in geometry.scores],
        "bands": similarity_by_score(model, pairs, bands=2).medians,
        "transfer": features(model, TransferSplit((tuple(sentences),), ("x",) * 10)).tolist(),
        "in-domain": [score.value for score in evaluate_in_domain_retrieval(model, pairs).scores],
        "retrieval": ranked(model, data, 5),
        "first-last": FirstLastAverage(model).encode(sentences).tolist(),
        "whitened": abs(Whitened(model, sentences, dimensions=2).encode(sentences)).tolist(),
    }


def test_evaluation_gives_the_cpus_scores(build, sentences, device):
    model = build().eval()
    expected, found = scored(model, sentences), scored(copy.deepcopy(model).to(device), sentences)
    assert found.pop("retrieval") == expected.pop("retrieval")
    for name, values in expected.items():
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(values), rtol=1e-3, atol=1e-4)


def test_the_trainer_trains_on_the_device_and_resumes(build, sentences, device, tmp_path, monkeypatch):
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformerTrainingArguments

    from st_contrastive.training import ContrastiveTrainer

    def run(folder, resume=None):
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path / folder),
            max_steps=4,
            per_device_train_batch_size=4,
            save_steps=2,
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        assert arguments.device.type == "cpu"
        monkeypatch.setitem(PartialState._shared_state, "device", device)
        arguments.__dict__["_setup_devices"] = device
        torch.manual_seed(0)
        model = build("bert-mlm")
        loss = stc.TwinsLoss(model.to(device))
        trainer = ContrastiveTrainer(model, args=arguments, train_dataset=stc.text_dataset(sentences), loss=loss)
        trainer.train(resume_from_checkpoint=resume)
        assert all(isinstance(value, PretendTensor) for value in loss.state_dict().values())
        return {name: value.cpu() for name, value in loss.state_dict().items()}

    whole = run("whole")
    resumed = run("resumed", resume=str(tmp_path / "whole" / "checkpoint-2"))
    assert len(whole) > 10
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_fit_trains_on_the_device(build, sentences, device, tmp_path, monkeypatch):
    from functools import cached_property

    from accelerate import PartialState
    from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
    from torch.utils.data import DataLoader

    set_up = SentenceTransformerTrainingArguments._setup_devices.func  # what fit builds chooses the device by itself

    def choose(arguments):
        set_up(arguments)
        monkeypatch.setitem(PartialState._shared_state, "device", device)
        return device

    chosen = cached_property(choose)
    chosen.__set_name__(SentenceTransformerTrainingArguments, "_setup_devices")
    monkeypatch.setattr(SentenceTransformerTrainingArguments, "_setup_devices", chosen)
    torch.manual_seed(0)
    model = build("bert-mlm").to(device)
    loss = stc.InfoCSELoss(model, mlm_weight=0.1)
    before = {name: value.cpu().clone() for name, value in loss.state_dict().items()}
    loader = DataLoader(stc.text_examples(sentences), batch_size=5)
    model.fit([(loader, loss)], epochs=1, warmup_steps=0, show_progress_bar=False, checkpoint_path=str(tmp_path))
    after = loss.state_dict()
    assert all(isinstance(value, PretendTensor) for value in after.values())
    changed = [name for name, value in after.items() if not torch.equal(value.cpu(), before[name])]
    assert any(name.startswith("model.") for name in changed)
    assert any(name.startswith("auxiliary.") for name in changed)
