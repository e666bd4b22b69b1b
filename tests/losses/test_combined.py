"""The parts of the combined loss are the methods': each switched off leaves another loss, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.utils.data import DataLoader

from st_contrastive import (
    CombinedLoss,
    ConIsILoss,
    InfoCSEAblation,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
    text_examples,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
    pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only"),
]


def value_and_gradient(model, loss, texts, seed=4):
    model.zero_grad()
    torch.manual_seed(seed)
    total = loss([model.preprocess(texts)]).total
    total.backward()
    own = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert len(own) > 30
    return total.detach(), own


def assert_same(model, one, other, texts):
    (value, gradient), (theirs, expected) = (value_and_gradient(model, loss, texts) for loss in (one, other))
    torch.testing.assert_close(value, theirs)
    assert set(gradient) == set(expected)
    for name, found in gradient.items():
        torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("strategy", ["other", "subword"])
def test_without_queue_and_network_it_is_conisi(build, sentences, strategy):
    model = build()
    options = {"temperature": 0.2, "interaction_weight": 0.3, "strategy": strategy}
    conisi = ConIsILoss(model, **options)
    combined = CombinedLoss(model, queue_batches=0, mlm_weight=0.0, **options)
    combined.head.load_state_dict(conisi.head.state_dict())
    combined.classifier.load_state_dict(conisi.classifier.state_dict())
    assert_same(model, combined, conisi, sentences)


def test_with_dropout_positives_alone_it_is_simcse(build, sentences):
    model = build(dropout=False)
    simcse = SimCSELoss(model)
    combined = CombinedLoss(model, positives="dropout", interaction_weight=0, queue_batches=0, mlm_weight=0)
    combined.head.load_state_dict(simcse.head.state_dict())
    assert_same(model, combined, simcse, sentences)


def test_the_queue_is_twins(build, sentences, no_dropout):
    """Under an identity for a head, the contrastive term of the second step is Twins' identical term."""
    model = build(dropout=False)
    twins = TwinsLoss(model, train_pooling=None)
    combined = CombinedLoss(model, positives="dropout", interaction_weight=0, mlm_weight=0)
    combined.head = torch.nn.Identity()
    for texts in (sentences[:5], sentences[5:]):
        assert_same(model, combined, twins, texts)
    assert len(combined.queue) == len(twins.queue) == 10
    torch.testing.assert_close(combined.queue.keys, twins.queue.keys)


def test_the_network_is_infocses(build, sentences, no_dropout):
    """The same network, on one masked copy: the same masked-LM term, and the same gradient into the encoder."""
    model = build(dropout=False)
    infocse = InfoCSELoss(model, mlm_weight=0.7, ablation=InfoCSEAblation(masked_views="first", contrastive_weight=0.0))
    combined = CombinedLoss(
        model, auxiliary=infocse.auxiliary, positives="dropout", interaction_weight=0, queue_batches=0, mlm_weight=0.7
    )
    no_dropout(infocse)
    gradients = []
    for loss in (infocse, combined):
        model.zero_grad()
        torch.manual_seed(4)
        terms = loss([model.preprocess(sentences)])
        terms["mlm"].backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        gradients.append([terms["mlm"].detach()])
    assert len(gradients[0]) == len(gradients[2]) > 30
    for one, other in zip(gradients[0] + gradients[1], gradients[2] + gradients[3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert sum(g.abs().sum() for g in gradients[0]) > 0


def test_passes_are_shared(build, sentences):
    """Rows through the encoder: each sentence, its pair, and the pair with the constructed sentence; no more."""
    model, rows = build(), []
    whole = CombinedLoss(model)
    by_dropout = CombinedLoss(model, positives="dropout", interaction_weight=0)
    encoder = model[0].model
    forward = encoder.forward  # which sentence-transformers calls by itself
    encoder.forward = lambda *args, **kwargs: rows.append(len(kwargs["input_ids"])) or forward(*args, **kwargs)
    whole([model.preprocess(sentences)])
    assert sum(rows) == 3 * len(sentences)
    rows.clear()
    by_dropout([model.preprocess(sentences)])
    assert sum(rows) == 2 * len(sentences)


def test_bad_arguments(build):
    for options, message in (
        ({"positives": "dropout"}, "it needs positives='pair'"),
        ({"positives": "mine"}, "positives must be one of"),
        ({"mlm_weight": -1}, "mlm_weight"),
        ({"queue_batches": 2, "forgetting_rate": 0.5}, "forgetting_rate"),
        ({"strategy": "none"}, "strategy"),
        ({"auxiliary": 3}, "auxiliary must be a folder's name"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            CombinedLoss(build(), **options)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("loss_class", "options"), [(CombinedLoss, {"mlm_weight": 0.1}), (MomentumContrastLoss, {})])
def test_through_fit(build, sentences, tmp_path, monkeypatch, loss_class, options):
    """Everything that is trained changes, the last batch of one row included; what is saved is the plain model."""
    monkeypatch.chdir(tmp_path)
    model = build()
    loss = loss_class(model, **options)
    before = {name: p.detach().clone() for name, p in loss.named_parameters() if p.requires_grad}
    loader = DataLoader(text_examples(sentences[:9]), batch_size=4, shuffle=True)
    model.fit(
        [(loader, loss)], epochs=1, warmup_steps=0, optimizer_params={"lr": 1e-3}, output_path=str(tmp_path / "out"),
        show_progress_bar=False,
    )  # fmt: skip
    after = {name: p.detach() for name, p in loss.named_parameters()}
    own = [name for name in before if not name.startswith("model.")]
    assert own
    assert all(not torch.equal(after[name], before[name]) for name in own)
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    torch.testing.assert_close(torch.tensor(saved.encode(sentences)), torch.tensor(model.eval().encode(sentences)))
    assert len(saved.state_dict()) == len(model.state_dict())
