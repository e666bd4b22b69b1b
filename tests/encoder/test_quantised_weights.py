from __future__ import annotations

import peft
import pytest
import torch
from torch import nn

from st_contrastive import ConIsILoss, InfoCSELoss, MomentumContrastLoss, SimCSELoss, TwinsLoss, text_dataset
from st_contrastive.training import ContrastiveTrainer
from tests.cases import LOSSES, arguments_of


class IntegerLinear(nn.Module):
    """A frozen linear layer with a weight of another type. Gradients pass it."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, kind: str):
        super().__init__()
        weight = (100 * linear.weight.detach()).to(dtype)
        if kind == "parameter":
            self.weight = nn.Parameter(weight, requires_grad=False)
        elif kind == "buffer":
            self.register_buffer("packed", weight)
        else:
            self.packed = weight
        self.bias = nn.Parameter(linear.bias.detach())

    def forward(self, states):
        weight = self.weight if hasattr(self, "weight") else self.packed
        return nn.functional.linear(states, weight.float() / 100, self.bias)


class Wrapped(torch.Tensor):
    """A tensor that states float32 and holds integers, as torchao's do."""

    @staticmethod
    def __new__(cls, integers):
        return torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=torch.float32)

    def __init__(self, integers):
        self.integers = integers

    def __tensor_flatten__(self):
        return ["integers"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].integers)
        plain = [arg.integers.float() / 100 if isinstance(arg, cls) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


def replaced(dtype, kind):
    def change(model):
        layer = model.transformers_model.encoder.layer[1].output
        layer.dense = IntegerLinear(layer.dense, dtype, kind)
        return model

    return change


def wrapped(model):
    dense = model.transformers_model.encoder.layer[0].output.dense
    dense.weight = nn.Parameter(Wrapped(torch.ones(32, 64, dtype=torch.int8)), requires_grad=False)
    return model


def with_quantised_embeddings(model):
    embeddings = model.transformers_model.embeddings
    embeddings.word_embeddings.qconfig = torch.ao.quantization.float_qparams_weight_only_qconfig
    torch.ao.quantization.convert(torch.ao.quantization.prepare(embeddings, inplace=True), inplace=True)
    return model


def dynamic(dtype):
    return lambda model: torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=dtype)


PACKED = {
    "dynamic int8": dynamic(torch.qint8),
    "dynamic float16": dynamic(torch.float16),
    "embeddings": with_quantised_embeddings,
}
ADAPTABLE = {
    "int8 parameter": replaced(torch.int8, "parameter"),
    "packed 4-bit parameter": replaced(torch.uint8, "parameter"),
    "8-bit float parameter": replaced(torch.float8_e4m3fn, "parameter"),
    "int8 buffer": replaced(torch.int8, "buffer"),
    "packed int32 buffer": replaced(torch.int32, "buffer"),
    "int8 attribute": replaced(torch.int8, "attribute"),
    "wrapper of integers": wrapped,
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated:UserWarning")


@pytest.mark.parametrize("kind", [*PACKED, *ADAPTABLE])
def test_every_loss_refuses_quantised_weights(build, kind):
    model = {**PACKED, **ADAPTABLE}[kind](build(dropout=False))
    for loss_class in LOSSES:
        with pytest.raises(ValueError, match=r"quantised weights \(.*Load the model unquantised"):
            loss_class(model)


@pytest.mark.parametrize("loss_class", [SimCSELoss, ConIsILoss, TwinsLoss])
@pytest.mark.parametrize("kind", ADAPTABLE)
def test_adapters_below_quantised_weights_get_a_gradient(build, sentences, kind, loss_class):
    model = ADAPTABLE[kind](build())
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query"]))
    loss_class(model)([model.preprocess(sentences)]).backward()
    adapters = [weight for name, weight in model.named_parameters() if "layer.0" in name and "lora_B" in name]
    assert len(adapters) == 1
    assert adapters[0].grad.abs().sum() > 0


def test_adapters_do_not_help_where_no_gradient_passes(build):
    model = build()
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query"]))
    layer = model.transformers_model.encoder.layer
    layer[1] = dynamic(torch.qint8)(layer[1])
    with pytest.raises(ValueError, match="No gradient passes"):
        SimCSELoss(model)


@pytest.mark.parametrize("loss_class", [InfoCSELoss, MomentumContrastLoss])
def test_losses_with_a_copy_refuse_quantised_weights_under_adapters(build, loss_class):
    model = ADAPTABLE["int8 buffer"](build())
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query"]))
    with pytest.raises(ValueError, match=r"a copy of the encoder.*quantised weights"):
        loss_class(model)


def test_a_model_quantised_after_the_loss_is_refused_before_the_first_step(build, sentences, tmp_path):
    model = build()
    trainer = ContrastiveTrainer(model, arguments_of(tmp_path), text_dataset(sentences), loss=SimCSELoss(model))
    ADAPTABLE["int8 parameter"](model)
    with pytest.raises(ValueError, match="quantised weights"):
        trainer.train()


def test_scripted_modules_are_not_quantised(build):
    model = build()
    pooled = model.transformers_model.encoder.layer[0].output
    pooled.dense = torch.jit.trace(pooled.dense, torch.ones(1, 64))
    SimCSELoss(model)


def test_other_backends_are_refused(build):
    model = build()
    model[0].backend = "onnx"
    with pytest.raises(TypeError, match="backend 'onnx'"):
        SimCSELoss(model)
