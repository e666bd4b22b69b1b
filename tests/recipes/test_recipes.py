"""Every recipe says where its numbers are from, and runs as it is on another encoder."""

from __future__ import annotations

import hashlib
import json

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from st_contrastive import AuxiliaryMLMPretrainingLoss, inputs
from st_contrastive.cli import main, pretrain
from st_contrastive.methods import METHODS, argument_defaults
from st_contrastive.recipes import RECIPES, Setting, recipe
from tests.filters import TRAINING

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
    *TRAINING,
]


def test_names_and_sources():
    assert {"simcse-bert-base", "esimcse-bert-base", "diffcse-bert-base", "moco-bert-base"} <= RECIPES.keys()
    for strategy in ("s", "o1", "o2"):
        assert {f"conisi-{strategy}-{model}" for model in ("bert-base", "bert-large", "roberta-base")} <= RECIPES.keys()
    assert {"twins-bert-base", "twins-bert-large", "twins-chinese", "infocse-bert-base", "infocse-bert-large"} <= set(
        RECIPES
    )
    for name, one in RECIPES.items():
        assert one.name == name
        settings = [*one.run.values(), *one.loss.values(), *(one.stage1 or {}).values(), *one.stage1_loss.values()]
        assert all(isinstance(setting, Setting) and setting.source for setting in settings)
        assert one.loss.keys() <= argument_defaults(METHODS[one.method].loss_class).keys(), name
        assert one.stage1_loss.keys() <= argument_defaults(AuxiliaryMLMPretrainingLoss).keys()
        if one.method == "twins":  # as the paper: trained on [CLS], verified on the mean
            assert (one.loss_arguments["train_pooling"], one.options["pooling"]) == ("cls", "mean")
        assert bool(one.stage1_loss) == (one.stage1 is not None)
        assert one.differs
        for setting in ("learning_rate", "batch_size"):
            assert f"{setting} = {one.options[setting]}" in one.describe()
    with pytest.raises(ValueError, match="there is no recipe 'simcse'; there are simcse-bert-base"):
        recipe("simcse")


def test_the_papers_numbers():
    """Read off the papers' texts and the authors' scripts, by hand."""
    conisi = recipe("conisi-s-bert-large")
    assert (conisi.options["max_length"], conisi.loss_arguments["interaction_weight"]) == (28, 0.1)
    assert recipe("conisi-s-bert-base").loss_arguments["interaction_weight"] == 0.8
    assert recipe("conisi-o2-roberta-base").loss_arguments == {
        "strategy": "given", "interaction_weight": 0.1, "temperature": 0.05,
    }  # fmt: skip
    assert recipe("twins-bert-base").options["evaluate_steps"] == 151
    assert recipe("twins-bert-base").options["pooling"] == "mean"
    infocse = recipe("infocse-bert-base")
    assert (infocse.options["learning_rate"], infocse.options["epochs"], infocse.loss_arguments["mlm_weight"]) == (
        7e-6,
        2,
        1e-5,
    )
    assert infocse.stage1_loss_arguments["mask_rate"] == 0.15
    assert {name: infocse.stage1[name].value for name in ("learning_rate", "warmup")} == {
        "learning_rate": 1e-4,
        "warmup": 0.1,
    }
    large = recipe("infocse-bert-large")
    assert (large.options["learning_rate"], large.loss_arguments["mask_rate"], large.loss_arguments["split_layer"]) == (
        7e-6,
        0.3,
        6,
    )
    chinese = recipe("twins-chinese").options
    assert (chinese["model"], chinese["translation_encoder"]) == (
        "bert-base-multilingual-uncased",
        "denpa92/bert-base-cantonese",
    )
    assert recipe("simcse-roberta-base").options["batch_size"] == 512
    assert recipe("esimcse-bert-base").loss_arguments["momentum"] == 0.995
    assert recipe("moco-bert-base").loss_arguments["queue_size"] == 65536


