"""A loss changes nothing of the user's model, except through the optimizer."""

from __future__ import annotations

import peft
import pytest
from torch import nn

from st_contrastive import FraternalEmbedding
from tests.cases import CASES, build_loss, columns


def state_of_module(module: nn.Module) -> dict[str, object]:
    """Its attributes, the names of its parts, its tensors, and its hooks."""
    attributes = {name: value for name, value in vars(module).items() if isinstance(value, (str, int, float, tuple))}
    hooks = {name: list(value) for name, value in vars(module).items() if "_hooks" in name and isinstance(value, dict)}
    parts = [(name, id(part)) for name, part in module.named_children()]
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    values = {name: (id(tensor), tensor.requires_grad, tensor.tolist()) for name, tensor in tensors}
    has_own_forward = "forward" in vars(module)
    return {"attributes": attributes, "hooks": hooks, "parts": parts, "tensors": values, "forward": has_own_forward}


def state_of(model):
    modules = {name: state_of_module(module) for name, module in model.named_modules()}
    config = model.transformers_model.config.to_dict()
    return {**modules, "config": config, "tokenizer": model.tokenizer.backend_tokenizer.to_str()}


@pytest.mark.parametrize("has_adapters", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_step_leaves_the_model_as_it_was(build, sentences, name, has_adapters):
    model = build("bert-mlm")
    if has_adapters:
        model.add_adapter(
            peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["layer.3.attention.self.query"])
        )
    model.transformers_model.encoder.layer[1].register_forward_hook(lambda *_: None)
    batch = columns(model, sentences, name)
    model({**batch[0]})  # transformers installs hooks in the first pass
    before = state_of(model)
    loss = build_loss(name, model)
    terms = loss(batch, None)
    sum(terms.values()).backward()
    after = state_of(model)
    for part, state in before.items():
        assert after[part] == state, part
    assert before.keys() == after.keys()


def test_a_fraternal_embedding_changes_neither_tokenizer(build, german, sentences):
    model = build()
    model.preprocess(sentences)
    fraternal = FraternalEmbedding.from_pretrained(german, model)
    fraternal.tokenizer(sentences, truncation=True, max_length=12, padding=True)
    before = [tokenizer.backend_tokenizer.to_str() for tokenizer in (model.tokenizer, fraternal.tokenizer)]
    again = FraternalEmbedding(fraternal.tokenizer, fraternal.weight, model)
    again.encode_labels(sentences)
    assert [tokenizer.backend_tokenizer.to_str() for tokenizer in (model.tokenizer, fraternal.tokenizer)] == before
