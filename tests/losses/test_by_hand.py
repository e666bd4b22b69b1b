"""Every term of every loss against a separate computation: the encoder called row by row, without padding, in
float64, dropout 0; the equations as loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from st_contrastive import ConIsILoss, InfoCSELoss, SimCSELoss, TwinsLoss
from st_contrastive.encoder.layers import get_layers
from st_contrastive.encoder.token_batch import CorruptedTokens
from tests.cases import switch_off_dropout

TAU = 0.08  # no loss's default


@pytest.fixture
def model_in_float64(build):
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
    """Of a vector, or of several, with a vector."""
    return a @ b / a.norm(dim=-1) / b.norm()


def nce(anchors, positives, extra=()):
    """``extra``: weights, and the keys that have each."""
    losses = []
    for i, anchor in enumerate(anchors):
        denominator = torch.exp(cosine(positives, anchor) / TAU).sum()
        for weight, keys in extra:
            denominator = denominator + weight * torch.exp(cosine(keys, anchor) / TAU).sum()
        losses.append(torch.log(denominator) - cosine(positives[i], anchor) / TAU)
    return sum(losses) / len(losses)


def batch_norm(x, norm):
    x = (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt()
    return x if norm.weight is None else x * norm.weight + norm.bias


def check(terms, expected, model=None):
    """The terms and, with a model, the gradient of their sum in a weight of its lowest layer."""
    assert set(terms) == set(expected)
    for name, value in expected.items():
        assert value.abs() > 1e-9, f"{name}: nothing is compared"
        assert terms[name].dtype == torch.float64
        assert terms[name].item() == pytest.approx(value.item(), rel=1e-5), name
    if model is not None:
        weight = next(get_layers(model.transformers_model)[0].parameters())
        found, wanted = (torch.autograd.grad(sum(each.values()), weight)[0] for each in (terms, expected))
        assert wanted.abs().sum() > 1e-6
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_simcse(model_in_float64, sentences, family, pooling):
    model = model_in_float64(family, pooling)
    loss = SimCSELoss(model, temperature=TAU).double()
    h = row_vectors(model, [dict(model.tokenizer(s)) for s in sentences], pooling)
    h = torch.tanh(h @ loss.head.linear.weight.T + loss.head.linear.bias)
    check(loss(features(model, sentences)), {"contrastive": nce(h, h)}, model)


CONISI = [("bert", "given", None), ("roberta", "given", 1), ("mpnet", "given", None), ("bert", "other", None),
          ("bert", "subword", 1)]  # fmt: skip


@pytest.mark.parametrize(("family", "strategy", "interaction_dim"), CONISI)
def test_conisi(model_in_float64, sentences, monkeypatch, family, strategy, interaction_dim):
    """What the loss constructed is read off its pairs, whose form is checked."""
    model = model_in_float64(family)
    loss = ConIsILoss(
        model,
        temperature=TAU,
        strategy=strategy,
        interaction_weight=0.3,
        interaction_dim=interaction_dim,
        **({"replacement_rate": 0.3} if strategy == "subword" else {}),
    ).double()
    composed, compose = [], loss.compose_pairs
    monkeypatch.setattr(loss, "compose_pairs", lambda batches: composed.append(compose(batches)) or composed[-1])
    given = [sentence.replace("the", "no") + " never" for sentence in sentences]
    terms = loss(features(model, sentences, *([given] if strategy == "given" else [])))
    tokenizer, head, count = model.tokenizer, loss.predictor, len(sentences)
    rows = [dict(tokenizer(s)) for s in sentences] + [dict(tokenizer(s, s)) for s in sentences]
    if strategy == "given":
        rows += [dict(tokenizer(s, c)) for s, c in zip(sentences, given, strict=True)]
    else:
        ((pairs, _),) = composed
        own = [tokenizer(s, add_special_tokens=False)["input_ids"] for s in sentences]
        made = [pairs.ids[count + i, len(own[i]) + 2 : pairs.lengths[count + i] - 1].tolist() for i in range(count)]
        assert all(c != x for c, x in zip(made, own, strict=True))
        assert all(c in own or (strategy == "subword" and len(c) == len(x)) for c, x in zip(made, own, strict=True))
        assert all(c in own for c in made) == (strategy == "other")
        cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        rows += [
            {"input_ids": [cls, *x, sep, *c, sep], "token_type_ids": [0] * (len(x) + 2) + [1] * (len(c) + 1)}
            for x, c in zip(own, made, strict=True)
        ]
    hidden = row_vectors(model, rows) @ head.linear.weight.T + head.linear.bias
    x, y, z = F.elu(batch_norm(hidden, head.norm)).chunk(3)
    scores = [part @ loss.classifier.weight.T + loss.classifier.bias for part in (y, z)]
    interactive = (scores[0].exp() / (scores[0].exp() + scores[1].exp())).log().neg().mean()
    check(terms, {"contrastive": 0.7 * nce(x, y), "interactive": 0.3 * interactive}, model)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert"])
@pytest.mark.parametrize(
    ("margin_from", "unpaired_tokens"), [("embeddings", "full"), ("tokens", "full"), ("tokens", "weighted")]
)
def test_twins_with_queue_over_unequal_batches(model_in_float64, sentences, family, margin_from, unpaired_tokens):
    model = model_in_float64(family)
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
        extra = [(1 - 0.3 * age, keys) for age, keys in enumerate(past, start=1)]
        expected = {
            "identical": nce(h, h, extra),
            "fraternal": nce(h, twin),
            "twins": sum(
                abs(math.e - torch.exp(cosine(h[i], twin[i])) - (math.e - torch.exp(cosine(x[i], x_twin[i]))))
                for i in range(size)
            )
            / size,
        }
        terms = loss(features(model, english, german))
        if size == 1:
            assert terms.pop("fraternal").item() == 0 == pytest.approx(expected.pop("fraternal").item(), abs=1e-9)
        check(terms, expected, model if size == 4 else None)  # the last, which meets a full queue
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
def test_infocse(model_in_float64, sentences, masked_views, pooling):
    model = model_in_float64(pooling=pooling)
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
            losses.append(logits.logsumexp(0) - logits[originals[row, position]])
    assert len(losses) > 10
    check(terms, {"contrastive": nce(*outer.chunk(2)), "mlm": 0.5 * sum(losses) / len(losses)})


def test_no_interaction_is_contrast_on_pairs(model_in_float64, sentences):
    model = model_in_float64()
    loss = ConIsILoss(model, temperature=TAU, interaction_weight=0).double()
    rows = [dict(model.tokenizer(s)) for s in sentences] + [dict(model.tokenizer(s, s)) for s in sentences]
    hidden = row_vectors(model, rows) @ loss.predictor.linear.weight.T + loss.predictor.linear.bias
    x, y = F.elu(batch_norm(hidden, loss.predictor.norm)).chunk(2)
    terms = loss(features(model, sentences))
    check(terms, {"contrastive": nce(x, y)}, model)
