"""Patterns over texts and cells take linear time. In quadratic time, these tests would take hours."""

from __future__ import annotations

import pytest

from st_contrastive.inputs import load_sentences
from st_contrastive.inputs.faults import is_id


@pytest.mark.parametrize("text", ["7" * 10**6 + "é", "a" * 10**6 + " 7", "://" * 10**6 + "é", "7" * 10**6])
def test_an_id_is_told_from_a_long_text(text):
    assert is_id(text) == text.isdigit()


@pytest.mark.parametrize(
    "cell", ["word " * 40_000 + "end", "\\" * 100_000 + "x", "7" * 100_000 + "x", ". " * 50_000 + "x"]
)
def test_long_cells_of_a_table(tmp_path, cell):
    for name, heading, separator in (
        ("c.csv", "id,text", ","),
        ("c.tsv", "id\ttext", "\t"),
        ("d.csv", f"id,{cell}", ","),
    ):
        (tmp_path / name).write_text(f"{heading}\n1{separator}{cell}\n2{separator}b\n", encoding="utf-8")
        assert load_sentences(tmp_path / name, column=heading.split(separator)[1].strip())["sentence"][:] == [cell, "b"]
