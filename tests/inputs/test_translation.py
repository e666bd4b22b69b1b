"""Translation with a tiny sequence-to-sequence model, also when it is stopped at any moment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from st_contrastive.inputs import Translator, load_translations, translate_corpus


def shout(batch):
    return [text.upper() for text in batch]


def pairs(path):
    with path.open(encoding="utf-8") as file:
        return [tuple(json.loads(line).values()) for line in file]


def test_a_model_translates_in_the_order_of_the_sentences(seq2seq, tmp_path):
    options = {"prefix": "translate english to german : ", "max_length": 36}
    translator = Translator(seq2seq, batch_size=3, **options)
    sentences = ["rain falls", "a", "the lake is cold in winter", "birds sing", "two dogs"]
    translations = translator(sentences)
    # One at a time gives the same, so padding and sorting change nothing.
    single = Translator(seq2seq, batch_size=1, **options)
    assert translations == [single([sentence])[0] for sentence in sentences]
    assert len(set(translations)) > 1
    with pytest.warns(UserWarning, match="Of the last 5 translations"):
        path = translate_corpus(sentences, tmp_path / "o.jsonl", translator)
    assert pairs(path) == list(zip(sentences, translations, strict=True))
    with pytest.raises(ValueError, match=r"output.*other settings"):
        translate_corpus(sentences, path, Translator(seq2seq, prefix="", max_length=36))


def test_decoding_follows_the_arguments(seq2seq, monkeypatch):
    seen = {}
    for beams, length in ((1, 9), (4, 17)):
        translator = Translator(seq2seq, prefix="", max_length=length, num_beams=beams)
        monkeypatch.setattr(
            translator.model, "generate", lambda **given: seen.update(given) or torch.zeros(1, 2).long()
        )
        translator(["rain falls and falls and falls"])
        assert (seen["num_beams"], seen["max_new_tokens"], seen["do_sample"]) == (beams, length, False)
        assert seen["input_ids"].shape[1] <= length
        assert translator.num_truncated == (seen["input_ids"].shape[1] == length)


def test_the_accelerator_is_taken_where_there_is_one(seq2seq, monkeypatch):
    """MPS too, which only torch.accelerator knows."""
    moved = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(
        transformers.T5ForConditionalGeneration, "to", lambda self, device: moved.append(device) or self
    )
    Translator(seq2seq, prefix="")
    Translator(seq2seq, prefix="", device="cpu")
    assert moved == ["mps", "cpu"]


def test_what_cannot_translate_is_named(seq2seq, tmp_path):
    for model, options, error, message in (
        (seq2seq, {}, ValueError, "prefix is missing.*translate english to german : "),
        (seq2seq, {"batch_size": 0}, ValueError, "batch_size"),
        ("./none", {}, OSError, "model ./none"),
        (tmp_path, {}, ValueError, str(tmp_path)),
    ):
        with pytest.raises(error, match=message):
            Translator(model, **options)
    model = Translator(seq2seq, prefix="").model
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        Translator(tmp_path)


@pytest.fixture
def marian(tmp_path):
    """Folder of a tiny Marian model, laid out as those of the hub."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = tmp_path / "text.txt"
    text.write_text("the cat sleeps on a chair\nit rains in oslo today\na dog runs\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "pieces"), vocab_size=40, hard_vocab_limit=False, minloglevel=2
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "pieces.model"))
    tokens = ["</s>", "<unk>", *(pieces.id_to_piece(row) for row in range(3, pieces.get_piece_size())), "<pad>"]
    folder = tmp_path / "marian"
    config = transformers.MarianConfig(
        vocab_size=len(tokens), d_model=16, pad_token_id=len(tokens) - 1, eos_token_id=0,
        decoder_start_token_id=len(tokens) - 1, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
    )  # fmt: skip
    transformers.MarianMTModel(config).save_pretrained(folder)
    for name in ("source.spm", "target.spm"):
        shutil.copy(tmp_path / "pieces.model", folder / name)
    (folder / "vocab.json").write_text(json.dumps({token: row for row, token in enumerate(tokens)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"target_lang": "de", "source_lang": "en"}))
    return str(folder)


