"""What can't be trained as it is: said when the loss is built or called, with a remedy that works. And what can."""

from __future__ import annotations

import gc
import weakref
from unittest import mock

import peft
import pytest
import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding, WeightedLayerPooling
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForMaskedLM

from st_contrastive import AuxiliaryMLMPretrainingLoss, ConIsILoss, DiffCSELoss, InfoCSELoss, SimCSELoss, TwinsLoss
from st_contrastive.components import AuxiliaryMLM, MaskedLMHead
from st_contrastive.encoder.model_facts import get_encoder
from tests.cases import LOSSES, Standardised

# A network whose weight is 0.

UNUSED = {
    "infocse": (lambda model: InfoCSELoss(model, head="projector", mlm_weight=0), {"head"}),
    "infocse-rtd": (lambda model: InfoCSELoss(model, mlm_weight=0, rtd_weight=0.1), {"head", "detector"}),
    "infocse-contrast": (lambda model: InfoCSELoss(model, head="projector", contrastive_weight=0, mlm_weight=0.1),
                         {"auxiliary"}),
    "diffcse": (lambda model: DiffCSELoss(model, rtd_weight=0), {"head"}),
    "simcse": (lambda model: SimCSELoss(model, mlm_weight=0), {"head"}),
    "conisi": (lambda model: ConIsILoss(model, interaction_weight=0), {"predictor"}),
    "twins": (lambda model: TwinsLoss(model, identical_weight=0), set()),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSED)
def test_a_network_whose_weight_is_0_is_not_built(build, sentences, monkeypatch, name):
    make, owned = UNUSED[name]
    model = build("bert-mlm")
    if "detector" not in owned and "auxiliary" not in owned:
        for kind in (AuxiliaryMLM, MaskedLMHead):
            monkeypatch.setattr(kind, "__init__", lambda *args, **kwargs: pytest.fail("a network was made"))
        model.tokenizer.mask_token = None  # which nothing here needs
    loss = make(model)
    parts = {key for key, part in loss.named_children() if any(True for _ in part.parameters())} - {"model"}
    assert parts == owned
    terms = loss([model.preprocess(part) for part in (sentences, sentences[::-1])[: 2 if name == "twins" else 1]])
    assert {"infocse": ["contrastive"], "infocse-rtd": ["contrastive", "rtd"], "infocse-contrast": ["mlm"],
            "twins": ["fraternal", "twins"]}.get(name, ["contrastive"]) == list(terms)  # fmt: skip
    terms.backward()


# What a loss keeps alive.


@pytest.mark.parametrize("loss_class", [DiffCSELoss, InfoCSELoss])
def test_the_constructors_modules_are_not_kept(build, checkpoint, loss_class):
    generator = AutoModelForMaskedLM.from_pretrained(checkpoint("bert-mlm"))
    options = {"rtd_weight": 0.1}
    loss = loss_class(build("bert-mlm"), generator=generator, **options)
    alive = weakref.ref(generator)
    assert loss.get_config_dict()["generator"].startswith("BertForMaskedLM")
    del generator
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("loss_class", [SimCSELoss, InfoCSELoss])
def test_a_callers_locals_are_not_kept(build, sentences, loss_class):
    class Large:
        pass

    def step(loss):
        mine = Large()
        loss([loss.model.preprocess(sentences)]).backward()
        return weakref.ref(mine)

    loss = loss_class(build("bert-mlm"))
    alive = step(loss)
    assert alive() is None


# Models that a loss can't take.


def changed(change, family="bert"):
    """``make(build)``: a model after a change in place."""

    def make(build):
        model = build(family)
        change(model)
        return model

    return make


def without_mask_token(model):
    model.tokenizer.mask_token = None


def without_limit(model):
    model.max_seq_length = None


def without_embeddings_as_input(model):
    model.transformers_model.forward = lambda input_ids, attention_mask: None