def test_what_is_described_is_what_runs():
    one = recipe("mini-infocse")
    for what in (
        "learning_rate 3e-05, not 7e-06",
        "temperature 0.1, not 0.05",
        "mlm_weight 0.1, not 1e-05",
        "no stage 1",
    ):
        assert what in [line.rpartition(": ")[2] for line in one.describe().splitlines()]
    # What was changed differs in another way now, which stands above.
    text = one.describe(
        {**one.options, "learning_rate": 1e-3, "max_steps": 3}, {**one.loss_arguments, "temperature": 0.05}
    )
    assert [line for line in text.splitlines() if "differs" in line] == [
        "  differs: all-MiniLM-L6-v2, which is a sentence encoder already",
        "  differs: against infocse-bert-base: mlm_weight 0.1, not 1e-05",
        "  differs: against infocse-bert-base: no stage 1",
    ]
    one_epoch = recipe("infocse-bert-base").describe({"bf16": True, "epochs": 1, "auxiliary": "x"}, stage1=False)
    assert not [word for word in ("float16", "two epochs", "stage 1 makes") if word in one_epoch]
    text = one.describe(
        {**one.options, "learning_rate": 1e-3}, {**one.loss_arguments, "mask_rate": 0.15, "rtd_weight": 0.01}
    )
    assert "learning_rate = 0.001  (given; the recipe has 3e-05, ours" in text
    assert "mask_rate = 0.15  (given; the recipe has 0.4, InfoCSE, section 5.3 and table 7)" in text
    assert "rtd_weight = 0.01  (given)" in text
    assert "seed = 42  (the Trainer's default)" in text
    assert "  stage 1 mask_rate = 0.15  (InfoCSE, sections 2 and 3.1" in recipe("infocse-bert-base").describe()
    without = recipe("infocse-bert-base").describe(stage1=False)
    assert "  stage 1 learning_rate" not in without
    assert "  stage 1 mask_rate" not in without
    assert "limit = 5  (given)" in one.describe({"limit": 5})
    assert "generator, without a trained head, not distilbert-base-uncased" in recipe("mini-diffcse").describe()
    assert "without a trained masked-LM head" in recipe("mini-infocse-rtd").describe()
    assert "both languages under one tokenizer, not stefan-it/" in recipe("mini-twins").describe()
    assert recipe("twins-chinese").options["limit"] == 100_000
    for name, one in RECIPES.items():
        full = name.replace("mini-", "") + "-bert-base"
        if name.startswith("mini-") and full in RECIPES:  # the same loss, but for the differences that it names
            theirs = RECIPES[full].loss_arguments
            for argument, value in one.loss_arguments.items():
                assert value == theirs.get(argument) or f"{argument} {value}" in one.describe(), (name, argument)


@pytest.fixture
def files(tmp_path, sentences):
    corpus, pairs, dev = tmp_path / "corpus.txt", tmp_path / "pairs.tsv", tmp_path / "dev.jsonl"
    corpus.write_text("\n".join(sentences), encoding="utf-8")
    pairs.write_text("\n".join(f"{text}\t{text[::-1]}" for text in sentences), encoding="utf-8")
    rows = [
        {"sentence1": a, "sentence2": b, "score": score}
        for score, (a, b) in enumerate(zip(sentences, sentences[::-1], strict=True))
    ]
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return corpus, pairs, dev


