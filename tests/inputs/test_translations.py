from __future__ import annotations

import gzip
import json

import pytest
from datasets import Dataset

from st_contrastive.inputs import describe, load_translations

PAIRS = [("A cat sleeps.", "Eine Katze schläft."), ("It rains.", 'Es "regnet.'), ("Good day", "Guten Tag")]
ENGLISH, GERMAN = (list(column) for column in zip(*PAIRS, strict=True))


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def tsv(rows):
    return "".join("\t".join(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "languages"),
    [
        ("p.tsv", tsv(PAIRS), ("en", "de")),
        ("h.tsv", tsv([("id", "de", "en"), *(("1", de, en) for en, de in PAIRS)]), ("en", "de")),
        ("n.tsv", tsv([("translation", "sentence"), *((de, en) for en, de in PAIRS)]), ("en", "de")),
        ("s.jsonl", jsonl({"translation": de, "sentence": en} for en, de in PAIRS), ("en", "de")),
        ("l.jsonl", jsonl({"n": 1, "de": de, "en": en, "fr": "x"} for en, de in PAIRS), ("en", "de")),
        ("x.jsonl", jsonl({"eng": en, "deu": de} for en, de in PAIRS), ("eng", "deu")),
        ("hub.jsonl", jsonl({"id": "1", "translation": {"de": de, "en": en}} for en, de in PAIRS), ("en", "de")),
        (
            "c.csv",
            "en;de\n" + "".join(f'{en};"{de.replace(chr(34), chr(34) * 2)}"\n' for en, de in PAIRS),
            ("en", "de"),
        ),
    ],
)
def test_files_of_pairs(tmp_path, name, content, languages):
    for path in (tmp_path / name, tmp_path / f"{name}.gz"):
        path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
        assert load_translations(path, languages=languages).to_dict() == {"sentence": ENGLISH, "translation": GERMAN}


def test_parquet_and_datasets(tmp_path):
    data = Dataset.from_dict({"translation": [{"en": en, "de": de} for en, de in PAIRS]})
    data.to_parquet(tmp_path / "p.parquet")
    for source in (data, tmp_path / "p.parquet"):
        assert load_translations(source, languages=("de", "en")).to_dict() == {
            "sentence": GERMAN, "translation": ENGLISH
        }  # fmt: skip


def test_unpaired_rows_are_left_out_and_counted(build):
    rows = [*PAIRS, ("  ", "leer"), ("no partner", None), ("", "")]
    data = load_translations(Dataset.from_dict({"en": [en for en, _ in rows], "de": [de for _, de in rows]}))
    assert data.to_dict() == {"sentence": ENGLISH, "translation": GERMAN}
    report = describe(data, build())
    assert (report.rows, report.texts, report.faults) == (6, 3, {"empty": 3, "repeated": 0})
    with pytest.raises(ValueError, match="2 rows, 2 empty"):
        load_translations(Dataset.from_dict({"en": ["a", ""], "de": ["", "b"]}))


@pytest.mark.parametrize(
    ("name", "content", "languages", "message"),
    [
        ("p.txt", "a\tb\n", ("en", "de"), r"\.tsv"),
        ("p.tsv", "a\tb\tc\nd\te\tf\n", ("en", "de"), "column='en'.*a, b, c.*languages="),
        ("p.jsonl", '{"translation": {"en": "a", "fr": "b"}}\n', ("en", "de"), "translation.en, translation.fr"),
        ("p.jsonl", '{"en": "a", "de": 3}\n', ("en", "de"), "column='de'.* en, de .int64"),
        ("p.tsv", "a\tb\n", ("en", "en"), "languages"),
        ("p.csv", "en,en,\na,b,c\n", ("en", "de"), r"holds en\.0, en\.1, Unnamed: 2\."),
        ("p.tsv", "German\tEnglish\nEs regnet.\tIt rains.\n", ("en", "de"), "German, English.*languages="),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, languages, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_translations(tmp_path / name, languages=languages)
