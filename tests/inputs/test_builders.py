from __future__ import annotations

import pytest

import st_contrastive as stc
from st_contrastive.inputs import documentation_sentences

ONE, TWO = ["a cat", "a dog"], ["eine Katze", "ein Hund"]
BUILDERS = {
    "simcse": (stc.simcse_examples, stc.simcse_dataset, None),
    "infocse": (stc.infocse_examples, stc.infocse_dataset, None),
    "conisi": (stc.conisi_examples, stc.conisi_dataset, "constructed"),
    "twins": (stc.twins_examples, stc.twins_dataset, "translation"),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_rows_and_columns(name):
    examples, dataset, second = BUILDERS[name]
    assert [example.texts for example in examples(ONE)] == [["a cat"], ["a dog"]]
    assert dataset(iter(ONE)).to_dict() == {"sentence": ONE}
    if second:
        assert [example.texts for example in examples(ONE, TWO)] == [list(row) for row in zip(ONE, TWO, strict=True)]
        assert dataset(ONE, TWO).to_dict() == {"sentence": ONE, second: TWO}
        with pytest.raises(ValueError, match="equally long"):
            examples(ONE, TWO[:1])


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ("one string", TypeError, "sentences must be a sequence"),
        (7, TypeError, "got int"),
        (["fine", None], TypeError, r"sentences\[1\] must be a string, got NoneType"),
        (["fine", 3.5], TypeError, r"sentences\[1\]"),
        ([], ValueError, "empty"),
    ],
)
def test_bad_rows_are_named(name, bad, error, message):
    for build in BUILDERS[name][:2]:
        with pytest.raises(error, match=message):
            build(bad)


def test_documentation_is_prose_and_reproducible():
    sentences = documentation_sentences()
    assert len(sentences) > 5000
    assert len(set(sentences)) == len(sentences)
    assert all(5 <= len(sentence.split()) <= 40 and sentence[-1] in ".!?" for sentence in sentences)
    assert documentation_sentences(5) == sentences[:5]
    assert documentation_sentences(5, seed=1) != sentences[:5]
