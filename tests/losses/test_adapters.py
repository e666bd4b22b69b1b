"""LoRA and other adapters under the losses that copy the encoder: what the copies are, and what is saved."""

from __future__ import annotations

import copy

import numpy as np
import peft
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_contrastive import AuxiliaryMLMPretrainingLoss, DiffCSELoss, InfoCSELoss, SimCSELoss, text_dataset
from st_contrastive.encoder.copies import copy_encoder
from st_contrastive.training import ContrastiveTrainer
from tests.cases import arguments_of


def lora(**options):
    return peft.LoraConfig(task_type="FEATURE_EXTRACTION", **{"r": 4, "init_lora_weights": False, **options})


@pytest.fixture
def model_with_adapters(build):
    """A model under adapters that do something, as after some training."""

    def make(config=None, family="bert"):
        model = build(family)
        model.add_adapter(config or lora())
        return model

    return make


def states(network, model, sentences):
    features = {key: model.preprocess(sentences)[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return network.eval()(**features).last_hidden_state


@pytest.mark.parametrize(
    "config",
    [
        lora(),
        lora(target_modules=["word_embeddings", "query"]),
        lora(modules_to_save=["intermediate"]),
        peft.IA3Config(target_modules=["query", "dense"], feedforward_modules=["dense"], init_ia3_weights=False),
    ],
    ids=["lora", "embeddings", "modules-to-save", "ia3"],
)
def test_a_copy_with_merged_adapters_computes_the_same(model_with_adapters, build, sentences, config):
    model = model_with_adapters(config)
    encoder = model[0].model
    for parameter in encoder.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    before = {name: parameter.clone() for name, parameter in encoder.named_parameters()}
    network = copy_encoder(encoder)
    plain = {name for name, _ in build()[0].model.named_parameters() if not name.startswith("pooler")}
    assert {name for name, _ in network.named_parameters()} == plain
    assert all(parameter.requires_grad for parameter in network.parameters())
    found, expected = (states(part, model, sentences) for part in (network, encoder))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected, states(build()[0].model, model, sentences), atol=1e-2)
    assert all(torch.equal(parameter, before[name]) for name, parameter in encoder.named_parameters())


def test_disabled_and_merged_adapters_are_not_merged_again(model_with_adapters, sentences):
    model = model_with_adapters()
    encoder = model[0].model
    on = states(encoder, model, sentences)
    model.disable_adapters()
    off = states(encoder, model, sentences)
    assert not torch.allclose(on, off, atol=1e-2)
    torch.testing.assert_close(states(copy_encoder(encoder), model, sentences), off, rtol=1e-4, atol=1e-5)
    model.enable_adapters()
    for module in encoder.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.merge()
    torch.testing.assert_close(states(copy_encoder(encoder), model, sentences), on, rtol=1e-4, atol=1e-4)


def test_a_wrapped_encoder_is_copied_too(build, sentences):
    model = build()
    wrapped = peft.get_peft_model(copy.deepcopy(model[0].model), lora())
    network = copy_encoder(wrapped)
    assert not any("lora" in name for name in network.state_dict())
    torch.testing.assert_close(
        states(network, model, sentences), states(wrapped, model, sentences), rtol=1e-4, atol=1e-4
    )


def test_a_wrapped_encoder_is_refused_if_it_could_not_be_loaded(build, sentences, tmp_path):
    """sentence-transformers can't load the checkpoints of one, and a network can't follow its weights."""
    model = build()
    model[0].model = peft.get_peft_model(model[0].model, lora())
    with pytest.raises(ValueError, match=r"model\.add_adapter.* instead of get_peft_model"):
        AuxiliaryMLMPretrainingLoss(model)
    for strategy in ("steps", "no"):
        args = arguments_of(tmp_path, max_steps=1, save_strategy=strategy)
        trainer = ContrastiveTrainer(model, args, text_dataset(sentences), loss=SimCSELoss(model))
        if strategy == "no":
            assert trainer.train().global_step == 1
        else:
            with pytest.raises(ValueError, match=r"get_peft_model.* save_strategy='no'"):
                trainer.train()


@pytest.mark.parametrize("kind", [InfoCSELoss, DiffCSELoss])
def test_adapters_with_trained_tokens(build, sentences, kind):
    model = build("bert-mlm")
    model.add_adapter(peft.LoraConfig(target_modules=["query"], trainable_token_indices=[5, 6]))
    kind(model)([model.preprocess(sentences)]).backward()


def test_both_stages_and_the_saved_model(model_with_adapters, sentences, tmp_path):
    model = model_with_adapters()
    batch = model.preprocess(sentences)

    def train(loss):
        optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(3):
            loss([batch]).backward()
            optimizer.step()
            optimizer.zero_grad()

    stage1 = AuxiliaryMLMPretrainingLoss(model)
    train(stage1)
    stage1.save_auxiliary(tmp_path / "stage1")
    # Its lower half is what the model_with_adapters encoder's is now.
    lower = stage1.trained_auxiliary().encoder.encoder.layer[0].attention.self.query.weight
    merged = copy_encoder(model[0].model).encoder.layer[0].attention.self.query.weight
    assert torch.equal(lower, merged)
    loss = InfoCSELoss(model, auxiliary=tmp_path / "stage1", mlm_weight=0.1)
    assert torch.equal(loss.auxiliary.encoder.encoder.layer[0].attention.self.query.weight, merged)
    train(loss)
    model.save_pretrained(str(tmp_path / "out"))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "out" / "model.safetensors").exists()
    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(loaded.encode(sentences), model.eval().encode(sentences), atol=1e-5)
