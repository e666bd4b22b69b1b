"""Translation with a tiny sequence-to-sequence model, also when it is stopped at any moment."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import time
from pathlib import Path

import pytest
import transformers

from st_contrastive import twins_examples
from st_contrastive.inputs import TranslationError, Translator, read_parallel, translate_corpus

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


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
    path = translate_corpus(iter(sentences), tmp_path / "out.jsonl.gz", translator, progress=False)
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
        translate_corpus(sentences, path, fails, batch_size=5, progress=False)
    assert not path.exists()
    partial = path.with_name(name + ".partial")
    whole = partial.read_bytes()
    partial.write_bytes(whole[:-7])  # a kill in the middle of a line
    seen.clear()

    def counts(batch):
        seen.extend(batch)
        return shout(batch)

    assert translate_corpus(iter(sentences), path, counts, batch_size=5, progress=False) == path
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
        with pytest.raises(ValueError, match="batch_size must be a whole number"):
            translate_corpus(["a"], tmp_path / "n.jsonl", shout, batch_size=bad)
    with pytest.raises(ValueError, match="sentences is empty"):
        translate_corpus([], tmp_path / "n.jsonl", shout)
    for wrong, options in ((None, {}), (shout, {"languages": ("en", "de")})):
        with pytest.raises(TypeError, match="translate must be a model's name or a function"):
            translate_corpus(["a"], tmp_path / "n.jsonl", wrong, **options)
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]
    blank = ["a", "", "\x00", "\U0001f600x", "a"]
    assert [e.texts[1] for e in twins_examples(blank, translate_corpus(blank, tmp_path / "b.jsonl", shout))] == [
        "A",
        "",
        "",
        "\U0001f600X",
        "A",
    ]
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
    translate_corpus(corpus, path, slow, batch_size=3, progress=False)


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
