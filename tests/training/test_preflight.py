"""What is refused, or warned of, before the first step."""

from __future__ import annotations

import json
import shutil
import warnings

import pytest
import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss
from sentence_transformers.sentence_transformer.modules import Pooling

import st_contrastive as stc
from st_contrastive import distributed
from st_contrastive.training import ContrastiveTrainer
from st_contrastive.training.preflight import ARGUMENTS_AND_DATA, remedy_of_collapse, run_checks
from st_contrastive.training.run_parts import TrainingRun
from tests.cases import state_of


@pytest.fixture
def of(arguments, sentences):
    """``of(loss, model, data, **arguments)``: a Trainer of one step without checkpoints."""

    def build(loss, model=None, data=None, optimizers=(None, None), **changes):
        options = arguments(**{"max_steps": 1, "save_strategy": "no", **changes})
        model = loss.model if model is None else model
        data = stc.text_dataset(sentences) if data is None else data
        evaluates = data if changes.get("eval_strategy") else None
        return ContrastiveTrainer(model, options, data, evaluates, loss, optimizers=optimizers)

    return build


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: setattr(model, "max_seq_length", 10_000), r"model\.max_seq_length is 10000"),
        (lambda model: model.requires_grad_(False), "no trainable weight"),
    ],
)
def test_a_model_that_was_changed_after_the_loss_was_built(build, of, change, message):
    loss = stc.SimCSELoss(build())
    change(loss.model)
    with pytest.raises(ValueError, match=message):
        of(loss).train()


def test_a_loss_of_another_model(build, of, sentences):
    model, other = build(), build()
    for loss, name in (
        (stc.SimCSELoss(other), "model of SimCSELoss"),
        (MatryoshkaLoss(other, stc.TwinsLoss(other), [32, 16]), "model of MatryoshkaLoss"),
        (MatryoshkaLoss(model, stc.TwinsLoss(other), [32, 16]), "loss.model of MatryoshkaLoss"),
    ):
        with pytest.raises(ValueError, match=f"{name} is not the trainer's model"):
            of(loss, model).train()
    losses = {"a": stc.SimCSELoss(model), "b": stc.TwinsLoss(other)}
    datasets = {name: stc.text_dataset(sentences) for name in losses}
    with pytest.raises(ValueError, match="model of TwinsLoss is not the trainer's"):
        of(losses, model, datasets).train()


def test_an_optimizer_without_the_losses_parameters(build, of, arguments):
    loss = stc.SimCSELoss(build())
    optimizer = torch.optim.AdamW(loss.model.parameters())
    with pytest.raises(ValueError, match=r"is missing 2 parameter\(s\) of the loss, such as head\..*loss.parameters"):
        of(loss, optimizers=(optimizer, None)).train()
    given = {"optimizer_cls_and_kwargs": (torch.optim.AdamW, {"lr": 0.1})}
    data = stc.text_dataset(["a cat", "a dog"])
    trainer = ContrastiveTrainer(loss.model, arguments(), data, loss=loss, **given)
    with pytest.raises(ValueError, match=r"is missing 2 parameter\(s\) of the loss"):
        trainer.train()
    before = state_of(loss)
    whole = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad])
    of(loss, optimizers=(whole, None)).train()
    assert not torch.equal(before["head.linear.weight"], loss.head.linear.weight)
    plain = stc.TwinsLoss(build())  # owns no parameter
    assert of(plain, optimizers=(torch.optim.AdamW(plain.model.parameters()), None)).train().global_step == 1


def test_batches_of_one_sentence_need_a_queue(build, of):
    loss = stc.SimCSELoss(build())
    with pytest.raises(ValueError, match=r"per_device_train_batch_size 1 .* leaves no other sentence"):
        of(loss, per_device_train_batch_size=1).train()
    with pytest.raises(ValueError, match=r"4 \(train_dataset: 1 rows\) leaves no other sentence"):
        of(loss, data=stc.text_dataset(["a cat"])).train()
    assert of(stc.TwinsLoss(build()), per_device_train_batch_size=1).train().global_step == 1


