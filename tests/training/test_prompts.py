"""A text is trained with the prompt with which the model encodes it."""

from __future__ import annotations

import pytest
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

import st_contrastive as stc
from st_contrastive.training import ContrastiveTrainer
from st_contrastive.training.prompts import column_prompts

QUERY, DOCUMENT, DEFAULT = "the cat", "dogs run", "rain falls"


@pytest.fixture
def model(build):
    """A model with a prompt for queries, one for documents, and a default one."""
    model = build()
    model.prompts = {"query": f"{QUERY} ", "document": f"{DOCUMENT} ", "other": f"{DEFAULT} "}
    model.default_prompt_name = "other"
    return model


@pytest.fixture
def seen(arguments, sentences):
    """``seen(loss, data)``: by dataset and column, the first two words of the first text that a batch has."""

    def read(loss, data, collator=None, **options):
        trainer = ContrastiveTrainer(loss.model, arguments(**options), data, loss=loss, data_collator=collator)
        columns = {}
        for batch in trainer.get_train_dataloader():
            for key, ids in batch.items():
                if key.endswith("_input_ids"):
                    text = loss.model.tokenizer.decode(ids[0], skip_special_tokens=True)
                    name = ".".join([*filter(None, [batch.get("dataset_name")]), key.removesuffix("_input_ids")])
                    columns.setdefault(name, set()).add(" ".join(text.split()[:2]))
        starts = {QUERY, DOCUMENT, DEFAULT}
        return {name: found.pop() if len(found) == 1 and found <= starts else "" for name, found in columns.items()}

    return read


@pytest.fixture
def pairs(sentences):
    return stc.text_dataset(sentences[2:], sentences[:1:-1])


def test_prompts_of_one_column_and_of_two(model, seen, sentences, pairs):
    texts = stc.text_dataset(sentences[2:])
    translations = stc.twins_dataset(sentences[2:], sentences[:1:-1])
    assert seen(stc.SimCSELoss(model), texts) == {"sentence": DEFAULT}
    assert seen(stc.SimCSELoss(model), pairs) == {"sentence": QUERY, "other": DOCUMENT}
    assert seen(stc.MomentumContrastLoss(model), pairs) == {"sentence": QUERY, "other": DOCUMENT}
    assert seen(stc.TwinsLoss(model), translations) == dict.fromkeys(("sentence", "translation"), DEFAULT)
    assert seen(stc.ConIsILoss(model, strategy="given"), pairs) == dict.fromkeys(("sentence", "other"), DEFAULT)
    model.default_prompt_name = None
    assert seen(stc.SimCSELoss(model), texts) == {"sentence": ""}
    assert seen(stc.SimCSELoss(model), pairs) == {"sentence": QUERY, "other": DOCUMENT}


def test_prompts_of_several_datasets(model, seen, sentences, pairs):
    data = {"a": stc.text_dataset(sentences[2:]), "b": pairs}
    found = seen(stc.SimCSELoss(model), data)
    assert found == {"a.sentence": DEFAULT, "b.sentence": QUERY, "b.other": DOCUMENT}
    losses = {"a": stc.SimCSELoss(model), "b": MultipleNegativesRankingLoss(model)}
    trainer = ContrastiveTrainer(model, None, data, loss=losses)
    assert trainer.data_collator.prompts == f"{DEFAULT} " or trainer.data_collator.prompts["a"]


def test_prompts_in_the_arguments_or_the_collator_win(model, seen, pairs, sentences):
    assert seen(stc.SimCSELoss(model), pairs, prompts=f"{DOCUMENT} ") == dict.fromkeys(("sentence", "other"), DOCUMENT)
    assert seen(stc.SimCSELoss(model), pairs, prompts={"other": f"{QUERY} "}) == {"sentence": "", "other": QUERY}
    assert seen(stc.SimCSELoss(model), pairs, prompts="") == {"sentence": "", "other": ""}
    collator = SentenceTransformerDataCollator(model.preprocess, prompts={"sentence": f"{DOCUMENT} "})
    assert seen(stc.SimCSELoss(model), pairs, collator) == {"sentence": DOCUMENT, "other": ""}


def test_the_arguments_are_not_changed(model, arguments, pairs):
    options = arguments()
    ContrastiveTrainer(model, options, pairs, loss=stc.SimCSELoss(model))
    assert options.prompts is None


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({"query": "q: ", "document": "d: "}, None, ["q: ", "d: "]),
        ({"query": "q: ", "passage": "p: "}, "query", ["q: ", "p: "]),
        ({"query": "q: ", "document": "", "passage": "p: "}, None, ["q: ", ""]),
        ({"all": "a: "}, "all", ["a: ", "a: "]),
        ({}, None, ["", ""]),
    ],
)
def test_the_prompts_are_those_of_encode_query_and_encode_document(build, prompts, default, expected):
    model, asked = build(), []
    model.prompts, model.default_prompt_name = prompts, default
    preprocess = model.preprocess
    model.preprocess = lambda texts, *args, **options: asked.append(options.get("prompt")) or preprocess(texts, *args)
    model.encode_query("a")
    model.encode_document("b")
    assert [prompt or "" for prompt in asked] == expected
    assert list(column_prompts(model, ["first", "second"], same_kind=False).values()) == expected


def test_an_evaluation_leaves_the_prompts_of_training_alone(model, arguments, sentences, pairs):
    texts = stc.text_dataset(sentences[2:])
    data = {"a": texts, "b": pairs}
    losses = {name: stc.SimCSELoss(model) for name in data}
    for loss in (stc.SimCSELoss(model), losses):
        trainer = ContrastiveTrainer(model, arguments(), data, data, loss=loss)
        before = trainer.data_collator.prompts
        assert before == {"a": {"sentence": f"{DEFAULT} "}, "b": {"sentence": f"{QUERY} ", "other": f"{DOCUMENT} "}}
        assert trainer.evaluate(data).keys() >= {"eval_a_loss", "eval_b_loss"}
        assert trainer.data_collator.prompts == before
    trainer = ContrastiveTrainer(model, arguments(), data, loss=stc.SimCSELoss(model))
    trainer.evaluate(pairs)
    assert trainer.data_collator.prompts == before
    assert [*pairs[0]] == ["sentence", "other"]  # the user's data are not changed
    with pytest.raises(ValueError, match="Pass both as dicts"):
        ContrastiveTrainer(model, arguments(), data, pairs, loss=stc.SimCSELoss(model))


def test_columns_of_a_transform(model, arguments, sentences):
    """They get prompts like stored ones. A stored column that the transform drops is not read."""
    stored = stc.text_dataset(sentences[2:]).add_column("label", [f"topic {n % 3}" for n in range(len(sentences) - 2)])
    data = stored.with_transform(
        lambda rows: {"sentence": rows["sentence"], "other": [text[::-1] for text in rows["sentence"]]}
    )
    prompts = {"sentence": f"{QUERY} ", "other": f"{DOCUMENT} "}
    assert ContrastiveTrainer(model, arguments(), data, loss=stc.SimCSELoss(model)).data_collator.prompts == prompts
    given = arguments(prompts={"other": "the cat "})
    assert ContrastiveTrainer(model, given, data, loss=stc.SimCSELoss(model)).args.prompts == {"other": "the cat "}
