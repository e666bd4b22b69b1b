"""Every term of every loss against a computation of its own: the encoder called row by row, without padding, in
float64, dropout 0; the equations as loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from st_contrastive import ConIsILoss, InfoCSELoss, SimCSELoss, TwinsLoss
from st_contrastive.encoder.token_batch import CorruptedTokens
from tests.cases import switch_off_dropout

TAU = 0.08  # no loss's default


@pytest.fixture
def double(build):
    def make(family="bert", pooling="cls"):
        return build(family, pooling, dropout=False).double()

    return make


def features(model, *columns):
    return [model.preprocess(list(column)) for column in columns]


def row_vectors(model, rows, pooling="cls"):
    """Vectors of single rows, each a dict of 1-d lists, from the transformers model itself."""
    encoder, found = model[0].model, []
    for row in rows:
        states = encoder(**{key: torch.tensor([value]) for key, value in row.items()}).last_hidden_state[0]
        found.append(states[0] if pooling == "cls" else states.mean(0))
    return torch.stack(found)


def cosine(a, b):
    return (a @ b / a.norm() / b.norm()).item()


def nce(anchors, positives, extra=()):
    """``extra``: (weight, vector) pairs."""
    losses = []
    for i, anchor in enumerate(anchors):
        denominator = sum(math.exp(cosine(anchor, positive) / TAU) for positive in positives)
        denominator += sum(weight * math.exp(cosine(anchor, key) / TAU) for weight, key in extra)
        losses.append(math.log(denominator) - cosine(anchor, positives[i]) / TAU)
    return sum(losses) / len(losses)


def batch_norm(x, norm):
    x = (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt()
    return x if norm.weight is None else x * norm.weight + norm.bias


def check(terms, expected):
    assert set(terms) == set(expected)
    for name, value in expected.items():
        value = float(torch.as_tensor(value).detach())
        assert abs(value) > 1e-9, f"{name}: nothing is compared"
        assert terms[name].dtype == torch.float64
        assert terms[name].item() == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_simcse(double, sentences, family, pooling):
    model = double(family, pooling)
    loss = SimCSELoss(model, temperature=TAU).double()
    h = row_vectors(model, [dict(model.tokenizer(s)) for s in sentences], pooling)
    h = torch.tanh(h @ loss.head.linear.weight.T + loss.head.linear.bias)
    check(loss(features(model, sentences)), {"contrastive": nce(h, h)})


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("interaction_dim", [None, 1])
def test_conisi_given(double, sentences, family, interaction_dim):
    model = double(family)
    constructed = [sentence.replace("the", "no") + " never" for sentence in sentences]
    loss = ConIsILoss(
        model, temperature=TAU, strategy="given", interaction_weight=0.3, interaction_dim=interaction_dim
    ).double()
    tokenizer, head = model.tokenizer, loss.predictor
    rows = [dict(tokenizer(s)) for s in sentences]
    rows += [dict(tokenizer(s, s)) for s in sentences]
    rows += [dict(tokenizer(s, c)) for s, c in zip(sentences, constructed, strict=True)]
    hidden = row_vectors(model, rows) @ head.linear.weight.T + head.linear.bias
    x, y, z = F.elu(batch_norm(hidden, head.norm)).chunk(3)
    scores = [part @ loss.classifier.weight.T + loss.classifier.bias for part in (y, z)]
    interactive = (scores[0].exp() / (scores[0].exp() + scores[1].exp())).log().neg().mean()
    expected = {"contrastive": 0.7 * nce(x, y), "interactive": 0.3 * interactive}
    check(loss(features(model, sentences, constructed)), expected)


@pytest.mark.parametrize("strategy", ["other", "subword"])
def test_conisi_constructs_what_it_says(double, sentences, strategy):
    """The sentences that the loss composed are taken from its composer; their form and the term are checked."""
    model = double()
    loss = ConIsILoss(model, temperature=TAU, strategy=strategy, replacement_rate=0.3).double()
    composed, compose = [], loss.composer.forward

    def spy(first, second):
        composed.append((first, second))
        return compose(first, second)

    loss.composer.forward = spy
    replaced = []
    if strategy == "subword":
        replace = loss.replacement.forward
        loss.replacement.forward = lambda *args: replaced.append(replace(*args)) or replaced[-1]
    terms = loss(features(model, sentences))
    ((firsts, seconds),) = composed  # all pairs at once: each with itself, then each with what was constructed
    rows = range(len(sentences))
    twice = [[part.ids[i, : part.lengths[i]].tolist() for i in range(2 * len(rows))] for part in (firsts, seconds)]
    assert len(firsts.lengths) == len(seconds.lengths) == 2 * len(rows)
    originals, again, same, made = (half[k : k + len(rows)] for half in twice for k in (0, len(rows)))
    assert originals == again == same
    assert originals == [model.tokenizer(s, add_special_tokens=False)["input_ids"] for s in sentences]
    assert all(c != x for c, x in zip(made, originals, strict=True))
    if strategy == "other":
        assert all(c in originals for c in made)
    else:
        (corrupted,) = replaced
        edited = [corrupted.input_ids[i, 1 : 1 + len(x)].tolist() for i, x in enumerate(originals)]
        assert edited != originals
        # Where no subword was replaced, another sentence stands.
        for c, e, x in zip(made, edited, originals, strict=True):
            assert c == e if e != x else c in originals
    tokenizer, head = model.tokenizer, loss.predictor
    pairs = [(x, x) for x in originals] + list(zip(originals, made, strict=True))
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    rows = [dict(tokenizer(s)) for s in sentences]
    rows += [
        {
            "input_ids": [cls, *a, sep, *b, sep],
            "token_type_ids": [0] * (len(a) + 2) + [1] * (len(b) + 1),
        }
        for a, b in pairs
    ]
    hidden = row_vectors(model, rows) @ head.linear.weight.T + head.linear.bias
    x, y, z = F.elu(batch_norm(hidden, head.norm)).chunk(3)
    interactive = F.softplus(loss.classifier(z) - loss.classifier(y)).mean()
    check(terms, {"contrastive": 0.2 * nce(x, y), "interactive": 0.8 * interactive})


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert"])
@pytest.mark.parametrize(
    ("margin_from", "unpaired_tokens"), [("embeddings", "full"), ("tokens", "full"), ("tokens", "weighted")]
)
def test_twins_with_queue_over_unequal_batches(double, sentences, family, margin_from, unpaired_tokens):
    model = double(family)
    loss = TwinsLoss(
        model,
        temperature=TAU,
        fusion_rate=0.7,
        queue_batches=2,
        forgetting_rate=0.3,
        margin_from=margin_from,
        unpaired_tokens=unpaired_tokens,
    ).double()
    # The second column is longer, shorter and empty in turn.
    translations = [" ".join(reversed(s.split())) + " und noch mehr" * (i % 2) for i, s in enumerate(sentences)]
    translations[3] = ""
    past: list[torch.Tensor] = []
    start = 0
    for size in (3, 2, 1, 4):
        english, german = sentences[start : start + size], translations[start : start + size]
        start += size
        h, twin, x, x_twin = by_hand_views(model, english, german, loss.fusion_rate, margin_from, unpaired_tokens)
        extra = [(1 - 0.3 * age, key) for age, keys in enumerate(past, start=1) for key in keys]
        expected = {
            "identical": nce(h, h, extra),
            "fraternal": nce(h, twin),
            "twins": sum(
                abs(math.e - math.exp(cosine(h[i], twin[i])) - (math.e - math.exp(cosine(x[i], x_twin[i]))))
                for i in range(size)
            )
            / size,
        }
        terms = loss(features(model, english, german))
        if size == 1:
            assert terms.pop("fraternal").item() == 0 == pytest.approx(expected.pop("fraternal"), abs=1e-9)
        check(terms, expected)
        past = [h.detach(), *past][:2]
        assert len(loss.queue) == sum(len(keys) for keys in past)


def by_hand_views(model, english, german, rate, margin_from, unpaired_tokens):
    alone, alone_f = (1, 1) if unpaired_tokens == "full" else (rate, 1 - rate)
    encoder, tokenizer = model[0].model, model.tokenizer
    lookup, found = encoder.get_input_embeddings(), [[], [], [], []]
    for source, target in zip(english, german, strict=True):
        y, y_f = (lookup(torch.tensor(tokenizer(text)["input_ids"])) for text in (source, target))
        fused = []
        for position in range(max(len(y), len(y_f))):
            if position >= len(y):
                fused.append(alone_f * y_f[position])
            elif position >= len(y_f):
                fused.append(alone * y[position])
            else:
                fused.append(rate * y[position] + (1 - rate) * y_f[position])
        for index, embeddings in enumerate((y, torch.stack(fused))):
            output = encoder(inputs_embeds=embeddings[None], output_hidden_states=True)
            found[index].append(output.last_hidden_state[0, 0])
            found[index + 2].append(
                embeddings.mean(0) if margin_from == "tokens" else output.hidden_states[0][0].mean(0)
            )
    return [torch.stack(part) for part in found]


@pytest.mark.parametrize("masked_views", ["both", "first"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_infocse(double, sentences, masked_views, pooling):
    model = double(pooling=pooling)
    loss = InfoCSELoss(
        model,
        temperature=TAU,
        mlm_weight=0.5,
        split_layer=2,
        extra_layers=1,
        head="projector",
        masked_views=masked_views,
    ).double()
    switch_off_dropout(loss)
    drawn = []

    def corrupt(ids, mask):
        chosen = mask.bool() & (torch.rand(ids.shape) < 0.4) & (ids > 4)
        drawn.append((torch.where(chosen, model.tokenizer.mask_token_id, ids), chosen, ids, mask))
        return CorruptedTokens(drawn[-1][0], chosen)

    loss.masking.forward = corrupt
    terms = loss(features(model, sentences))
    vectors = row_vectors(model, [dict(model.tokenizer(s)) for s in sentences], pooling)
    projector = loss.head
    both = torch.cat([vectors, vectors])
    inner = batch_norm(both @ projector.inner.weight.T, projector.inner_norm).relu()
    outer = batch_norm(inner @ projector.outer.weight.T, projector.outer_norm)
    ids, chosen, originals, mask = drawn[0]
    assert len(ids) == len(sentences) * (2 if masked_views == "both" else 1)
    encoder, losses = model[0].model, []
    extra, head = encoder.encoder.layer[-1], loss.auxiliary.head.network.cls.predictions
    for row in range(len(ids)):
        length = int(mask[row].sum())
        states = encoder(ids[row : row + 1, :length], output_hidden_states=True).hidden_states[2]
        states = torch.cat([vectors[row % len(sentences)][None, None], states[:, 1:]], dim=1)
        states = extra(states)[0] if isinstance(extra(states), tuple) else extra(states)
        for position in chosen[row].nonzero().flatten().tolist():
            state = F.gelu(head.transform.dense(states[0, position]))
            state = F.layer_norm(state, (32,), head.transform.LayerNorm.weight, head.transform.LayerNorm.bias, 1e-12)
            logits = encoder.get_input_embeddings().weight @ state + head.decoder.bias
            losses.append((logits.logsumexp(0) - logits[originals[row, position]]).item())
    assert len(losses) > 10
    check(terms, {"contrastive": nce(*outer.chunk(2)), "mlm": 0.5 * sum(losses) / len(losses)})


def test_twins_of_one_column_without_a_queue_are_simcse(double, sentences):
    model = double()
    found = []
    for loss in (SimCSELoss(model, head=None), TwinsLoss(model, queue_batches=0, fraternal_weight=0, twins_weight=0)):
        model.zero_grad()
        total = loss(features(model, sentences)).total
        total.backward()
        found.append((total.detach(), model[0].model.encoder.layer[0].attention.self.query.weight.grad.clone()))
    assert found[0][1].abs().sum() > 0
    torch.testing.assert_close(*found)


def test_no_interaction_is_contrast_on_pairs(double, sentences):
    model = double()
    loss = ConIsILoss(model, temperature=TAU, interaction_weight=0).double()
    rows = [dict(model.tokenizer(s)) for s in sentences] + [dict(model.tokenizer(s, s)) for s in sentences]
    hidden = row_vectors(model, rows) @ loss.predictor.linear.weight.T + loss.predictor.linear.bias
    x, y = F.elu(batch_norm(hidden, loss.predictor.norm)).chunk(2)
    terms = loss(features(model, sentences))
    check(terms, {"contrastive": nce(x, y)})