def quantised_with_adapters(model):
    adapted(model)
    dense = get_encoder(model).encoder.layer[0].output.dense
    dense.weight = torch.nn.Parameter(dense.weight.data.to(torch.int8), requires_grad=False)


def frozen_in_half_precision(model):
    get_encoder(model).half().requires_grad_(False)
    model.append(Dense(32, 32))


def frozen(model):
    model.requires_grad_(False)


def with_loaded_adapters(model):
    """As PEFT gives saved adapters: frozen."""
    adapted(model)
    frozen(model)


def with_trained_adapters(model):
    """The remedy."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return [loss_class(model) for loss_class in LOSSES]


def adapted(model):
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION"))


def adapted_embeddings(model):
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["word_embeddings"]))


def prompt_tuned(model):
    config = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    model[0].model = peft.get_peft_model(model[0].model, config)


def reduced_tokens(model):
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    model.insert(1, Dense(32, 32, **names))


def weighted_layers(model):
    model.insert(1, WeightedLayerPooling(32, num_hidden_layers=4, layer_start=1))


def static(build):
    return SentenceTransformer(modules=[StaticEmbedding(build().tokenizer, embedding_dim=8)], device="cpu")


def with_mlm(model):
    return SimCSELoss(model, mlm_weight=0.1)


def without_translations(model):
    return TwinsLoss(model, fraternal_weight=0, twins_weight=0)


READERS = [with_mlm, InfoCSELoss, DiffCSELoss, AuxiliaryMLMPretrainingLoss, lambda m: TwinsLoss(m, train_pooling="cls")]
#: Models, the losses that refuse each, words of the message, and a loss that takes it.
REFUSED = {
    "no model": (lambda build: torch.nn.Linear(2, 2), LOSSES, "SentenceTransformer, got Linear", None),
    "no encoder": (static, LOSSES, "starts with StaticEmbedding", None),
    "no mask token": (
        changed(without_mask_token),
        [InfoCSELoss, with_mlm, lambda model: ConIsILoss(model, strategy="subword", unreplaced="mask")],
        "no mask token",
        lambda model: ConIsILoss(model, strategy="subword"),
    ),
    "no limit": (changed(without_limit), [SimCSELoss], "max_seq_length is None.*64, or less", None),
    "no positions": (changed(without_limit, "xlnet"), [SimCSELoss], "max_seq_length is None.*a number", None),
    "no embeddings as input": (
        changed(without_embeddings_as_input),
        [TwinsLoss],
        "BertModel can't be fed with embeddings",
        without_translations,
    ),
    "rows that depend on each other": (
        changed(lambda model: model.append(Standardised())),
        [lambda model: SimCSELoss(model, mini_batch_size=2)],
        "mini_batch_size=2.*BatchNorm",
        SimCSELoss,
    ),
    "quantised": (changed(quantised_with_adapters), [InfoCSELoss, DiffCSELoss], "quantised weights", SimCSELoss),
    "frozen in half precision": (
        changed(frozen_in_half_precision),
        [InfoCSELoss, DiffCSELoss],
        r"copies of the encoder's float16 weights.*torch\.float32",
        SimCSELoss,  # which copies nothing
    ),
    "frozen": (changed(frozen), LOSSES, r"no trainable weight.*requires_grad_\(True\)", None),
    "loaded adapters": (
        changed(with_loaded_adapters),
        LOSSES,
        "no trainable weight.*PEFT loads saved adapters frozen",
        with_trained_adapters,
    ),
    "adapters": (changed(adapted), [lambda model: InfoCSELoss(model, detach=False)], "detach=True", InfoCSELoss),
    "adapted embeddings": (
        changed(adapted_embeddings),
        [AuxiliaryMLMPretrainingLoss],
        "Keep adapters away from the embeddings",
        InfoCSELoss,
    ),
    "Dense before the Pooling": (
        changed(reduced_tokens),
        READERS,
        "Dense changes them.*behind the Pooling",
        SimCSELoss,
    ),
    "weighted layers": (
        changed(weighted_layers),
        READERS,
        "WeightedLayerPooling changes them.*Remove it",
        SimCSELoss,
    ),
    "prompt tuning": (changed(prompt_tuned, "bert-mlm"), [with_mlm], "mlm_weight.*prompt tuning", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_refused(build, name):
    make, refusing, message, taking = REFUSED[name]
    model = make(build)
    for loss_class in refusing:
        with pytest.raises((TypeError, ValueError), match=message):
            loss_class(model)
    if taking is not None:
        taking(model)


@pytest.mark.parametrize("loss_class", [SimCSELoss, ConIsILoss, TwinsLoss, DiffCSELoss])
def test_a_dense_module_behind_a_frozen_encoder_trains(build, sentences, loss_class):
    model = build().requires_grad_(False)
    model.append(Dense(32, 16))
    loss = loss_class(model)
    loss([model.preprocess(sentences)]).backward()
    assert model[2].linear.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in model[0].parameters())


# Errors that name what is wrong.


@pytest.mark.parametrize("task", ["fill-mask", "sequence-classification"])
def test_the_first_module_and_its_task(checkpoint, task):
    first = Transformer(str(checkpoint("bert-mlm")), transformer_task=task)
    for modules in ([first], [first, Pooling(32, "cls")]):
        with pytest.raises(TypeError, match=f"transformer_task='feature-extraction'.*task '{task}'"):
            SimCSELoss(SentenceTransformer(modules=modules, device="cpu"))


@pytest.mark.parametrize("loss_class", [SimCSELoss, TwinsLoss])
def test_a_dict_instead_of_a_list_of_dicts_is_refused(build, sentences, loss_class):
    model = build()
    for given in (model.preprocess(sentences), sentences[:1]):
        with pytest.raises(ValueError, match=r"call loss\(\[model.preprocess"):
            loss_class(model)(given)


@pytest.mark.parametrize("loss_class", LOSSES)
def test_wrong_numbers_of_columns_and_columns_without_text_are_refused(build, sentences, loss_class):
    model = build()
    loss = loss_class(model)
    for count in (0, 3):
        with pytest.raises(ValueError, match=f"{loss_class.__name__} takes .* got {count}"):
            loss([model.preprocess(sentences)] * count)
    with pytest.raises(ValueError, match="input_ids"):
        loss([{"sentence_embedding": torch.ones(2, 32)}])


@pytest.mark.parametrize("added", [1, 400])
def test_tokens_without_an_embedding_are_refused(build, sentences, added):
    model = build()
    model.tokenizer.add_tokens([f"word{number}" for number in range(added)])
    with pytest.raises(ValueError, match="resize_token_embeddings"):
        ConIsILoss(model, strategy="subword")
    get_encoder(model).resize_token_embeddings(len(model.tokenizer))
    assert torch.isfinite(ConIsILoss(model, strategy="subword")([model.preprocess(sentences)]).total)


@pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated")  # from torch 2.13 on
def test_ddp_that_broadcasts_buffers_before_each_mini_batch(build, sentences):
    """A process with fewer mini-batches would let the others wait."""
    model = build()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for options, refused in (({}, True), ({"broadcast_buffers": False}, False)):
            for size in (2, None):
                loss = SimCSELoss(model, mini_batch_size=size)
                loss.model = DistributedDataParallel(model, **options)
                if refused and size:
                    with pytest.raises(ValueError, match=r"mini_batch_size.*broadcast_buffers=False"):
                        loss([model.preprocess(sentences)])
                else:
                    with mock.patch.object(loss, "compute_terms", wraps=loss.compute_terms) as compute_terms:
                        assert loss([model.preprocess(sentences)]).total.isfinite()
                    assert compute_terms.call_args.args[0].chunks.by_length is not refused
    finally:
        dist.destroy_process_group()