# One of each kind; the others differ in numbers and names.
RUN = [
    "simcse-bert-base", "moco-bert-base", "esimcse-bert-base", "diffcse-bert-base", "conisi-s-bert-base",
    "conisi-o1-roberta-base", "twins-bert-base", "infocse-bert-base", "mini-combined",
    "mini-twins-one-column-momentum-keys", "mini-infocse-rtd", "mini-infocse-no-head", "mini-simcse-mlm",
    "mini-twins-no-margin-no-queue",
    "twins-one-column-bert-base", "twins-moco-bert-base",
]  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_recipes_run(checkpoint, files, tmp_path, capsys, name, monkeypatch):
    corpus, pairs, dev = files
    # So that a pass tells of the recipe, and not of a queue's size.
    encoder = str(checkpoint("bert-mlm"))
    words = ["train", "--model", encoder, "--data", str(corpus), "--output", str(tmp_path / "out"), "--batch-size", "4"]
    words += ["--max-steps", "2", "--recipe", name, "--dev", str(dev), "--evaluate-steps", "1"]
    one = recipe(name)
    if one.translations:
        words += ["--translations", str(pairs), "--translation-encoder", str(checkpoint("bert"))]
    if "generator" in one.options:
        words += ["--generator", encoder]
    if one.stage1:
        words += ["--max-length", "16"]
    assert main(words) == 0, capsys.readouterr().err
    text = capsys.readouterr().out
    changed = {"model", "batch_size", "max_steps", "dev", "translations", "translation_encoder", "generator"}
    kept = [part.text for part in one.differs if not changed.intersection(part.of)]
    assert kept
    assert all(f"  differs: {part}\n" in text for part in kept)
    assert f"batch_size = 4  (given; the recipe has {one.options['batch_size']}, " in text
    # Trained on 32 tokens or fewer, it reads as many as before.
    assert SentenceTransformer(str(tmp_path / "out")).max_seq_length == Transformer(encoder).max_seq_length
    record = json.loads((tmp_path / "out" / "training_run.json").read_text())
    assert record["options"]["recipe"] == name
    assert record["options"]["learning_rate"] == one.options["learning_rate"]
    assert record["options"]["batch_size"] == 4  # what is given goes first, wherever it stands
    assert record["options"]["model"] == "bert-mlm0" or record["options"]["model"].startswith("bert-mlm")
    assert record["files"]["data"] == hashlib.sha256(corpus.read_bytes()).hexdigest()
    more = [*(["translations"] if one.translations else []), *(["stage1"] if one.stage1 else [])]
    assert set(record["files"]) == {"data", "dev", "model", *more}
    assert record["steps"] == 2
    assert record["best"]["step"] in (1, 2)
    for key, value in one.loss_arguments.items():
        assert record["loss"][key] == value
    if one.stage1:
        assert "Stage 1" in text
        assert "stage 1 batch_size = 4  (given; the recipe has 64" in text
        made = json.loads((tmp_path / "out-stage1" / "training_run.json").read_text())
        stage1 = made["options"]
        assert (stage1["batch_size"], stage1["max_length"]) == (4, 16)  # and not more than fits
        assert (stage1["warmup"], record["options"]["warmup"]) == (0.1, 0.0)
        assert one.stage1_loss_arguments.items() <= made["loss"].items()
        assert made["loss"]["mask_rate"] != record["loss"]["mask_rate"]
        assert (tmp_path / "out-stage1" / "modules.json").is_file()
        assert main([*words, "--overwrite"]) == 0
        assert "Stage 1 has been run" in capsys.readouterr().out
        assert main([*words, "--overwrite", "--seed", "7"]) == 2
        assert "was made with seed 42, not 7. Move it away" in capsys.readouterr().err
        other = tmp_path / corpus.name  # other sentences under the same name
        other.write_text(corpus.read_text().upper())
        assert main([str(other) if word == str(corpus) else word for word in (*words, "--overwrite")]) == 2
        assert "was made with data 'of SHA-256" in capsys.readouterr().err


def test_claims_about_the_papers():
    """Each was wrong once: what the papers do say, and which rows a table covers."""
    for name, one in RECIPES.items():
        if name.startswith("conisi-"):
            assert one.loss["temperature"].source == "ConIsI, sections 3.1.4 and 4.3"
            of_s = name.startswith("conisi-s-")
            for setting in (
                one.loss["interaction_weight"],
                *(one.run[key] for key in ("learning_rate", "batch_size", "max_length")),
            ):
                assert setting.source.startswith("ConIsI, table 3")
                assert ("does not cover" in setting.source) != of_s, name
        text = one.describe()
        assert "bert-base-chinese" not in text
        assert "which translator the paper used is not said" not in text
        assert "the paper does not say" not in text, name
    assert "encoder from --model" not in recipe("infocse-bert-base").describe()
    assert "starts the joint stage from Luyu/condenser" in recipe("infocse-bert-base").describe()
    assert "Baidu Translator API" in recipe("twins-chinese").describe()
    assert "Baidu" not in recipe("twins-bert-base").describe()
    assert "T5" in recipe("twins-bert-base").describe()


