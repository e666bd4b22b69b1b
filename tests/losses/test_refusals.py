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
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForMaskedLM

from st_contrastive import (
    ConIsILoss,
    DiffCSELoss,
    InfoCSELoss,
    SimCSELoss,
    TwinsLoss,
)
from st_contrastive.components import AuxiliaryMLM, MaskedLMHead
from st_contrastive.encoder.model import get_encoder
from tests.cases import LOSSES

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


# Nothing to train.


def frozen_encoder(build):
    return build().requires_grad_(False)


def loaded_adapters(build):
    """As PEFT gives saved adapters: frozen."""
    model = build()
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=2))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.requires_grad_(False)
    return model


@pytest.mark.parametrize(("make", "remedy"), [
    (frozen_encoder, r"requires_grad_\(True\)"), (loaded_adapters, "PEFT loads saved adapters frozen"),
])  # fmt: skip
@pytest.mark.parametrize("loss_class", LOSSES)
def test_an_encoder_without_a_trained_weight_is_refused(build, make, remedy, loss_class):
    model = make(build)
    with pytest.raises(ValueError, match=rf"No weight of model is trained.*{remedy}"):
        loss_class(model)
    if make is loaded_adapters:  # the remedy
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
        loss_class(model)


@pytest.mark.parametrize("loss_class", [SimCSELoss, ConIsILoss, TwinsLoss, DiffCSELoss])
def test_a_dense_module_behind_a_frozen_encoder_trains(build, sentences, loss_class):
    model = build().requires_grad_(False)
    model.append(Dense(32, 16))
    loss = loss_class(model)
    loss([model.preprocess(sentences)]).backward()
    assert model[2].linear.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in model[0].parameters())


@pytest.mark.parametrize("loss_class", [InfoCSELoss, DiffCSELoss])
def test_no_half_precision_copy_of_a_frozen_encoder_is_trained(build, loss_class):
    model = build()
    get_encoder(model).half().requires_grad_(False)
    model.append(Dense(32, 32))
    with pytest.raises(ValueError, match=r"would train copies of the encoder's float16 weights.*torch\.float32"):
        loss_class(model)
    SimCSELoss(model)  # which copies nothing


# Errors that name what is wrong.


@pytest.mark.parametrize("task", ["fill-mask", "sequence-classification"])
def test_the_first_module_and_its_task(checkpoint, task):
    first = Transformer(str(checkpoint("bert-mlm")), transformer_task=task)
    for modules in ([first], [first, Pooling(32, "cls")]):
        with pytest.raises(TypeError, match=f"task '{task}'.*transformer_task='feature-extraction'"):
            SimCSELoss(SentenceTransformer(modules=modules, device="cpu"))
    with pytest.raises(TypeError, match="starts with Pooling"):
        SimCSELoss(SentenceTransformer(modules=[Pooling(32, "cls")], device="cpu"))


@pytest.mark.parametrize("loss_class", [SimCSELoss, TwinsLoss])
def test_one_dict_in_place_of_a_list_of_dicts(build, sentences, loss_class):
    model = build()
    for given in (model.preprocess(sentences), sentences[:1]):
        with pytest.raises(ValueError, match=r"call loss\(\[model.preprocess"):
            loss_class(model)(given)


@pytest.mark.parametrize("loss_class", LOSSES)
def test_wrong_numbers_of_columns_and_columns_that_are_no_text(build, sentences, loss_class):
    model = build()
    loss = loss_class(model)
    for count in (0, 3):
        with pytest.raises(ValueError, match=f"{loss_class.__name__} takes .* got {count}"):
            loss([model.preprocess(sentences)] * count)
    with pytest.raises(ValueError, match="input_ids"):
        loss([{"sentence_embedding": torch.ones(2, 32)}])


@pytest.mark.parametrize("added", [1, 400])
def test_tokens_without_an_embedding(build, sentences, added):
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