@pytest.mark.filterwarnings("ignore:Recommended")
def test_a_marian_model(marian):
    assert len(Translator(marian, max_length=8)(["the cat sleeps", "it rains"])) == 2
    assert Translator(marian, max_length=8, prefix=">>deu<< ").prefix == ">>deu<< "


@pytest.mark.filterwarnings("ignore:Recommended")
def test_languages_are_those_of_the_model(marian, monkeypatch, seq2seq):
    vocabulary = Path(marian, "vocab.json")
    tokens = json.loads(vocabulary.read_text())
    spare = [token for token in tokens if token not in ("</s>", "<unk>", "<pad>")][-2:]
    for token, code in zip(spare, (">>deu<<", ">>ron<<"), strict=True):
        tokens[code] = tokens.pop(token)
    vocabulary.write_text(json.dumps(tokens))
    with pytest.raises(ValueError, match=r"prefix is missing.*'>>deu<< ', '>>ron<< '"):
        Translator(marian)
    with pytest.raises(ValueError, match=r"'>>fr<<' is none of .*>>ron<<"):
        Translator(marian, prefix=">>fr<<")
    assert len(Translator(marian, prefix=">>ron<< ", max_length=8)(["it rains"])) == 1
    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "src_lang", "eng_Latn", raising=False)  # as NLLB's
    with pytest.raises(ValueError, match="a prefix can't set"):
        Translator(seq2seq, prefix=">>deu<< ")


def test_it_continues_where_it_stopped(tmp_path):
    sentences = [f"sentence {n}\n\u2028 é" for n in range(700)]
    path, partial = tmp_path / "o.jsonl", tmp_path / "o.jsonl.partial"
    seen = []

    def fails(batch):
        if len(seen) >= 500:
            raise KeyboardInterrupt
        seen.extend(batch)
        return shout(batch)

    with pytest.raises(KeyboardInterrupt):
        translate_corpus(sentences, path, fails)
    assert not path.exists()
    partial.write_bytes(partial.read_bytes()[:-7])  # a kill in the middle of a line
    seen.clear()
    assert translate_corpus(iter(sentences), path, lambda batch: seen.extend(batch) or shout(batch)) == path
    assert seen == sentences[511:]
    assert pairs(path) == [(sentence, sentence.upper()) for sentence in sentences]
    assert not partial.exists()
    assert load_translations(path)["sentence"][:] == [sentence.strip() for sentence in sentences]
    assert translate_corpus(sentences, path, lambda batch: pytest.fail("it is complete")) == path


def test_files_of_another_corpus_are_left_alone(tmp_path):
    path = translate_corpus(["a", "b"], tmp_path / "o.jsonl", shout)
    before = path.read_bytes()
    for corpus in (["a", "c"], ["a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="output"):
            translate_corpus(corpus, path, shout)
    assert path.read_bytes() == before
    (tmp_path / "junk.jsonl").write_text("junk\n")
    for name, corpus, translate, error, message in (
        ("o.csv", ["a"], shout, ValueError, r"output.*\.jsonl"),
        ("n.jsonl", [], shout, ValueError, "sentences"),
        ("n.jsonl", ["a"], None, ValueError, "translate"),
        ("n.jsonl", ["a", "b"], lambda batch: ["A"], ValueError, "shorter"),
        ("junk.jsonl", ["a"], shout, ValueError, "output.*of another corpus"),
    ):
        with pytest.raises(error, match=message):
            translate_corpus(corpus, tmp_path / name, translate)
    assert not (tmp_path / "n.jsonl").exists()


def test_what_may_be_cut_is_counted(tmp_path):
    def cut(batch):
        cut.num_truncated += 2
        return ["" if text == "b" else text for text in batch]

    cut.num_truncated = 5  # of an earlier corpus
    with pytest.warns(UserWarning, match="Of the last 3 translations, 1 are empty, and 2 may be cut"):
        translate_corpus(["a", "b", "c"], tmp_path / "o.jsonl", cut)