def test_ablations_change_their_part_alone():
    whole, alone = recipe("twins-bert-base"), {"twins_weight": 0.0, "queue_batches": 0}
    for name, changed, reported in (
        ("one-column", {}, "78.10"),
        ("one-column-no-queue", {"queue_batches": 0}, "76.83"),
        ("no-queue", {"queue_batches": 0}, "78.81"),
        ("no-margin", {"twins_weight": 0.0}, "78.65"),
        ("no-margin-no-queue", alone, "77.26"),
        ("moco", {"key_momentum": 0.995, "forgetting_rate": 0.0}, ""),
    ):
        one, mini = recipe(f"twins-{name}-bert-base"), recipe(f"mini-twins-{name}")
        assert one.loss_arguments == mini.loss_arguments == {**whole.loss_arguments, **changed}
        one_column = name.startswith("one-column")
        assert one.translations == mini.translations == (not one_column)
        assert ("translation_encoder" in one.run) == (not one_column)
        assert {**one.options, "translation_encoder": None} == {
            **whole.options,
            "translation_encoder": None,
        } or not one_column
        assert one.reported.startswith(reported)
    infocse = recipe("mini-infocse")
    for name, head in (("tanh", "tanh"), ("no-head", None)):
        one = recipe(f"mini-infocse-{name}")
        assert one.loss_arguments == {**infocse.loss_arguments, "head": head}
        assert one.options == infocse.options
        assert one.loss["head"].source == "the part that this recipe changes"
    simcse, masked = recipe("mini-simcse"), recipe("mini-simcse-mlm")
    assert masked.loss_arguments == {**simcse.loss_arguments, "mlm_weight": 0.1, "mask_rate": 0.15}
    assert recipe("infocse-bert-base").stage1_loss_arguments == {"mask_rate": 0.15, "auxiliary_weight": 1.0}


