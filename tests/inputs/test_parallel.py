from __future__ import annotations

import gzip
import json

import pytest

from st_contrastive import twins_dataset, twins_examples
from st_contrastive.inputs import CorpusError, read_parallel, stream_corpus

PAIRS = [("A cat sleeps.", "Eine Katze schläft."), ("It rains.", "Es regnet."), ("Good day", "Guten Tag")]


def jsonl(path, rows):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def tsv(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz"])
@pytest.mark.parametrize(
    ("fields", "languages"),
    [
        (("sentence", "translation"), None),
        (("en", "de"), None),
        (("de", "en"), ("de", "en")),
        (("en", "de"), ("en", "de")),
    ],
)
def test_a_file_of_pairs_is_read_by_its_fields(tmp_path, name, fields, languages):
    path = jsonl(tmp_path / name, [dict(zip(fields, pair, strict=True)) for pair in PAIRS])
    corpus = read_parallel(path, languages=languages)
    assert list(zip(corpus.sentences, corpus.translations, strict=True)) == PAIRS
    assert corpus.report.taken == corpus.report.lines == 3


def test_objects_under_translation_as_on_the_hub(tmp_path):
    path = jsonl(tmp_path / "p.jsonl", [{"id": "1", "translation": {"en": one, "de": two}} for one, two in PAIRS])
    for languages in (None, ("en", "de")):
        corpus = read_parallel(path, languages=languages)
        assert list(zip(corpus.sentences, corpus.translations, strict=True)) == PAIRS


def test_tables_are_not_taken_for_lines(tmp_path):
    for name in ("p.csv", "p.parquet"):
        for file in (name, "lines.txt"):
            (tmp_path / file).write_text("a\nb\n")
        with pytest.raises(CorpusError, match="is a table by its name"):
            read_parallel(tmp_path / "lines.txt", tmp_path / name)
        with pytest.raises(CorpusError, match="is a table by its name"):
            read_parallel(tmp_path / name, tmp_path / "lines.txt")


def test_tab_separated_files_with_and_without_a_heading(tmp_path):
    plain = read_parallel(tsv(tmp_path / "p.tsv", PAIRS))
    headed = tsv(tmp_path / "h.tsv", [("id", "de", "en"), *((str(n), de, en) for n, (en, de) in enumerate(PAIRS))])
    named = read_parallel(headed, languages=("en", "de"))
    assert plain.sentences == named.sentences == [pair[0] for pair in PAIRS]
    assert plain.translations == named.translations == [pair[1] for pair in PAIRS]
    assert named.report.lines == 3


def test_the_rules_apply_to_both_sides_and_are_counted(tmp_path):
    rows = [*PAIRS, ("  ", "leer"), ("x" * 60, "lang"), ("no partner", " "), ("clea\x00n", "sau\x07ber")]
    corpus = read_parallel(jsonl(tmp_path / "p.jsonl", [{"a": one, "b": two} for one, two in rows]), max_characters=50)
    assert corpus.sentences == [*(pair[0] for pair in PAIRS), "clean"]
    assert corpus.translations[-1] == "sauber"
    report = corpus.report
    assert (report.lines, report.taken, report.blank, report.too_long, report.without_partner) == (7, 4, 1, 1, 1)
    assert report.cleaned == 2  # a sentence, and its translation
    assert read_parallel(tmp_path / "p.jsonl", limit=2).sentences == [pair[0] for pair in PAIRS[:2]]
    blank_first = jsonl(tmp_path / "b.jsonl", [{"a": one, "b": two} for one, two in [(" ", "leer"), *PAIRS]])
    assert read_parallel(blank_first, limit=2).sentences == [pair[0] for pair in PAIRS[:2]]


def test_an_empty_cell_is_left_out(tmp_path):
    corpus = read_parallel(tsv(tmp_path / "p.tsv", [("no translation", ""), *PAIRS, ("", "kein Satz")]))
    assert corpus.sentences == [pair[0] for pair in PAIRS]
    assert (corpus.report.blank, corpus.report.without_partner) == (1, 1)


def test_the_names_of_the_fields(tmp_path):
    rows = [{"translation": two, "id": "7", "sentence": one} for one, two in PAIRS]
    named = read_parallel(jsonl(tmp_path / "n.jsonl", rows))
    assert (named.sentences[0], named.translations[0], named.fields) == (*PAIRS[0], ("sentence", "translation"))
    guessed = read_parallel(jsonl(tmp_path / "g.jsonl", [{"de": two, "en": one} for one, two in PAIRS]))
    assert str(guessed) == "3 of 3 lines taken (sentence: 'de', translation: 'en')"
    headed = read_parallel(tsv(tmp_path / "h.tsv", [("translation", "sentence"), *((two, one) for one, two in PAIRS)]))
    assert (headed.sentences[0], headed.translations[0], headed.report.lines) == (*PAIRS[0], 3)
    assert str(read_parallel(tsv(tmp_path / "p.tsv", PAIRS))) == "3 of 3 lines taken"


def test_long_texts_are_looked_up_as_they_are(tmp_path):
    texts = ["a " * 60_000 + "end", "b " * 60_000 + "end"]
    path = jsonl(tmp_path / "p.jsonl", [{"sentence": text, "translation": text[0].upper()} for text in texts])
    assert twins_dataset(texts[1:], path)["translation"][:] == ["B"]


@pytest.mark.parametrize(
    ("name", "content", "languages", "message"),
    [
        ("p.txt", "a\tb\n", None, r"p\.txt is not a file of pairs: its name must end in \.tsv, \.jsonl"),
        ("p.tsv", "a\tb\nc\n", None, r"line 2 has 1 column\(s\) between tabs; 2 are needed"),
        ("p.tsv", "en\tde\na\tb\n", ("en", "fr"), r"line 1 has no field 'fr', only en, de"),
        ("p.jsonl", '{"en": "a", "de": "b"}\n', ("en", "xx"), "no field 'xx', only en, de"),
        ("p.jsonl", '{"en": "a", "de": null}\n', ("en", "de"), "de must be a string, got NoneType"),
        ("p.jsonl", '{"en": "a", "de": "b", "fr": "c"}\n', None, "has the text fields en, de, fr: say which two"),
        ("p.jsonl", '{"en": "a", "de": 3}\n', None, "has the text fields en: say which two"),
        ("p.jsonl", "{broken\n", None, "line 1 is not JSON"),
        ("p.jsonl", '["a", "b"]\n', None, "must be an object"),
        ("p.jsonl", "\n\n", None, "holds no sentence"),
        ("p.jsonl", "[" * 100_000 + "\n", None, r"line 1 (is not JSON|must be)"),
        ("p.tsv.jsonl", "a\tb\n", None, "line 1 is not JSON"),
        ("p.jsonl.gz", "not gzip", None, "damaged or cut short"),
    ],
)
def test_bad_files_are_named_in_one_line(tmp_path, name, content, languages, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(CorpusError, match=message) as info:
        read_parallel(path, languages=languages)
    assert str(path) in str(info.value)
    assert "\n" not in str(info.value)


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(CorpusError, match="can't be read"):
        read_parallel(tmp_path / "none.tsv")
    with pytest.raises(ValueError, match="languages must be two names"):
        read_parallel(tmp_path / "none.tsv", languages="en")
    with pytest.raises(ValueError, match="languages must be two names"):
        read_parallel(tmp_path / "none.tsv", languages=("en", "en"))
    with pytest.raises(ValueError, match="limit must be a whole number"):
        read_parallel(tmp_path / "none.tsv", limit="5")
    with pytest.raises(ValueError, match="languages names the fields of one file"):
        read_parallel(tmp_path / "a.txt", tmp_path / "b.txt", languages=("en", "de"))


def test_the_partner_of_an_overlong_line_is_left_out(tmp_path):
    english, german = tmp_path / "en", tmp_path / "de"
    english.write_text("one\n" + "x" * 90_000 + "\nthree\n")
    german.write_text("eins\nzwei\n" + "y" * 90_000)
    corpus = read_parallel(english, german)
    assert (corpus.sentences, corpus.translations) == (["one"], ["eins"])


def texts(examples):
    return [tuple(example.texts) for example in examples]


def test_the_builders_take_a_file_a_function_and_an_iterator(tmp_path):
    sentences, german = (list(column) for column in zip(*PAIRS, strict=True))
    path = jsonl(tmp_path / "p.jsonl.gz", [{"en": en, "de": de} for en, de in [("other", "x"), *PAIRS, ("last", "y")]])
    lookup = dict(PAIRS)
    sizes = []

    def translate(batch):
        sizes.append(len(batch))
        return [lookup[text] for text in batch]

    for translations in (german, iter(german), path, str(path), translate):
        assert texts(twins_examples(iter(sentences), translations, batch_size=2)) == PAIRS
        if not hasattr(translations, "__next__"):
            dataset = twins_dataset(iter(sentences), translations, batch_size=2)
            assert dataset.to_dict() == {"sentence": sentences, "translation": german}
    assert sizes == [2, 1, 2, 1]


def test_a_file_is_read_along_with_the_sentences(tmp_path):
    path = jsonl(tmp_path / "p.jsonl", [{"sentence": en, "translation": de} for en, de in [*PAIRS, ("empty", "")]])
    doubled = [" It  rains.".replace("  ", " "), "It rains.", "Good\x00 day", "empty"]
    with pytest.warns(UserWarning, match="1 of 4 rows have an empty text, the first of them row 3: leave them out"):
        made = twins_examples(doubled, path)
    assert [text[1] for text in texts(made)] == ["Es regnet.", "Es regnet.", "Guten Tag", ""]
    twice = jsonl(tmp_path / "t.jsonl", [{"sentence": "x", "translation": t} for t in ("one", "two")])
    assert texts(twins_examples(["x", "x"], twice)) == [("x", "one"), ("x", "two")]
    for wrong in (["Good day", "It rains."], ["It rains.", "It snows."]):
        with pytest.raises(ValueError, match=r"has no translation of sentences\[1\], 'It "):
            twins_examples(wrong, path)


def test_bad_columns_are_named(tmp_path):
    with pytest.raises(ValueError, match="sentences has 2 rows, translations has 1"):
        twins_examples(["a", "b"], ["A"])
    with pytest.raises(ValueError, match="translations ends after 1 rows"):
        twins_dataset(iter(["a", "b"]), iter(["A"]))
    with pytest.raises(ValueError, match="translations returned 1 texts for 2 sentences"):
        twins_examples(["a", "b"], lambda batch: ["A"])
    with pytest.raises(TypeError, match=r"translations\(\.\.\.\)\[1\] must be a string, got NoneType"):
        twins_examples(["a", "b"], lambda batch: ["A", None])
    with pytest.raises(TypeError, match=r"sentences\[0\] must be a string, got dict.*Give one column of the table"):
        twins_examples([{"sentence": "a"}], ["A"])
    with pytest.raises(TypeError, match=r"translations\[0\] must be a string, got float"):
        twins_examples(["a"], [float("nan")])
    with pytest.raises(ValueError, match="batch_size"):
        twins_examples(["a"], lambda batch: batch, batch_size=0)
    with pytest.raises(ValueError, match="languages names the fields of a file"):
        twins_examples(["a"], ["A"], languages=("en", "de"))
    with pytest.raises(ValueError, match=r"fraternal embeds translations: give translations"):
        twins_examples(["a"], fraternal=type("F", (), {"labels": print})())
    with pytest.raises(TypeError, match="fraternal must be a FraternalEmbedding"):
        twins_dataset(["a"], ["A"], fraternal="german")


def test_each_iteration_of_a_stream_reads_the_file_again(tmp_path):
    path = tmp_path / "c.txt"
    path.write_text("one\n\ntwo\nthree\n")
    stream = stream_corpus(path, limit=2)
    assert list(stream) == list(stream) == ["one", "two"]
    assert (stream.report.taken, stream.report.blank) == (2, 1)
    path.write_text("\n")
    with pytest.raises(CorpusError, match="holds no sentence"):
        list(stream_corpus(path))
