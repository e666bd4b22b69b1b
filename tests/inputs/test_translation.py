"""Translation with a tiny sequence-to-sequence model, also when it is stopped at any moment."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import shutil
import time
from pathlib import Path

import pytest
import torch
import transformers

from st_contrastive import twins_examples
from st_contrastive.inputs import TranslationError, Translator, read_parallel, translate_corpus, translator

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_no_folder_stays_of_a_translator_that_does_not_load(tmp_path):
    with pytest.raises(TranslationError):
        translate_corpus(["rain falls"], tmp_path / "a" / "b" / "pairs.jsonl", str(tmp_path / "missing"))
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.* rows have an empty text")
def test_a_model_translates_in_the_order_of_the_sentences(seq2seq, tmp_path):
    translator = Translator(seq2seq, languages=("en", "de"), batch_size=3, max_length=36)
    assert translator.prefix == "translate english to german : "
    sentences = ["rain falls", "a", "the lake is cold in winter", "birds sing", "two dogs"]
    made = translator(sentences)
    # One at a time gives the same, so padding and sorting change nothing.
    alone = Translator(seq2seq, languages=("en", "de"), batch_size=1, max_length=36)
    assert made == [alone([sentence])[0] for sentence in sentences]
    assert len(set(made)) > 1
    assert all(isinstance(text, str) for text in made)
    with pytest.warns(UserWarning, match="Of the 5 sentences translated now, "):
        path = translate_corpus(iter(sentences), tmp_path / "out.jsonl.gz", translator, progress=False)
    with pytest.warns(UserWarning, match="Of the 5 sentences translated now, "):
        named = translate_corpus(sentences, tmp_path / "n.jsonl", seq2seq, languages=("en", "de"), max_length=36)
    assert pairs(named) == list(zip(sentences, made, strict=True))
    assert read_parallel(path).sentences == [s for s, t in zip(sentences, made, strict=True) if t]
    assert [example.texts for example in twins_examples(sentences, path)] == [
        list(pair) for pair in zip(sentences, made, strict=True)
    ]
    loaded = Translator(translator.model, translator.tokenizer, prefix=translator.prefix, max_length=36)
    assert loaded(sentences) == made
    assert [example.texts[1] for example in twins_examples(sentences, translator)] == made
    assert translator([]) == []
    with pytest.raises(TypeError, match="sentences must be a sequence of strings"):
        translator("rain falls")
    settings = tmp_path / "out.jsonl.gz.settings.json"
    assert json.loads(settings.read_text())["max_length"] == 36
    other = Translator(seq2seq, languages=("en", "de"), max_length=35)
    with pytest.raises(TranslationError, match="made with other settings"):
        translate_corpus(sentences, tmp_path / "out.jsonl.gz", other, progress=False)


def test_unknown_models_and_languages_are_named(seq2seq, tmp_path):
    with pytest.raises(TranslationError, match="does not know 'en_to_fr'; it knows, among others: en_to_de") as info:
        Translator(seq2seq, languages=("en", "fr"))
    assert "\n" not in str(info.value)
    with pytest.raises(ValueError, match="languages must be two names"):
        Translator(seq2seq, languages="de")
    with pytest.raises(ValueError, match="batch_size"):
        Translator(seq2seq, batch_size=0)
    with pytest.raises(TranslationError, match="can't be loaded as a sequence-to-sequence model"):
        Translator(str(tmp_path))
    with pytest.raises(TypeError, match="needs tokenizer="):
        Translator(Translator(Path(seq2seq), prefix="").model)
    with pytest.raises(TranslationError, match=r"needs languages=\(source, target\), one of en_to_de"):
        Translator(seq2seq)
    assert Translator(seq2seq, languages=("en", "fi"), prefix="to finnish: ").prefix == "to finnish: "
    with pytest.raises(TranslationError, match="device 'gpu7' can't be used"):
        Translator(seq2seq, prefix="", device="gpu7")
    with pytest.raises(TypeError, match="model must be a folder, a hub name or a loaded model"):
        Translator(None)


def test_sentences_and_translations_at_the_limit_are_counted(seq2seq, tmp_path):
    translator = Translator(seq2seq, prefix="", max_length=6)
    written = Translator(seq2seq, prefix="", max_length=60)
    assert len(set(written(["a b", "rain falls"]))) == 2
    translator(["a b c d e f g h"])  # ten tokens
    assert translator.at_limit == 1

    def cut(batch):
        cut.at_limit += 2
        return ["" if text == "b" else text for text in batch]

    cut.at_limit = 5  # of an earlier corpus
    said = (
        "Of the 3 sentences translated now, 1 translations are empty and 2 sentences or translations reached max_length"
    )
    with pytest.warns(UserWarning, match=said):
        translate_corpus(["a", "b", "c"], tmp_path / "out.jsonl", cut, progress=False)
    with pytest.raises(TranslationError, match="the first 2 translations are all empty: check the model"):
        translate_corpus(["a", "b"], tmp_path / "none.jsonl", lambda batch: ["", " "], progress=False)
    assert not (tmp_path / "none.jsonl").exists()


def test_decoding_follows_the_arguments(seq2seq):
    greedy = Translator(seq2seq, prefix="", max_length=9)
    seen = {}
    greedy.model.generate = lambda **options: seen.update(options) or torch.zeros(1, 2, dtype=torch.long)
    for beams, length in ((1, 9), (4, 17)):
        translator = Translator(greedy.model, greedy.tokenizer, prefix="", max_length=length, num_beams=beams)
        translator(["rain falls"])
        assert (seen["num_beams"], seen["max_new_tokens"], seen["do_sample"]) == (beams, length, False)
        assert seen["input_ids"].shape[1] <= length


def test_a_folder_without_the_files_of_its_tokenizer_is_refused(seq2seq, tmp_path):
    """As after converting the weights alone: transformers then makes an empty tokenizer of T5."""
    model = Translator(seq2seq, prefix="").model
    model.resize_token_embeddings(5000)
    model.save_pretrained(tmp_path)
    with pytest.raises(TranslationError, match=r"has \d+ tokens, and the model 5,000: its files are missing\. Save it"):
        Translator(str(tmp_path), prefix="")


def test_weights_of_another_kind_are_named(seq2seq, tmp_path):
    model = Translator(seq2seq, prefix="").model
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(TranslationError, match=r"safetensors.*\. AutoModelForSeq2SeqLM.from_pretrained\(name\)"):
        Translator(str(tmp_path))


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
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of sentencepiece's bindings
def test_a_marian_model(marian, monkeypatch):
    made = Translator(marian, max_length=8)(["the cat sleeps", "it rains"])
    assert len(made) == 2

    def missing(*_, **__):
        raise ValueError("Unrecognized configuration class")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", missing)
    monkeypatch.setattr(translator, "find_spec", lambda name: None)
    with pytest.raises(TranslationError, match=r"configuration class\. Marian's needs the package sentencepiece"):
        Translator(marian)


def test_the_output_is_checked_before_a_model_is_loaded(tmp_path):
    no_model = str(tmp_path / "no-model")
    done = translate_corpus(["a", "b"], tmp_path / "done.jsonl", shout, progress=False)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").touch()
    for path, message in (
        (tmp_path / "x.tsv", r"must end in \.jsonl"),
        (done, "is not of this corpus"),
        (tmp_path / "file" / "y.jsonl", "can't be written"),
    ):
        with pytest.raises(TranslationError, match=message):
            translate_corpus(["another"], path, no_model, progress=False)
    with pytest.raises(TranslationError, match="no-model can't be loaded"):
        translate_corpus(["another"], tmp_path / "new.jsonl", no_model, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done.jsonl", "file", "folder.jsonl"]


def test_what_a_function_made_is_not_taken_for_a_translators(seq2seq, tmp_path):
    made = translate_corpus(["a", "b"], tmp_path / "done.jsonl", lambda batch: ["?"] * len(batch), progress=False)
    with pytest.raises(TranslationError, match=r"was made with other settings, null\. Name another file, or delete it"):
        translate_corpus(["a", "b"], made, Translator(seq2seq, prefix=""), progress=False)


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        (("en_XX", "de_DE"), {"forced_bos_token_id": 6}),
        (("en_XX", "deu"), "does not know 'deu'; it knows"),
        (None, "several"),
    ],
)
def test_models_of_many_languages_get_both(seq2seq, languages, expected):
    model = Translator(seq2seq, prefix="").model

    class ManyLanguages(transformers.BertTokenizer):
        src_lang = None

    tokens = ["<pad>", "</s>", "<unk>", "a", "b", "en_XX", "de_DE"]
    tokenizer = ManyLanguages(
        vocab={token: index for index, token in enumerate(tokens)},
        pad_token="<pad>",
        unk_token="<unk>",
        sep_token="</s>",
        cls_token="</s>",
        mask_token="<unk>",
        additional_special_tokens=["en_XX", "de_DE"],
    )
    if isinstance(expected, str):
        with pytest.raises(TranslationError, match=expected):
            Translator(model, tokenizer, languages=languages)
    else:
        translator = Translator(model, tokenizer, languages=languages)
        assert tokenizer.src_lang == "en_XX"
        assert translator.options.items() >= expected.items()


def shout(batch):
    return [text.upper() for text in batch]


def pairs(path):
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return [tuple(json.loads(line).values()) for line in file]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_it_continues_where_it_stopped(tmp_path, name):
    sentences = [f"sentence {n}\n\u2028 é" for n in range(25)]
    path = tmp_path / name
    seen = []

    def fails(batch):
        if len(seen) >= 15:
            raise KeyboardInterrupt
        seen.extend(batch)
        return shout(batch)

    with pytest.raises(KeyboardInterrupt):
        translate_corpus(sentences, path, fails, save_every=5, progress=False)
    assert not path.exists()
    partial = path.with_name(name + ".partial")
    whole = partial.read_bytes()
    partial.write_bytes(whole[:-7])  # a kill in the middle of a line
    seen.clear()

    def counts(batch):
        seen.extend(batch)
        return shout(batch)

    assert translate_corpus(iter(sentences), path, counts, save_every=5, progress=False) == path
    assert seen == sentences[14:]
    assert pairs(path) == [(sentence, sentence.upper()) for sentence in sentences]
    assert [file.name for file in tmp_path.iterdir()] == [name]
    seen.clear()
    translate_corpus(sentences, path, counts, progress=False)
    assert not seen  # the output is complete


def test_files_of_another_corpus_or_setting_are_left_alone(tmp_path):
    path = tmp_path / "out.jsonl"
    translate_corpus(["a", "b"], path, shout, progress=False)
    before = path.read_bytes()
    for corpus in (["a", "c"], ["a"], ["a", "b", "c"]):
        with pytest.raises(TranslationError, match="exists and"):
            translate_corpus(corpus, path, shout, progress=False)
    assert path.read_bytes() == before
    with pytest.raises(TranslationError, match=r"must end in \.jsonl"):
        translate_corpus(["a"], tmp_path / "out.csv", shout)
    for bad in (0, -1, 2.5):
        with pytest.raises(ValueError, match="save_every must be a whole number"):
            translate_corpus(["a"], tmp_path / "n.jsonl", shout, save_every=bad)
    with pytest.raises(ValueError, match="sentences is empty"):
        translate_corpus([], tmp_path / "n.jsonl", shout)
    for wrong, options in ((None, {}), (shout, {"languages": ("en", "de")})):
        with pytest.raises(TypeError, match="translate must be a model's name or a function"):
            translate_corpus(["a"], tmp_path / "n.jsonl", wrong, **options)
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]
    blank = ["a", "", "\x00", "\U0001f600x", "a"]
    written = translate_corpus(blank, tmp_path / "b.jsonl", shout)  # texts without a letter need no translation
    with pytest.warns(UserWarning, match="2 of 5 rows have an empty text"):
        assert [e.texts[1] for e in twins_examples(blank, written)] == ["A", "", "", "\U0001f600X", "A"]
    with pytest.raises(TranslationError, match="returned 1 texts for 2"):
        translate_corpus(["a", "b"], tmp_path / "two.jsonl", lambda batch: ["A"], progress=False)
    (tmp_path / "junk.jsonl").write_text("junk\n")
    with pytest.raises(TranslationError, match="can't be read as a file of pairs"):
        translate_corpus(["a"], tmp_path / "junk.jsonl", shout, progress=False)

    def other(batch):
        return shout(batch)

    other.settings = {"model": "another"}
    stopped = tmp_path / "stopped.jsonl.partial"
    stopped.write_text('{"settings": null}\n{"sentence": "a", "translation": "A"}\n')
    with pytest.raises(TranslationError, match="begun with other settings"):
        translate_corpus(["a", "b"], tmp_path / "stopped.jsonl", other, progress=False)
    assert stopped.exists()


def slow(batch):
    time.sleep(0.01)
    return shout(batch)


def run_slowly(path):
    corpus = (f"sentence {n} " + "x" * 500 for n in range(300))
    translate_corpus(corpus, path, slow, save_every=3, progress=False)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it is forked while it has threads
def test_the_output_is_complete_after_kills_at_any_moment(tmp_path):
    path = tmp_path / "out.jsonl.gz"
    partial = tmp_path / "out.jsonl.gz.partial"
    context = multiprocessing.get_context("fork")
    kills = 0
    for wait in (0.01, 0.25, 0.12, 0.033, 120):
        start = partial.stat().st_size if partial.exists() else 0
        process = context.Process(target=run_slowly, args=(path,))
        process.start()
        deadline = time.time() + 60
        while process.is_alive() and time.time() < deadline:
            if partial.exists() and partial.stat().st_size > start:
                break
            time.sleep(0.001)
        process.join(wait)
        if process.is_alive():
            process.kill()
            process.join()
            kills += 1
            assert not path.exists()  # absent or complete
    assert kills >= 2
    assert process.exitcode == 0
    assert [pair[0].split()[1] for pair in pairs(path)] == [str(n) for n in range(300)]
    assert all(one.upper() == two for one, two in pairs(path))