def test_what_is_wrong_with_stage_2_is_said_before_stage_1(checkpoint, files, tmp_path, capsys, monkeypatch):
    corpus, _, dev = files
    monkeypatch.setattr(pretrain, "run", lambda args: pytest.fail("stage 1 was run"))
    words = ["train", "--recipe", "infocse-bert-base", "--model", str(checkpoint("bert-mlm")), "--data", str(corpus)]
    words += ["--output", str(tmp_path / "out"), "--dev", str(dev)]
    for more, message in (
        (["--loss-arg", "temperature=-1"], "temperature"),
        (["--max-length", "5000"], "--max-length 5000"),
        (["--loss-arg", "extra_layers=9"], "extra_layers"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err


def test_epochs_go_before_a_recipes_steps(checkpoint, files, tmp_path, capsys):
    corpus, _, _ = files
    words = ["train", "--recipe", "mini-simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    assert main([*words, "--output", str(tmp_path / "out"), "--batch-size", "5", "--epochs", "2"]) == 0
    text = capsys.readouterr().out
    assert "max_steps = None  (given; the recipe has 150" in text
    assert "epochs = 2  (given)" in text
    assert json.loads((tmp_path / "out" / "training_run.json").read_text())["steps"] == 4
    for more, steps in (
        (["--epochs", "1"], 2),
        (["--epochs", "1", "--max-steps", "3"], 3),
    ):  # as defaults and recipes have
        out = tmp_path / f"out{steps}"
        assert main([*words, "--output", str(out), "--batch-size", "5", *more]) == 0
        assert "epochs = 1  (given)" in capsys.readouterr().out
        assert json.loads((out / "training_run.json").read_text())["steps"] == steps


def test_what_a_recipe_names_may_be_left_out(checkpoint, files, tmp_path, capsys):
    corpus, pairs, dev = files
    words = [
        "train",
        "--model",
        str(checkpoint("bert-mlm")),
        "--data",
        str(corpus),
        "--dev",
        str(dev),
        "--max-steps",
        "1",
    ]
    for name, option, more in (
        ("twins-bert-base", "translation-encoder", ["--translations", str(pairs)]),
        ("diffcse-bert-base", "generator", []),
    ):
        out = tmp_path / option
        assert main([*words, "--recipe", name, "--output", str(out), f"--{option}", "none", *more]) == 0
        option = option.replace("-", "_")
        assert f"{option} = None  (given; the recipe has " in capsys.readouterr().out
        assert option not in json.loads((out / "training_run.json").read_text())["options"]


def test_a_run_that_diverges_is_kept_and_said(checkpoint, files, tmp_path):
    corpus, _, dev = files
    words = ["train", "--recipe", "simcse-bert-base", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    words += ["--output", str(tmp_path / "out"), "--max-steps", "4", "--batch-size", "4", "--learning-rate", "1e30"]
    with pytest.warns(UserWarning, match="Every evaluation's dev_spearman was NaN"):
        assert main([*words, "--dev", str(dev), "--evaluate-steps", "4"]) == 1
    text = (tmp_path / "out" / "training_run.json").read_text()
    assert "NaN" not in text  # which is no JSON
    record = json.loads(text)
    assert record["best"] == {"step": None, "value": None}
    assert any(None in band["similarities"] for band in record["similarities"]["after"])


def test_options_have_their_whole_names(files, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--rec", "mini-simcse", "--data", str(files[0]), "--output", str(tmp_path / "out")])
    assert "unrecognized arguments: --rec" in capsys.readouterr().err


def test_a_recipe_gives_way_to_what_is_given(checkpoint, files, tmp_path, capsys):
    corpus = files[0]
    words = ["train", "--learning-rate", "1e-3", "--recipe=conisi-s-bert-base", "--model", str(checkpoint("bert"))]
    words += ["--data", str(corpus), "--output", str(tmp_path / "out"), "--max-steps", "1", "--batch-size", "4"]
    assert main([*words, "--loss-arg", "interaction_weight=0.3", "--dev", "none"]) == 0
    record = json.loads((tmp_path / "out" / "training_run.json").read_text())
    assert record["options"]["learning_rate"] == 1e-3
    assert record["loss"]["interaction_weight"] == 0.3
    assert record["best"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "none"], "there is no recipe 'none'"),
        (["--recipe", "twins-bert-base", "--dev", "none"], "needs --translations FILE"),
        (["--model", "x"], "--method is missing"),
        (["--method", "simcse"], "--model is missing"),
        (["--recipe", "mini-simcse", "--method", "twins"], "is of --method simcse: leave --method twins out"),
        (["--recipe", "mini-simcse", "--dev", "/no/such"], "--dev: /no/such can't be read"),
        (["--recipe", "mini-simcse", "--antonyms"], "--antonyms goes with --method conisi or combined, not simcse"),
    ],
)
def test_bad_input(files, tmp_path, capsys, words, message):
    arguments = ["train", *words, "--data", str(files[0]), "--output", str(tmp_path / "out")]
    assert _code(arguments) == 2
    assert message in capsys.readouterr().err


def _code(arguments):
    try:
        return main(arguments)
    except SystemExit as error:  # argparse's own
        return error.code


def test_builders_take_the_second_form(sentences):
    from st_contrastive.augmentations import WordRepetition

    data = inputs.text_dataset(sentences, WordRepetition(0.9))
    assert data.column_names == ["sentence", "other"]
    assert data["sentence"][:] == sentences
    assert any(len(other) > len(text) for text, other in zip(sentences, data["other"], strict=True))
    assert data["other"][:] == inputs.text_dataset(sentences, WordRepetition(0.9))["other"][:]
    pair = inputs.text_examples(sentences[:1], ["rain"])
    assert pair[0].texts == [sentences[0], "rain"]
    with pytest.raises(TypeError, match="other must return a string"):
        inputs.text_dataset(sentences, lambda text, rng: 3)
