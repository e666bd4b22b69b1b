from __future__ import annotations

import json
import pickle
import zlib

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from st_contrastive.components import AuxiliaryMLM, load_auxiliary, save_auxiliary
from st_contrastive.components.auxiliary_files import CONFIG_NAME, WEIGHTS_NAME
from st_contrastive.encoder.layers import layers_of

FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra", "modernbert"]


def load(checkpoint, family):
    folder = checkpoint(family)
    return AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def perturbed(auxiliary):
    """With other weights than the encoder that it was copied from, in the frozen part too."""
    with torch.no_grad():
        for parameter in auxiliary.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return auxiliary


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_saved_is_what_is_loaded(checkpoint, sentences, tmp_path, family, tied):
    encoder, tokenizer = load(checkpoint, family)
    made = AuxiliaryMLM.from_encoder(encoder, split_layer=3, extra_layers=1, tied_head=tied)
    auxiliary = perturbed(made).eval()
    save_auxiliary(auxiliary, tmp_path / "new" / "folder", tokenizer, "some/encoder")
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == sorted([CONFIG_NAME, WEIGHTS_NAME])
    for file in ("", CONFIG_NAME, WEIGHTS_NAME):  # a file of it names it too
        found = load_auxiliary(tmp_path / "new" / "folder" / file, encoder, tokenizer, lower_dropout=True).eval()
    assert (found.split_layer, found.extra_layers, found.head.tied, found.lower_dropout) == (3, 1, tied, True)
    assert found.head.source == auxiliary.head.source == "new"
    features = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    chosen, vectors = features["attention_mask"].bool(), torch.randn(len(sentences), 32)
    with torch.no_grad():
        torch.testing.assert_close(found(features, chosen, vectors), auxiliary(features, chosen, vectors))
    assert [p.requires_grad for p in found.parameters()] == [p.requires_grad for p in auxiliary.parameters()]


def test_the_configuration_says_what_it_is(checkpoint, tmp_path):
    encoder, tokenizer = load(checkpoint, "bert")
    save_auxiliary(AuxiliaryMLM.from_encoder(encoder), tmp_path, tokenizer, "bert-base-uncased")
    config = json.loads((tmp_path / CONFIG_NAME).read_text())
    assert config["base_model_name"] == "bert-base-uncased"
    assert (config["split_layer"], config["extra_layers"], config["hidden_size"]) == (2, 1, 32)
    assert config["tokenizer_fingerprint"] > 0
    assert str(checkpoint("bert")) not in (tmp_path / CONFIG_NAME).read_text()
    assert all(name.startswith(("network.", "head.")) for name in load_file(tmp_path / WEIGHTS_NAME))


@pytest.fixture
def saved(checkpoint, tmp_path):
    encoder, tokenizer = load(checkpoint, "bert")
    save_auxiliary(AuxiliaryMLM.from_encoder(encoder), tmp_path / "aux", tokenizer, "bert")
    return tmp_path / "aux"


def test_a_mismatch_is_refused_by_name(checkpoint, saved):
    encoder, tokenizer = load(checkpoint, "bert")
    other, others = load(checkpoint, "roberta")
    with pytest.raises(ValueError, match=r"model_type is 'bert', the model has 'roberta'.*vocab_size.*fingerprint"):
        load_auxiliary(saved, other, others)
    with pytest.raises(ValueError, match=r"made from bert.*split_layer is 2, asked for 3; extra_layers is 1, asked"):
        load_auxiliary(saved, encoder, tokenizer, split_layer=3, extra_layers=2)
    tokenizer.add_tokens(["zebra"])
    with pytest.raises(ValueError, match="tokenizer_fingerprint"):
        load_auxiliary(saved, encoder, tokenizer)


