from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from st_contrastive.components import AuxiliaryMLM, load_auxiliary, save_auxiliary
from st_contrastive.components.auxiliary_files import CONFIG_NAME, WEIGHTS_NAME

FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra", "modernbert"]


def load(checkpoint, family):
    folder = checkpoint(family)
    return AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def perturbed(auxiliary):
    """Change all weights, so that none equals the encoder's."""
    with torch.no_grad():
        for parameter in auxiliary.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return auxiliary


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_network_is_loaded_unchanged(checkpoint, sentences, tmp_path, family, tied):
    encoder, tokenizer = load(checkpoint, family)
    auxiliary = perturbed(AuxiliaryMLM.from_encoder(encoder, split_layer=3, extra_layers=1, tied_head=tied)).eval()
    save_auxiliary(auxiliary, tmp_path / "new" / "folder", tokenizer, "some/encoder")
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == sorted([CONFIG_NAME, WEIGHTS_NAME])
    found = load_auxiliary(tmp_path / "new" / "folder", encoder, tokenizer, lower_dropout=True).eval()
    assert (found.split_layer, found.extra_layers, found.head.tied, found.lower_dropout) == (3, 1, tied, True)
    assert found.head.source == auxiliary.head.source == "new"
    features = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    vectors = torch.randn(len(sentences), 32)
    with torch.no_grad():
        logits = [network.head(network(features, vectors)[:, 1], network.encoder) for network in (found, auxiliary)]
    torch.testing.assert_close(*logits)
    assert [p.requires_grad for p in found.parameters()] == [p.requires_grad for p in auxiliary.parameters()]


@pytest.fixture
def saved_network(checkpoint, tmp_path):
    """Folder of an auxiliary network of "bert"."""
    encoder, tokenizer = load(checkpoint, "bert")
    save_auxiliary(AuxiliaryMLM.from_encoder(encoder), tmp_path / "aux", tokenizer, "bert")
    return tmp_path / "aux"


def test_a_network_of_another_encoder_is_refused(checkpoint, saved_network):
    encoder, tokenizer = load(checkpoint, "bert")
    other, others = load(checkpoint, "roberta")
    with pytest.raises(ValueError, match=r"with bert.*model_type is 'bert', not 'roberta'.*vocab_size.*fingerprint"):
        load_auxiliary(saved_network, other, others)
    tokenizer.add_tokens(["zebra"])
    encoder.config.max_position_embeddings = 128
    with pytest.raises(ValueError, match="max_position_embeddings is 64, not 128; tokenizer_fingerprint"):
        load_auxiliary(saved_network, encoder, tokenizer)


def test_missing_and_damaged_files_are_reported(checkpoint, saved_network, tmp_path):
    encoder, tokenizer = load(checkpoint, "bert")
    (tmp_path / "empty").mkdir()
    config, weights = (saved_network / CONFIG_NAME).read_text(), (saved_network / WEIGHTS_NAME).read_bytes()
    for folder, message in ((tmp_path / "nowhere", "is not a folder"), (tmp_path / "empty", "save_auxiliary")):
        with pytest.raises(OSError, match=message):
            load_auxiliary(folder, encoder, tokenizer)
    for text, content in (("{}", weights), (config, weights[:1000])):
        (saved_network / CONFIG_NAME).write_text(text)
        (saved_network / WEIGHTS_NAME).write_bytes(content)
        with pytest.raises(OSError, match="is damaged"):
            load_auxiliary(saved_network, encoder, tokenizer)
    (saved_network / WEIGHTS_NAME).unlink()
    with pytest.raises(OSError, match=r"auxiliary\.safetensors"):
        load_auxiliary(saved_network, encoder, tokenizer)


@pytest.mark.parametrize("had_another", [False, True])
@pytest.mark.parametrize("finished", [0, 1])
def test_a_kill_while_saving_leaves_no_mixture(checkpoint, tmp_path, monkeypatch, had_another, finished):
    """Weights of one network would load with the configuration of another network if their shapes are equal."""
    encoder, tokenizer = load(checkpoint, "bert")
    first, second = (AuxiliaryMLM.from_encoder(encoder, split_layer=n, extra_layers=4 - n) for n in (1, 2))
    if had_another:
        save_auxiliary(first, tmp_path, tokenizer)
    replace, calls = os.replace, []

    def replace_or_die(source, target):
        calls.append(target)
        if len(calls) > finished:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_or_die)
        with pytest.raises(KeyboardInterrupt):
            save_auxiliary(second, tmp_path, tokenizer)
    with pytest.raises(OSError, match="can't be loaded"):
        load_auxiliary(tmp_path, encoder, tokenizer)
    save_auxiliary(second, tmp_path, tokenizer)
    assert load_auxiliary(tmp_path, encoder, tokenizer).split_layer == 2


def test_a_tied_head_can_get_its_own_matrix(checkpoint, saved_network, tmp_path):
    encoder, tokenizer = load(checkpoint, "bert")
    save_auxiliary(AuxiliaryMLM.from_encoder(encoder, tied_head=True), tmp_path / "tied", tokenizer)
    kept = load_auxiliary(tmp_path / "tied", encoder, tokenizer).eval()
    untied = load_auxiliary(tmp_path / "tied", encoder, tokenizer, tied_head=False).eval()
    assert (kept.head.tied, untied.head.tied) == (True, False)
    hidden = torch.randn(4, 32)
    torch.testing.assert_close(kept.head(hidden, kept.encoder), untied.head(hidden, untied.encoder))
    untied.head(hidden, untied.encoder).sum().backward()
    matrix = untied.head.network.get_output_embeddings().weight
    assert matrix.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="tied_head is False, not True"):
        load_auxiliary(saved_network, encoder, tokenizer, tied_head=True)


def test_folder_names_and_precision(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    encoder, tokenizer = load(checkpoint, "bert")
    encoder.config.dtype = torch.bfloat16  # as after loading in bfloat16 and .float()
    auxiliary = perturbed(AuxiliaryMLM.from_encoder(encoder))
    save_auxiliary(auxiliary, "~/aux", tokenizer, str(checkpoint("bert")))
    assert [p.name for p in tmp_path.iterdir()] == ["aux"]
    text = (tmp_path / "aux" / CONFIG_NAME).read_text()
    assert json.loads(text)["base_model_name"] == checkpoint("bert").name
    assert str(checkpoint("bert")) not in text
    assert all(name.startswith(("encoder.", "head.")) for name in load_file(tmp_path / "aux" / WEIGHTS_NAME))
    for place in ("~/aux", "aux"):
        found = load_auxiliary(place, encoder, tokenizer)
        for a, b in zip(found.parameters(), auxiliary.parameters(), strict=True):
            assert torch.equal(a, b)
