"""One training step of each method in several forms: ours, the passes that it needs, and the straightforward form.

Ours: the loss, on what the stock collator makes of the texts.

Bare: transformers' own modules on the same rows, padded as that collator pads them; what comes out is summed and
differentiated. No pooling, head, similarity, masking, queue or cross-entropy.

Naive: as the papers' figures read. A pass for every view, one after the other; every text tokenised and padded to the
longest that is allowed; ConIsI's pairs tokenised again as text; InfoCSE's lower hidden states taken from the whole
encoder, its upper layers and masked-LM head run at every position.

Host's: sentence-transformers' MultipleNegativesRankingLoss on (sentence, sentence), today's way to train SimCSE there.

Every form tokenises its texts in the step, and ends with the same fused AdamW over what it trains.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import BertConfig, BertModel, set_seed

import st_contrastive as stc
from benchmarks._training import build
from st_contrastive.objectives import info_nce, interaction, masked_lm, twins_margin

#: Loss, its arguments, and whether there are translations.
METHODS: dict[str, tuple[Callable[..., Any], dict[str, Any], bool]] = {
    "SimCSE": (stc.SimCSELoss, {}, False),
    "ConIsI": (stc.ConIsILoss, {}, False),
    "Twins": (stc.TwinsLoss, {"train_pooling": "cls"}, True),
    "InfoCSE": (stc.InfoCSELoss, {"head": "projector"}, False),
}
FORMS = ("ours", "passes", "straightforward", "library")
Pass = Callable[[Sequence[str]], Tensor]


def encoder(shape: str, length: int) -> SentenceTransformer:
    """MiniLM, or BERT-base's shape with random weights, under [CLS] pooling: time does not depend on weights."""
    if shape == "minilm":
        return build(length).train()
    tokenizer = build(length).tokenizer
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig(), add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=length)
    return SentenceTransformer(modules=[transformer, Pooling(768, "cls")], device="cpu").train()


def translations(sentences: Sequence[str]) -> list[str]:
    """Other texts about as long as the sentences, as translations are: their words in another order."""
    order = random.Random(0)
    return [" ".join(order.sample(words, len(words))) for words in (sentence.split() for sentence in sentences)]


@dataclass(frozen=True)
class Form:
    """The loss whose parts a form is made of, and the value of one batch of texts in that form."""

    loss: Any
    forward: Pass


def form(
    method: str, kind: str, shape: str, length: int, device: str = "cpu", model: SentenceTransformer | None = None
) -> Form:
    """Of a model of that shape, or of the one that is given."""
    set_seed(42)
    model = (encoder(shape, length) if model is None else model).to(device)
    make, options, _ = METHODS[method]
    if kind == "library":
        loss: Any = MultipleNegativesRankingLoss(model)
    else:
        loss = make(model, log_terms=False, **options)
    loss.train()
    run = {"ours": _ours, "passes": _passes_only, "straightforward": _straightforward, "library": _library}[kind]
    return Form(loss, lambda texts: run(method, loss, texts))


def step(made: Form, precision: str, device: str = "cpu", **adamw: bool) -> Pass:
    """Forward, backward and AdamW."""
    trained = [parameter for parameter in made.loss.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, **(adamw or {"fused": True}))

    def run(texts: Sequence[str]) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
            value = made.forward(texts)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    return run


def _columns(method: str, texts: Sequence[str]) -> list[list[str]]:
    return [list(texts), translations(texts)] if METHODS[method][2] else [list(texts)]


def _moved(model: SentenceTransformer, texts: Sequence[str]) -> dict[str, Any]:
    features = model.preprocess(list(texts))
    return {key: value.to(model.device) if isinstance(value, Tensor) else value for key, value in features.items()}


def _ours(method: str, loss: Any, texts: Sequence[str]) -> Tensor:
    return loss([_moved(loss.model, column) for column in _columns(method, texts)])


def _library(_: str, loss: Any, texts: Sequence[str]) -> Tensor:
    return loss([_moved(loss.model, texts), _moved(loss.model, texts)], None)


def _passes_only(method: str, loss: Any, texts: Sequence[str]) -> Tensor:
    model = loss.model
    columns = [_moved(model, column) for column in _columns(method, texts)]
    ids, mask = columns[0]["input_ids"], columns[0]["attention_mask"]
    width = ids.shape[1]
    network = model[0].model

    def passed(ids: Tensor, mask: Tensor) -> Tensor:
        return network(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0].sum()

    if method == "ConIsI":
        # [CLS] x [SEP] c [SEP]: both contents, and three special tokens.
        pairs, both = (torch.cat([part, part[:, 1:]], dim=1)[:, : 2 * width - 1].repeat(2, 1) for part in (ids, mask))
        return passed(ids, mask) + passed(pairs, both)
    if method == "Twins":
        width = max(width, columns[1]["input_ids"].shape[1])
        ids, mask = (torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in (ids, mask))
        return passed(ids.repeat(3, 1), mask.repeat(3, 1))
    value = passed(ids.repeat(2, 1), mask.repeat(2, 1))
    if method == "InfoCSE":
        chosen = loss.masking(ids.repeat(2, 1), mask.repeat(2, 1)).chosen
        value = value + loss.auxiliary.head(_auxiliary(loss, ids.repeat(2, 1), mask.repeat(2, 1))[chosen]).mean()
    return value