def test_what_is_missing_or_damaged_is_said(checkpoint, saved, tmp_path):
    encoder, tokenizer = load(checkpoint, "bert")
    with pytest.raises(OSError, match="does not exist"):
        load_auxiliary(tmp_path / "nowhere", encoder, tokenizer)
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match=r"neither auxiliary_config.json.*nor Condenser's model.pt"):
        load_auxiliary(tmp_path / "empty", encoder, tokenizer)
    config, weights = (saved / CONFIG_NAME).read_text(), (saved / WEIGHTS_NAME).read_bytes()
    for text, message in (
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged .*extra_layers is missing"),
        (config.replace('"tied_head": false', '"tied_head": "no"'), "damaged .*tied_head"),
        (config.replace('"hidden_act": "gelu"', '"hidden_act": "foo"'), "damaged .*KeyError"),
        (config.replace('"hidden_size": 32,\n    "', '"hidden_size": "32",\n    "'), "damaged"),
        (config.replace('"format": 1', '"format": 9'), "format 9"),
        (config.replace('"extra_layers": 1', '"extra_layers": 2'), "names 2 extra layers"),
    ):
        (saved / CONFIG_NAME).write_text(text)
        with pytest.raises((OSError, ValueError), match=message):
            load_auxiliary(saved, encoder, tokenizer)
    (saved / CONFIG_NAME).write_text(config)
    (saved / WEIGHTS_NAME).write_bytes(weights[:1000])
    with pytest.raises(OSError, match="is damaged, or not the one"):
        load_auxiliary(saved, encoder, tokenizer)
    (saved / WEIGHTS_NAME).write_bytes(weights)
    tensors = load_file(saved / WEIGHTS_NAME)
    tensors.pop("network.embeddings.word_embeddings.weight")
    save_file(tensors, saved / WEIGHTS_NAME)
    changed = zlib.crc32((saved / WEIGHTS_NAME).read_bytes())
    edited = config.replace(str(json.loads(config)["weights_crc32"]), str(changed))
    (saved / CONFIG_NAME).write_text(edited)
    with pytest.raises(OSError, match=r"can't be loaded .*Missing.*network.embeddings.word_embeddings.weight"):
        load_auxiliary(saved, encoder, tokenizer)
    (saved / CONFIG_NAME).write_text(config)
    (saved / WEIGHTS_NAME).unlink()
    with pytest.raises(OSError, match=r"but no auxiliary\.safetensors"):
        load_auxiliary(saved, encoder, tokenizer)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_condensers_layers_are_read(checkpoint, tmp_path, family):
    encoder, tokenizer = load(checkpoint, family)
    layers = layers_of(perturbed(AuxiliaryMLM.from_encoder(encoder, extra_layers=2)).network)[-2:]
    state = {f"c_head.{name}": tensor for name, tensor in layers.state_dict().items()}
    torch.save({**state, "co_target": torch.zeros(3)}, tmp_path / "model.pt")
    for path in (tmp_path, tmp_path / "model.pt"):
        found = load_auxiliary(path, encoder, tokenizer)
        assert (found.split_layer, found.extra_layers) == (2, 2)
        own = layers_of(found.network)
        for mine, theirs in zip(own[2:], layers, strict=True):
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                assert torch.equal(a, b)
                assert a.requires_grad
        assert torch.equal(next(own[0].parameters()), next(layers_of(encoder)[0].parameters()))
    with pytest.raises(ValueError, match="extra_layers is 2, asked for 1"):
        load_auxiliary(tmp_path, encoder, tokenizer, extra_layers=1)
    state.pop("c_head.1.output.dense.weight")
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"c_head.1 does not fit a layer of this encoder.*output.dense.weight"):
        load_auxiliary(tmp_path, encoder, tokenizer)


class Sprung:
    """Unpickling this would run code."""

    def __reduce__(self):
        return exec, ("raise SystemError('code of the file was run')",)


def test_code_of_a_file_is_never_run(checkpoint, tmp_path):
    encoder, tokenizer = load(checkpoint, "bert")
    file = tmp_path / "model.pt"
    for content in (Sprung(), {"c_head.0.weight": Sprung()}):
        torch.save(content, file)
        with pytest.raises(ValueError, match="never run"):
            load_auxiliary(file, encoder, tokenizer)
    file.write_bytes(pickle.dumps(Sprung()))
    with pytest.raises(ValueError, match="never run"):
        load_auxiliary(file, encoder, tokenizer)
    for content, message in (({"lm.weight": torch.zeros(1)}, "has lm.weight"), ([1], "named tensors")):
        torch.save(content, file)
        with pytest.raises(ValueError, match=message):
            load_auxiliary(file, encoder, tokenizer)


def test_a_tied_head_can_be_given_a_matrix_of_its_own(checkpoint, sentences, saved, tmp_path):
    encoder, tokenizer = load(checkpoint, "bert")
    save_auxiliary(AuxiliaryMLM.from_encoder(encoder, tied_head=True), tmp_path / "tied", tokenizer)
    kept = load_auxiliary(tmp_path / "tied", encoder, tokenizer).eval()
    own = load_auxiliary(tmp_path / "tied", encoder, tokenizer, tied_head=False).eval()
    assert (kept.head.tied, own.head.tied) == (True, False)
    hidden = torch.randn(4, 32)
    torch.testing.assert_close(kept.logits(hidden), own.logits(hidden))
    own.logits(hidden).sum().backward()
    matrix = own.head.network.get_output_embeddings().weight
    assert matrix.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="can't be tied"):
        load_auxiliary(saved, encoder, tokenizer, tied_head=True)


def test_homes_and_precision_and_names(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    encoder, tokenizer = load(checkpoint, "bert")
    encoder.config.dtype = torch.bfloat16  # as after loading in bf16 and .float()
    auxiliary = perturbed(AuxiliaryMLM.from_encoder(encoder))
    save_auxiliary(auxiliary, "~/aux", tokenizer, str(checkpoint("bert")))
    assert [p.name for p in tmp_path.iterdir()] == ["aux"]
    assert json.loads((tmp_path / "aux" / CONFIG_NAME).read_text())["base_model_name"] == checkpoint("bert").name
    for place in ("~/aux", "aux"):
        found = load_auxiliary(place, encoder, tokenizer)
        for a, b in zip(found.parameters(), auxiliary.parameters(), strict=True):
            assert torch.equal(a, b)
    with pytest.raises(ValueError, match="auxiliary is empty"):
        load_auxiliary("", encoder, tokenizer)


def test_fewer_positions_than_the_encoder_has(checkpoint, saved):
    encoder, tokenizer = load(checkpoint, "bert")
    encoder.config.max_position_embeddings = 128
    with pytest.raises(ValueError, match="max_position_embeddings is 64, the model has 128"):
        load_auxiliary(saved, encoder, tokenizer)
