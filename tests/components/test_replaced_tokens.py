from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from st_contrastive.components import AuxiliaryMLM, ReplacedTokenDetector, save_auxiliary
from st_contrastive.encoder.layers import get_layers
from st_contrastive.encoder.partial import edit_input

FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra", "modernbert"]


def make(checkpoint, family, **options):
    folder = checkpoint(f"{family}-mlm")
    encoder, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return ReplacedTokenDetector(encoder, tokenizer, **options), encoder, tokenizer


def replaced(detector, features):
    """Token ids after masking and replacement."""
    return detector.replace(features, detector.masking(features["input_ids"], features["attention_mask"]))


def batch(tokenizer, sentences):
    return dict(tokenizer(sentences, padding=True, return_tensors="pt"))


@pytest.mark.parametrize("generator", ["copy", "name", "model"])
@pytest.mark.parametrize("family", FAMILIES)
def test_masked_tokens_become_the_likeliest_tokens(checkpoint, sentences, family, generator):
    folder = checkpoint(f"{family}-mlm")
    reference = AutoModelForMaskedLM.from_pretrained(folder).eval()
    argument = {"copy": None, "name": folder, "model": reference}[generator]
    detector, _, tokenizer = make(checkpoint, family, generator=argument, mask_rate=0.5)
    detector.eval()
    features = batch(tokenizer, sentences)
    torch.manual_seed(4)
    filled = replaced(detector, features)
    torch.manual_seed(4)
    masked = detector.masking(features["input_ids"], features["attention_mask"])
    share = (masked.input_ids[masked.chosen] == tokenizer.mask_token_id).float().mean()
    assert 0.6 < share < 0.95  # 80 %, as in BERT
    with torch.no_grad():
        logits = reference(**{**features, "input_ids": masked.input_ids}).logits
    logits[..., tokenizer.all_special_ids] = -torch.inf
    expected = torch.where(masked.chosen, logits.argmax(-1), features["input_ids"])
    assert masked.chosen.sum() > 10
    assert torch.equal(filled, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_discriminator_reads_the_edited_text_and_the_vector(checkpoint, sentences, family):
    detector, encoder, tokenizer = make(checkpoint, family)
    detector.eval()
    features = batch(tokenizer, sentences)
    vectors = torch.randn(len(sentences), 32)
    torch.manual_seed(4)
    masked = detector.masking(features["input_ids"], features["attention_mask"])
    logits, edited = detector(features, vectors, masked)
    filled = detector.replace(features, masked)
    assert torch.equal(edited, filled != features["input_ids"])
    assert 5 < edited.sum() < features["attention_mask"].sum() / 2
    with edit_input(get_layers(encoder)[0], lambda hidden: torch.cat([vectors[:, None], hidden[:, 1:]], dim=1)):
        states = encoder.eval()(**{**features, "input_ids": filled}).last_hidden_state
    torch.testing.assert_close(logits, detector.classifier(states))


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (None, "roberta-mlm", "the model's tokenizer"),
        (None, "bert", "no head"),
        (AutoModelForMaskedLM, "roberta-mlm", "must be a masked-LM model"),
        (AutoModel, "bert", "must be a masked-LM model"),
    ],
)
def test_unsuitable_generators_are_refused(checkpoint, kind, name, message):
    generator = checkpoint(name) if kind is None else kind.from_pretrained(checkpoint(name))
    with pytest.raises(ValueError, match=message):
        make(checkpoint, "bert", generator=generator)


def test_an_untied_checkpoint_keeps_its_decoder(checkpoint, sentences, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bert-mlm"))
    config = BertConfig.from_pretrained(checkpoint("bert-mlm"), tie_word_embeddings=False)
    saved = BertForMaskedLM(config)
    saved.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path)
    filled = []
    for generator in (None, tmp_path):
        detector = ReplacedTokenDetector(encoder, tokenizer, generator=generator, mask_rate=0.5).eval()
        torch.manual_seed(2)
        filled.append(replaced(detector, batch(tokenizer, sentences)))
        decoder = detector.generator_head.network.get_output_embeddings()
        torch.testing.assert_close(decoder.weight.detach(), saved.cls.predictions.decoder.weight.detach())
    assert not detector.generator_head.tied
    assert torch.equal(*filled)


def test_a_head_of_an_auxiliary_network_is_a_generator(checkpoint, sentences, tmp_path):
    encoder, tokenizer = (kind.from_pretrained(checkpoint("bert")) for kind in (AutoModel, AutoTokenizer))
    with pytest.warns(UserWarning, match="no masked-LM head"):
        ReplacedTokenDetector(encoder, tokenizer)
    auxiliary = AuxiliaryMLM.from_encoder(encoder, tied_head=True)
    auxiliary.head.source = "checkpoint"
    with torch.no_grad():
        auxiliary.head.network.cls.predictions.transform.dense.bias.fill_(0.25)
    save_auxiliary(auxiliary, tmp_path, tokenizer)
    for generator in (auxiliary.head, tmp_path):
        detector = ReplacedTokenDetector(encoder, tokenizer, generator=generator)
        assert detector.generator_head is not auxiliary.head
        assert detector.generator_head.tied
        assert (detector.generator_head.network.cls.predictions.transform.dense.bias == 0.25).all()
        assert replaced(detector, batch(tokenizer, sentences)).shape[0] == len(sentences)
    assert all(p.requires_grad for p in auxiliary.head.parameters())