def test_the_evaluation_loss_as_metric_of_a_loss_that_dropout_augments(build, of, sentences, monkeypatch):
    loss = stc.SimCSELoss(build())
    monkeypatch.setattr(stc.SimCSELoss, "dropout_only", True, raising=False)
    options = {"eval_strategy": "steps", "load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 1}
    with pytest.warns(UserWarning, match=r"metric_for_best_model is 'loss'.*prefers the last step"):
        of(loss, **options).train()
    two = Dataset.from_dict({"sentence": sentences, "other": sentences[::-1]})
    datasets = {"a": stc.text_dataset(sentences), "b": two}
    with pytest.warns(UserWarning, match="metric_for_best_model is 'eval_a_loss'"):
        of(loss, data=datasets, metric_for_best_model="eval_a_loss", **options).train()
    of(loss, data=two, **options).train()  # pairs are compared with each other


@pytest.mark.parametrize("cells", [["a text"] * 3 + [None], [5.0] * 4, [True] * 4, [["a list"]] * 4])
def test_a_cell_that_is_no_text(build, of, sentences, cells):
    loss = stc.SimCSELoss(build())
    data = Dataset.from_dict({"sentence": sentences[:4], "other": cells})
    row = 3 if cells[3] is None else 0
    with pytest.raises(ValueError, match=rf"train_dataset\[{row}\]\['other'\] must be a text, got"):
        of(loss, data=data).train()
    assert of(loss, data=data.remove_columns("other").add_column("label", [1.0] * 4)).train().global_step == 1


def test_a_cell_of_one_of_several_datasets(build, of, sentences):
    datasets = {"a": stc.text_dataset(sentences), "b": Dataset.from_dict({"sentence": [*sentences, None]})}
    with pytest.raises(ValueError, match=r"train_dataset\['b'\]\[10\]\['sentence'\] must be a text, got None"):
        of(stc.SimCSELoss(build()), data=datasets).train()


@pytest.mark.parametrize(
    ("extra", "shares"),
    [(["", " \n"], ("2.0%", "0.0%")), (["cat 1", "cat 2"], ("0.0%", "2.0%"))],
    ids=["blank", "repeated"],
)
def test_many_blank_or_repeated_texts(build, of, extra, shares):
    texts = [f"cat {number}" for number in range(200)]
    loss = stc.SimCSELoss(build())
    with pytest.warns(UserWarning, match=f"first 100 rows of train_dataset, {shares[0]} .* {shares[1]}"):
        of(loss, data=Dataset.from_dict({"sentence": texts[:98] + extra}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of(loss, data=Dataset.from_dict({"sentence": texts + extra}))


def test_one_text_in_many_pairs(build, of):
    """What stands for a missing text is a negative of its own row."""
    rows = [f"cat {number}" for number in range(200)]
    loss = stc.SimCSELoss(build())
    with pytest.warns(UserWarning, match="3 different rows of the first 200 of train_dataset .* 'other', 'nan'"):
        of(loss, data=Dataset.from_dict({"sentence": rows, "other": [*rows[3:], *["nan"] * 3]}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of(loss, data=Dataset.from_dict({"sentence": rows, "other": [*rows[2:], *["nan"] * 2]}))


def test_tokens_that_were_added_after_the_loss_was_built(build, of):
    for loss in (stc.ConIsILoss(build(), strategy="subword"), stc.InfoCSELoss(build())):
        loss.model.tokenizer.add_tokens(["newword"])
        loss.model[0].model.resize_token_embeddings(len(loss.model.tokenizer))
        with pytest.raises(ValueError, match=f"Tokens were added to the model since {type(loss).__name__} was built"):
            of(loss).train()


def test_a_batch_that_is_split_over_processes_is_refused(build, of, monkeypatch):
    split = {"accelerator_config": {"split_batches": True}}
    of(stc.SimCSELoss(build()), **split)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(ValueError, match=r"split_batches=True.*fewer sentences"):
        of(stc.SimCSELoss(build()), **split)


def test_sharding_is_refused(build, of):
    """FSDP for every loss, DeepSpeed for those that own parameters."""
    owning, plain = of(stc.SimCSELoss(build())), of(stc.SimCSELoss(build(), head=None))
    owning.is_deepspeed_enabled = plain.is_deepspeed_enabled = True
    with pytest.raises(ValueError, match=r"DeepSpeed shards.*plain DDP"):
        run_checks(ARGUMENTS_AND_DATA, TrainingRun.of(owning))
    run_checks(ARGUMENTS_AND_DATA, TrainingRun.of(plain))
    for trainer in (owning, plain):
        trainer.is_deepspeed_enabled, trainer.is_fsdp_enabled = False, True
        with pytest.raises(ValueError, match=r"FSDP shards.*plain DDP"):
            run_checks(ARGUMENTS_AND_DATA, TrainingRun.of(trainer))


def test_options_of_the_host_that_train_something_else(build, of, arguments, sentences):
    with pytest.raises(ValueError, match=r"auto_find_batch_size.*mini_batch_size"):
        of(stc.SimCSELoss(build()), auto_find_batch_size=True)
    options = {"args": arguments(), "train_dataset": stc.text_dataset(sentences), "loss": stc.SimCSELoss}
    with pytest.raises(ValueError, match="hyperparameter_search, is not supported"):
        ContrastiveTrainer(**options, model_init=lambda: build())


def test_fp16_on_a_cpu(build, of):
    with pytest.warns(UserWarning, match="fp16=True has no effect on a CPU"):
        of(stc.SimCSELoss(build()), fp16=True)


def test_several_data_sets_can_not_be_streams(build, of):
    data = {"a": stc.text_dataset(["a cat", "a dog"]).to_iterable_dataset()}
    with pytest.raises(ValueError, match="if one is a stream"):
        of(stc.SimCSELoss(build()), data=data)


def test_disabled_adapters(build):
    peft = pytest.importorskip("peft")
    model = build()
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]))
    model.disable_adapters()
    for trainable in (False, True):
        for name, weight in model.named_parameters():
            weight.requires_grad_(trainable and "lora_" in name)
        with pytest.raises(ValueError, match=r"disabled adapters.*model.enable_adapters\(\)"):
            stc.SimCSELoss(model)
    model.enable_adapters()
    stc.SimCSELoss(model)


@pytest.mark.filterwarnings("error:bf16=True makes")
def test_bf16_on_a_processor_without_it(build, of, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    of(stc.SimCSELoss(build()), bf16=True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    with pytest.warns(UserWarning, match="this CPU has no bfloat16"):
        of(stc.SimCSELoss(build()), bf16=True)


def test_on_several_processes(build, of, sentences, monkeypatch):
    """Their number is pretended; ``rank.py`` has two, and a model that was not wrapped."""
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    model = build()
    datasets = {name: stc.text_dataset(sentences) for name in ("a", "b")}
    plain = {"head": None}
    for first, second in (
        (stc.SimCSELoss(model, head="tanh"), stc.SimCSELoss(model, **plain)),
        (stc.SimCSELoss(model, **plain), stc.SimCSELoss(model, **plain, gather_across_devices=True)),
        (stc.SimCSELoss(model, **plain), stc.TwinsLoss(model)),
    ):
        with pytest.raises(ValueError, match="loss is a dict of 2 losses on 2 devices"):
            of({"a": first, "b": second}, model, datasets)._before_first_step()
    mixed = {**datasets, "c": stc.twins_dataset(sentences, sentences[::-1])}
    with pytest.raises(ValueError, match="datasets of 1 and of 2 text columns"):
        of(stc.TwinsLoss(model), model, mixed)._before_first_step()


def test_a_list_is_no_dataset(build, of, sentences):
    with pytest.raises(TypeError, match=r"train_dataset must be a Dataset, got list.*st_contrastive\.text_dataset"):
        of(stc.SimCSELoss(build()), data=sentences)


def test_a_column_that_is_another_form_of_no_text(build, of, sentences):
    data = Dataset.from_dict({"source": ["wikipedia"] * 10, "body": sentences, "label": range(10)})
    with pytest.raises(ValueError, match=r"'source' of train_dataset .*'wikipedia'.*select_columns.*'body', 'label'"):
        of(stc.SimCSELoss(build()), data=data)
    of(stc.SimCSELoss(build()), data=data.select_columns(["body"]))
    with pytest.raises(ValueError, match="index of a DataFrame"):
        of(stc.SimCSELoss(build()), data=Dataset.from_dict({"body": sentences, "__index_level_0__": sentences[::-1]}))


def test_a_model_that_compares_by_another_similarity(build, of, sentences):
    model = build()
    model.similarity_fn_name = "dot"
    with pytest.warns(UserWarning, match="'dot', and the loss trains their cosine"):
        of(stc.SimCSELoss(model), model)


@pytest.mark.parametrize(("values", "warns"), [(["en", "de"], True), (["a longer text " * 4, "another " * 9], False)])
def test_a_column_of_few_short_values(build, of, sentences, values, warns):
    data = Dataset.from_dict({"body": [f"{text} again" for text in sentences * 2], "language": values * 10})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        of(stc.SimCSELoss(build()), data=data)
    found = [str(each.message) for each in caught]
    assert any("has only 2 distinct value(s)" in message for message in found) == warns


@pytest.mark.parametrize("prompts", [{"body": "find: "}, {"sentence": "find: ", "body": ""}, {"a": {"body": "find: "}}])
def test_a_prompt_of_no_column(build, of, sentences, prompts):
    data = stc.text_dataset(sentences)
    data = {"a": data, "b": data} if "a" in prompts else data
    with pytest.raises(ValueError, match=r"prompts has 'body', .*sentence"):
        of(stc.SimCSELoss(build()), data=data, prompts=prompts)
    named = {"a": {"sentence": "find: "}} if "a" in prompts else {"sentence": "find: "}
    of(stc.SimCSELoss(build()), data=data, prompts=named)


@pytest.mark.parametrize("method", [stc.SimCSELoss, stc.ConIsILoss])
@pytest.mark.parametrize("setting", ["max_length", "model.max_seq_length"])
def test_texts_that_are_cut_to_the_same_tokens(build, arguments, sentences, method, setting):
    def trainer(share):
        model, begin = build(), "the cat sleeps on the warm chair "
        model.max_seq_length = 8 if setting == "model.max_seq_length" else 64
        texts = [(begin if row < 10 * share else "") + text for row, text in enumerate(sentences)]
        options = {} if model.max_seq_length == 8 else {"max_length": 8}
        data = stc.text_dataset(texts)
        return ContrastiveTrainer(
            model, arguments(max_steps=1, save_strategy="no"), data, loss=method(model), **options
        )

    with pytest.raises(ValueError, match=f"90% of the first 10 rows of train_dataset.*'sentence'.*{setting} above 8"):
        trainer(1).train()
    cut = trainer(0.5)
    with pytest.warns(UserWarning, match=f"In 40% of the first 10 rows.*Raise {setting} above 8"):
        cut.train()
    assert setting in remedy_of_collapse(cut)
    trainer(0.1).train()


@pytest.mark.parametrize(("loss", "held"), [(stc.TwinsLoss, 16), (stc.MomentumContrastLoss, 164)])
def test_a_corpus_that_the_queue_holds_whole(build, of, loss, held):
    with pytest.warns(UserWarning, match=f"has 10 rows, and {loss.__name__}'s queue and a batch hold {held}"):
        of(loss(build()), max_steps=4).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "TwinsLoss received one column")
        of(loss(build()), max_steps=2).train()  # one epoch


THAI = ["ฝนตกที่กรุงเทพวันนี้", "แมวนอนอยู่บนก้อนหินอุ่น", "แม่น้ำท่วมทุกปี", "ที่บ้าน", "ในตอนเช้า", "เมื่อวาน"]
AMHARIC = ["ድመቷ", "ዛሬ", "ኮሚቴው", "ዋጋው", "ትናንት", "ነገ"]


@pytest.mark.parametrize(
    "texts", [THAI, AMHARIC, ["😀", "🚀", "🐱", "🍕", "🌙", "✨"]], ids=["thai", "amharic", "emoji"]
)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.filterwarnings("ignore:Of the first 12 rows of train_dataset")
def test_texts_of_unknown_tokens(build, of, sentences, texts, streamed):
    def data(texts):
        data = Dataset.from_dict({"sentence": texts})
        return data.to_iterable_dataset() if streamed else data

    for repeats in (1, 2):
        with pytest.raises(ValueError, match=r"83% of the first \d+ rows.*'sentence'.*\(BertTokenizer\)"):
            of(stc.SimCSELoss(build()), data=data(texts * repeats)).train()
    with pytest.warns(UserWarning, match=r"31% of the first 16 rows.*\(BertTokenizer\)"):
        of(stc.SimCSELoss(build()), data=data([*sentences, *texts])).train()


@pytest.mark.parametrize("other", ["😀 😀", "It rains in Oslo today."])
def test_most_texts_are_of_unknown_tokens(build, of, other):
    texts = [*THAI[:4], other, "A cat sleeps."]
    with pytest.raises(ValueError, match=r"57% of the first 7 rows.*\(BertTokenizer\)"):
        of(stc.SimCSELoss(build()), data=Dataset.from_dict({"sentence": [*texts, THAI[4]]})).train()
    numbered = [f"It rains {'ABC'[row % 3]} \U0001f300" + "\U0001f300" * row for row in range(8)]
    with pytest.warns(UserWarning, match="of the first 8 rows"):  # they differ in words that are known
        of(stc.SimCSELoss(build()), data=Dataset.from_dict({"sentence": numbered})).train()


def test_texts_that_differ_in_capitals_alone(build, of, sentences):
    texts = [text for sentence in sentences for text in (sentence, sentence.upper())]
    with pytest.warns(UserWarning, match=r"50% of the first 20 rows.*drops capitals"):
        of(stc.SimCSELoss(build()), data=Dataset.from_dict({"sentence": texts})).train()


_EPOCHS = {"max_steps": -1, "num_train_epochs": 2}


@pytest.mark.parametrize(
    ("kind", "length"),
    [("dataset", {}), ("dataset", _EPOCHS), ("datasets", {}), ("datasets", _EPOCHS), ("stream", {"max_steps": 2})],
)
def test_fewer_rows_than_a_batch(build, of, sentences, kind, length):
    data = stc.text_dataset(sentences)
    if kind == "datasets":
        data = DatasetDict(a=data.select(range(4)), b=data.select(range(4, 10)))
    elif kind == "stream":
        data = data.to_iterable_dataset()
    options = {"dataloader_drop_last": True, **length}
    with pytest.raises(ValueError, match=r"take no steps: train_dataset.* per_device_train_batch_size 64"):
        of(stc.SimCSELoss(build()), data=data, per_device_train_batch_size=64, **options).train()
    of(stc.SimCSELoss(build()), data=data, per_device_train_batch_size=4, **options)
    of(stc.SimCSELoss(build()), data=data, per_device_train_batch_size=64, **length)  # one step of ten sentences


def test_fewer_rows_than_a_batch_on_each_process(build, of, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(ValueError, match=r"10 rows, .*per_device_train_batch_size 8 .* for 2 process\(es\)"):
        of(stc.SimCSELoss(build()), per_device_train_batch_size=8, dataloader_drop_last=True)


@pytest.mark.parametrize(
    "name", ["test", "validation", "dev-1", "Test_matched", "testset", "test2", "held_out", "holdout"]
)
def test_splits_that_are_held_out(build, of, sentences, name):
    data = stc.text_dataset(sentences)
    for kind in (DatasetDict, dict):
        with pytest.raises(ValueError, match=rf"train_dataset has the parts train, {name}.*train_dataset\['train'\]"):
            of(stc.SimCSELoss(build()), data=kind({"train": data, name: data}))
    of(stc.SimCSELoss(build()), data={"en": data, "testimonials": data})


@pytest.mark.parametrize("option", [{"label_smoothing_factor": 0.1}, {"train_sampling_strategy": "group_by_length"}])
def test_arguments_that_the_host_does_not_read(build, of, option):
    with pytest.raises(ValueError, match=f"{next(iter(option))}=.* has no effect"):
        of(stc.SimCSELoss(build()), **option)


@pytest.mark.parametrize("labels", [["entailment", "neutral"], [None, 1]])
@pytest.mark.parametrize("columns", [["sentence"], ["sentence", "other"]])
def test_labels_that_are_no_numbers(build, of, labels, columns):
    data = Dataset.from_dict({**{column: ["a b", "c d"] * 4 for column in columns}, "label": labels * 4})
    with pytest.raises(ValueError, match=rf"labels such as {labels[0]!r} and {labels[1]!r} in 'label'"):
        of(stc.SimCSELoss(build()), data=data)


@pytest.mark.parametrize("column", ["sentence", "other"])
def test_a_missing_text_behind_the_first_rows(build, of, column):
    texts = {name: [f"{name} {row}" for row in range(1500)] for name in ("sentence", "other")}
    data = Dataset.from_dict({**texts, column: [*texts[column][:1200], None, *texts[column][1201:]]})
    with pytest.raises(ValueError, match=rf"train_dataset\[1200\]\['{column}'\] must be a text, got None"):
        of(stc.SimCSELoss(build()), data=data)
    with pytest.raises(ValueError, match=rf"train_dataset\[299\]\['{column}'\] must be a text, got None"):
        of(stc.SimCSELoss(build()), data=data.select(range(1499, -1, -1)))
    of(stc.SimCSELoss(build()), data=data.select([*range(1200), *range(1201, 1500)]))
    data.set_transform(lambda rows: {name: [text or "none" for text in cells] for name, cells in rows.items()})
    of(stc.SimCSELoss(build()), data=data)


class ReadsLabels(stc.SimCSELoss):
    """A user's loss that weighs pairs."""

    reads_labels = True


@pytest.mark.parametrize(("name", "kind"), [("label", int), ("labels", bool), ("score", float)])
def test_pairs_with_labels(build, of, name, kind):
    texts = {"sentence": [f"a {row}" for row in range(1200)], "other": [f"b {row}" for row in range(1200)]}
    data = Dataset.from_dict({**texts, name: [kind(row < 1100) for row in range(1200)]})  # behind the first rows
    for loss in (stc.SimCSELoss, stc.TwinsLoss):
        with pytest.raises(ValueError, match=rf"labels such as .* in '{name}', which {loss.__name__}"):
            of(loss(build()), data=data)
    of(ReadsLabels(build()), data=data)
    of(stc.SimCSELoss(build()), data=data.select(range(1000)))  # equal ones
    of(stc.SimCSELoss(build()), data=data.remove_columns("other"))
    with pytest.warns(UserWarning, match=f"have (0|False|0.0) in '{name}', and are trained as pairs"):
        of(stc.SimCSELoss(build()), data=data.select(range(1100, 1200)))


@pytest.mark.parametrize("cell", ["A-{}", "https://example.org/page-of-{}"])
def test_a_column_of_ids_is_no_other_form_of_the_text(build, of, cell):
    data = Dataset.from_dict({"sentence": [f"a {row}" for row in range(40)], "id": list(map(cell.format, range(40)))})
    with pytest.warns(UserWarning, match=r"column 'id' .* holds ids or addresses.*select_columns\(\['sentence'\]\)"):
        of(stc.SimCSELoss(build()), data=data)


@pytest.mark.parametrize(("rows", "size"), [(9, 8), (8, 1), (1, 8)])
def test_an_evaluation_of_one_sentence(build, sentences, arguments, rows, size):
    """Its loss of 0 counts in the mean: the loss warns of it."""

    def evaluate(loss, rows):
        data = stc.text_dataset(sentences)
        options = arguments(per_device_eval_batch_size=size)
        ContrastiveTrainer(loss.model, options, data, data.select(range(rows)), loss).evaluate()

    with pytest.warns(UserWarning, match="batch of one sentence.*batch size of 2 or more"):
        evaluate(stc.SimCSELoss(build()), rows)
    evaluate(stc.MomentumContrastLoss(build()), rows)  # has a queue


def test_a_pooling_swapped_under_a_momentum_encoder(build, of):
    for loss in (stc.MomentumContrastLoss(build()), stc.TwinsLoss(build(), key_momentum=0.9)):
        loss.model[1] = Pooling(32, "mean")
        with pytest.raises(ValueError, match=rf"modules have changed since {type(loss).__name__} copied them"):
            of(loss).train()


def test_a_checkpoint_of_another_kind_of_model(checkpoint, of, tmp_path):
    def trainer(change, name="config.json", *, is_saved=False):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(checkpoint("bert"), folder)
        kept = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        (folder / name).write_text(json.dumps({**kept, **change}))
        if is_saved:  # by sentence-transformers
            (folder / "modules.json").write_text("[]")
        model = SentenceTransformer(modules=[transformer := Transformer(str(folder)), Pooling(32)], device="cpu")
        assert transformer.get_embedding_dimension() == 32
        return of(stc.SimCSELoss(model))

    trainer({"architectures": ["BertForMaskedLM"]})
    for architecture in ("BertForSequenceClassification", "BertForTokenClassification", "HF_ColBERT"):
        with pytest.raises(ValueError, match=rf"changed, which is a .*\({architecture}\).*save_pretrained"):
            trainer({"architectures": [architecture]})
    trainer({"architectures": ["BertModel", "BertForSequenceClassification"]})
    for kind in ("CrossEncoder", "SparseEncoder", "ColBERT"):
        with pytest.raises(ValueError, match=rf"changed, which is a .*\({kind}\)"):
            trainer({"model_type": kind}, "config_sentence_transformers.json", is_saved=True)
    for kind in ({}, {"model_type": "SentenceTransformer"}):
        trainer(kind, "config_sentence_transformers.json", is_saved=True)


@pytest.mark.parametrize(
    ("sampler", "several", "small", "drops", "steps"),
    [
        ("batch_sampler", "proportional", 3, False, 3),
        ("batch_sampler", "proportional", 3, True, 2),
        ("batch_sampler", "round_robin", 3, False, 2),
        ("batch_sampler", "round_robin", 3, True, 0),
        ("batch_sampler", "round_robin", 0, False, 0),
        ("no_duplicates", None, 3, False, 1),
        ("no_duplicates", None, 3, True, 0),
        ("no_duplicates", None, 8, True, 0),  # eight rows with one text
        ("no_duplicates_hashed", None, 8, True, 0),
        ("group_by_label", None, 8, False, 1),
        ("group_by_label", None, 8, True, 0),  # of two labels, one has two rows only
        ("no_duplicates", "round_robin", 8, True, 0),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_sampler_counts_the_steps(build, of, sampler, several, small, drops, steps):
    """Against the number of steps that are made."""
    letters = [f"the {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    texts = {
        "batch_sampler": letters[:small],
        "group_by_label": letters[:small],
    }
    few = Dataset.from_dict({"sentence": texts.get(sampler, ["one text"] * small)})
    options = {"batch_sampler": sampler, "dataloader_drop_last": drops, "per_device_train_batch_size": 8}
    options |= {"max_steps": -1, "num_train_epochs": 1}
    if sampler == "no_duplicates" and small == 3 and not drops:
        few = Dataset.from_dict({"sentence": letters[:3]})
    if sampler == "group_by_label":
        few = few.add_column("label", [0] * 6 + [1] * 2)
    data = few
    if several:
        data = {"large": Dataset.from_dict({"sentence": letters[-16:]}), "small": few}
        options["multi_dataset_batch_sampler"] = several
    if steps:
        assert of(stc.SimCSELoss(build()), data=data, **options).train().global_step == steps
        return
    name = r"train_dataset\['small'\]" if several else "train_dataset"
    with pytest.raises(ValueError, match=rf"take no steps: {name} has {small} rows, .*{sampler.upper()}"):
        of(stc.SimCSELoss(build()), data=data, **options)


def test_streams_are_read_by_each_process(build, of, sentences):
    """accelerate would send batches of one size from the first one."""
    stream = stc.text_dataset(sentences).to_iterable_dataset()
    assert of(stc.SimCSELoss(build()), data=stream).accelerator.dispatch_batches is False
    chosen = of(stc.SimCSELoss(build()), data=stream, accelerator_config={"dispatch_batches": True})
    assert chosen.accelerator.dispatch_batches is True
    assert of(stc.SimCSELoss(build())).accelerator.dispatch_batches is None


def test_labels_that_are_lists(of, build, sentences):
    data = Dataset.from_dict({"text": sentences, "labels": [[n, n + 1] for n in range(len(sentences))]})
    for rows in (data, data.to_iterable_dataset()):
        with pytest.raises(ValueError, match="has lists in 'labels', which SimCSELoss does not read"):
            of(stc.SimCSELoss(build()), data=rows)


def test_column_names_that_begin_alike(of, build, sentences):
    data = Dataset.from_dict({"sentence": sentences, "sentence_antonym": sentences[::-1]})
    with pytest.raises(ValueError, match=r"'sentence_antonym' of train_dataset begins with .*rename_column"):
        of(stc.ConIsILoss(build(), strategy="given"), data=data)