def _auxiliary(loss: Any, ids: Tensor, mask: Tensor) -> Tensor:
    network, split = loss.auxiliary.network, loss.auxiliary.split_layer
    bias = (1 - mask.float())[:, None, None] * torch.finfo(torch.float32).min
    with torch.no_grad():
        hidden = network.embeddings(input_ids=ids)
        for layer in network.encoder.layer[:split]:
            hidden = layer(hidden, bias)
    for layer in network.encoder.layer[split:]:
        hidden = layer(hidden, bias)
    return hidden


def _straightforward(method: str, loss: Any, texts: Sequence[str]) -> Tensor:
    model = loss.model
    tokenizer, network, device = model.tokenizer, model[0].model, model.device

    def tokenised(*columns: Sequence[str]) -> dict[str, Tensor]:
        most = len(columns) * model.max_seq_length
        encoded = tokenizer(
            *(list(column) for column in columns),
            padding="max_length",
            truncation=True,
            max_length=most,
            return_tensors="pt",
        )
        return {key: value.to(device) for key, value in encoded.items()}

    def cls(features: dict[str, Tensor]) -> Tensor:
        return network(**features).last_hidden_state[:, 0]

    if method == "SimCSE":
        return info_nce(*(loss.head(cls(tokenised(texts))) for _ in range(2)), temperature=loss.temperature)
    if method == "ConIsI":
        others = [*texts[1:], texts[0]]
        cut = [tokenizer.decode(row, skip_special_tokens=True) for row in tokenised(texts)["input_ids"]]
        anchor = loss.head(cls(tokenised(texts)))
        same, other = (loss.head(cls(tokenised(cut, second))) for second in (cut, others))
        scores = (loss.classifier(pair) for pair in (same, other))
        weight = loss.interaction_weight
        return (1 - weight) * info_nce(anchor, same, temperature=loss.temperature) + weight * interaction(*scores)
    if method == "Twins":
        return _straightforward_twins(loss, tokenised(texts), tokenised(translations(texts)))
    views = [tokenised(texts) for _ in range(2)]
    vectors = [cls(view) for view in views]
    total = info_nce(*loss.head(torch.cat(vectors)).chunk(2), temperature=loss.temperature)
    for view, vector in zip(views, vectors, strict=True):
        corrupted = loss.masking(view["input_ids"], view["attention_mask"])
        with torch.no_grad():
            states = network(**{**view, "input_ids": corrupted.input_ids}, output_hidden_states=True).hidden_states
        hidden = torch.cat([vector[:, None], states[loss.auxiliary.split_layer][:, 1:]], dim=1)
        bias = (1 - view["attention_mask"].float())[:, None, None] * torch.finfo(torch.float32).min
        for layer in loss.auxiliary.network.encoder.layer[loss.auxiliary.split_layer :]:
            hidden = layer(hidden, bias)
        labels = torch.where(corrupted.chosen, view["input_ids"], -100).flatten()
        total = total + loss.mlm_weight * masked_lm(loss.auxiliary.logits(hidden.flatten(0, 1)), labels) / 2
    return total


def _straightforward_twins(loss: Any, sentence: dict[str, Tensor], translation: dict[str, Tensor]) -> Tensor:
    network = loss.model[0].model
    words = network.embeddings.word_embeddings
    own, foreign = words(sentence["input_ids"]), words(translation["input_ids"])
    fused = loss.fusion_rate * own + (1 - loss.fusion_rate) * foreign
    mask = sentence["attention_mask"]
    vectors, inputs = [], []
    for embedded in (own, own, fused):
        vectors.append(network(inputs_embeds=embedded, attention_mask=mask).last_hidden_state[:, 0])
        inputs.append((embedded.detach() * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
    keys, weights = loss.queue.entries()
    total = info_nce(*vectors[:2], temperature=loss.temperature, negatives=keys, negative_weights=weights)
    total = total + info_nce(vectors[0], vectors[2], temperature=loss.temperature)
    loss.queue.push(vectors[0].detach())
    return total + twins_margin(*vectors, *inputs)
