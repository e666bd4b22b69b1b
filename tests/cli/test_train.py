"""``st-contrastive train``, and the other doors of the command line."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import TrainerState

from st_contrastive import cli, recipes
from st_contrastive.cli import _progress, main
from st_contrastive.cli.next_step import next_step
from st_contrastive.evaluation import Judgement
from st_contrastive.recipes import RunPlan
from tests.cases import SENTENCES
from tests.processes import TORCHRUN, run_python
from tests.snippets import write_documents


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.csv"
    rows = [f'{number},"{text}"' for number, text in enumerate([*SENTENCES, "", SENTENCES[0]])]
    path.write_text("\n".join(["id,body", *rows]), encoding="utf-8")
    return path


@pytest.fixture
def words(checkpoint, corpus, tmp_path):
    """A run of two steps, without the loss."""
    return [
        "train", "--model", str(checkpoint("bert")), "--data", str(corpus), "--column", "body",
        "--output_dir", str(tmp_path / "out"), "--per_device_train_batch_size", "4", "--max_steps", "2",
    ]  # fmt: skip


def code(arguments):
    try:
        return main(arguments)
    except SystemExit as error:  # argparse's own
        return error.code


@pytest.fixture
def trainers(monkeypatch):
    """The Trainers of the runs that follow."""
    built, run_plan = [], recipes.run_plan

    def noting(plan, *, on_trainer, **options):
        def both(trainer):
            built.append(trainer)
            on_trainer(trainer)

        return run_plan(plan, on_trainer=both, **options)

    monkeypatch.setattr(recipes, "run_plan", noting)
    return built


def test_options_of_the_loss_and_of_the_trainer(words, tmp_path, capsys, trainers):
    more = ["--loss", "simcse", "--temperature", "2e-1", "--max_length", "9", "--pooling", "mean"]
    more += ["--gradient_accumulation_steps", "2", "--bf16", "--lr_scheduler_type", "cosine", "--logging-steps", "1"]
    assert main([*words, *more]) == 0
    (trainer,) = trainers
    assert trainer.loss.temperature == 0.2
    assert (trainer.args.gradient_accumulation_steps, trainer.args.bf16) == (2, True)
    assert trainer.args.lr_scheduler_type == "cosine"
    assert trainer.max_length == 9 < trainer.model.max_seq_length
    output = capsys.readouterr().out
    assert "12 read" in output
    assert "1 empty, 1 repeated" in output
    assert output.count("loss ") >= 2
    again = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert again[1].pooling_mode == "mean"
    assert again.encode(["rain falls"]).shape == (1, 32)


def test_a_file_of_settings_is_the_same_run(words, corpus, checkpoint, tmp_path, trainers):
    config = tmp_path / "config.yaml"
    config.write_text(
        f"loss: conisi\nmodel: {checkpoint('bert')}\ndata: {corpus}\ncolumn: body\noutput_dir: {tmp_path / 'file'}\n"
        "per_device_train_batch_size: 4\nmax_steps: 9\ntemperature: 2e-1\nlearning_rate: 1e-3\ndev: none\n"
    )
    assert main(["train", str(config), "--max_steps", "2"]) == 0
    more = ["--loss", "conisi", "--temperature", "0.2", "--learning_rate", "1e-3"]
    assert main([*words, *more]) == 0
    first, second = trainers
    assert first.state.global_step == second.state.global_step == 2
    assert_same_weights(tmp_path / "file", tmp_path / "out")


def assert_same_weights(*folders):
    first, second = (load_file(folder / "model.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_recipe_gives_way(words, tmp_path, capsys, trainers):
    more = ["--recipe", "conisi-s-bert-base", "--interaction_weight", "0.3", "--learning_rate", "1e-3"]
    assert main([*words, *more, "--dev", "none", "--repeats", "false"]) == 0
    (trainer,) = trainers
    assert trainer.evaluator is None
    assert (trainer.args.learning_rate, trainer.loss.interaction_weight) == (1e-3, 0.3)
    output = capsys.readouterr().out
    assert all(text in output for text in recipes.load("conisi-s-bert-base").differs)
    assert "No dev" in output.splitlines()[-3]
    assert not (tmp_path / "out" / "verdict.json").exists()


def documents(folder, shuffled=False):
    """A table of 90 titles of the bodies' words; shuffled, they are those of other rows."""
    path = folder / "articles.csv"
    write_documents(path, 90)
    if shuffled:
        rows = [line.split(",", 2) for line in path.read_text(encoding="utf-8").splitlines()]
        titles = [title for _, title, _ in rows[1:]]
        titles = ["title", *titles[40:], *titles[:40]]
        path.write_text("\n".join(f"{n},{title},{body}" for (n, _, body), title in zip(rows, titles, strict=True)))
    return path


@pytest.mark.filterwarnings(
    "ignore:The two texts of a row match only", "ignore:max_length is 96", "ignore:Of the first"
)
def test_own_text_gives_a_verdict_question_by_question(words, tmp_path, capsys, trainers):
    path = documents(tmp_path)
    words[words.index("--data") + 1], words[words.index("--column") + 1] = str(path), "title,body"
    words[words.index("--max_steps") + 1] = "12"
    assert (
        main([*words, "--recipe", "own-text", "--dev", "corpus", "--pooling", "mean", "--learning_rate", "1e-2"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    (compared,) = (line for line in lines if "questions" in line and "interval" in line)
    assert re.search(r"\d+ find their document higher than before and \d+ lower", compared)
    assert any(re.match(r"2 runs of 12 steps take about \d+ (s|min)", line) for line in lines)
    assert any(re.match(r"Test: \d+ sentences of \d+ held-out documents", line) for line in lines)
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert lines[-1] == f"VERDICT: {verdict['verdict']}"
    assert verdict["reason"] in lines[-3]
    assert verdict["gain"]["low"] <= verdict["gain"]["mean"] <= verdict["gain"]["high"]
    assert verdict["scores"].keys() == verdict["scores_with_bm25"].keys() == {"start", "mixture"}
    command = shlex.split(lines[-2].rpartition(": ")[2])
    assert command[:3] == ["st-contrastive", "search", str(path)]
    parsed = cli.parse(command[1:])
    is_start = "started from" in lines[-3]
    assert is_start == (verdict["saved"] == "start") == (verdict["verdict"] != "BETTER")
    assert (parsed.column, parsed.bm25, parsed.pooling) == ("title,body", is_start, "keep" if is_start else "mean")


def test_shuffled_titles_are_refused(words, tmp_path, capsys):
    path = documents(tmp_path, shuffled=True)
    words[words.index("--data") + 1], words[words.index("--column") + 1] = str(path), "title,body"
    assert main([*words, "--loss", "simcse", "--pooling", "mean"]) == 2
    assert re.search(r"column: .*belong together.*\d+ %", capsys.readouterr().err)
    assert not [*tmp_path.glob("out/*")]


@pytest.fixture
def advice():
    """``advice(settings, **result)``: what to type after a run with these settings that came to this result."""

    def read(settings, **result):
        trainer = SimpleNamespace(model=[Pooling(8, "cls")])
        plan = RunPlan.from_yaml("", {"output_dir": "out", **settings})
        return next_step(recipes.Run(trainer, **result), plan)

    return read


def scores(*values):
    return dict(zip(("start", "trained"), values, strict=True))


@pytest.mark.parametrize(
    ("values", "mix", "expected"),
    [
        ((0.5, 0.5), None, "more steps"),
        ((0.5, 0.4), None, "try --learning_rate 3e-06 or --mix 0.5"),
        ((0.5, 0.4), 0.5, "try --learning_rate 3e-06,"),
    ],
)
def test_a_lower_rate_is_advised_where_the_score_changed(advice, values, mix, expected):
    settings = {"loss": "simcse", "learning_rate": 1e-5, "mix": mix}
    assert expected in advice(settings, scores=scores(*values), saved="start")


@pytest.mark.parametrize(("mixed_rank", "expected"), [(1, "search a.txt out 'a query' --bm25"), (3, "--learning_rate")])
def test_bm25_is_advised_where_it_helps_and_training_did_not(advice, mixed_rank, expected):
    owners, leads = np.arange(2), np.zeros(2)
    start = Judgement(owners, np.full(2, 2.0), leads, np.full(2, float(mixed_rank)))
    settings = {"loss": "simcse", "model": "start", "data": "a.txt", "dev": "corpus"}
    judged = {"start": start, "trained": start}
    assert expected in advice(settings, scores=scores(0.5, 0.4), saved="start", judgements=judged)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"dev": "corpus", "data": "a b.txt"}, "search 'a b.txt' start out 'a query' --pooling cls"),
        (
            {"data": "a.csv", "column": "title,body"},
            "search a.csv start out 'a query' --column title,body --pooling cls",
        ),
        ({"data": "a.csv", "column": "body"}, "search a.csv start out 'a query' --column body --pooling cls"),
        ({"data": "a.txt"}, "search a.txt start out 'a query' --pooling cls"),
        ({}, "SentenceTransformer('out') loads it."),
    ],
)
def test_the_next_step_needs_no_network(advice, settings, expected):
    assert advice({"loss": "simcse", "model": "start", **settings}, saved="trained").endswith(expected)


def test_behind_stage_1_comes_stage_2(advice):
    texts = {"data": "a.csv", "column": "body", "segment": "de"}
    command = advice({"loss": "pretraining", "model": "start", **texts}, saved="trained")
    parsed = cli.parse(shlex.split(command)[1:])
    assert "--auxiliary out" in " ".join(parsed.rest)
    assert parsed.options == {"loss": "infocse", "model": "out", "output_dir": "out-stage2", **texts}


def test_a_start_with_a_pooling_is_compared_under_its_own(build, tmp_path, advice):
    build().save_pretrained(str(tmp_path / "start"))
    settings = {"loss": "simcse", "model": str(tmp_path / "start"), "data": "a.txt"}
    assert "--pooling" not in advice(settings, saved="trained")


@pytest.mark.parametrize("mix", [None, "0.5"])
@pytest.mark.parametrize("rate", ["0", "3e-2"])
def test_a_dev_gives_a_verdict(words, sts, tmp_path, capsys, trainers, rate, mix):
    more = ["--loss", "simcse", "--dev", str(sts / "tiny" / "test.jsonl"), "--eval_steps", "1"]
    more += [] if mix is None else ["--mix", mix]
    assert main([*words, *more, "--learning_rate", rate]) == 0
    log = [entry["eval_dev_spearman"] for entry in trainers[0].state.log_history if "eval_dev_spearman" in entry]
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if "score" in line.lower()]
    assert [re.search(r"[-\d.]+$", line)[0] for line in said[:3]] == [f"{100 * score:.2f}" for score in log]
    assert lines.index(said[0]) < lines.index(said[1])  # before the first step
    first, saved, following, verdict = lines[-4:]
    before, after = map(float, re.findall(r"-?\d+\.\d+", first))
    assert before == round(100 * log[0], 2)
    assert mix is not None or after == round(100 * max(log[1:]), 2)
    best = max(before, after)
    kind = "started from" if best == before else "the trained weights," if mix is None else "the mixture"
    assert kind in saved
    assert str(tmp_path / "out") in saved
    assert ("--learning_rate" if best == before else "search") in following
    expected = "BETTER" if best != before else "NO DIFFERENCE" if after == before else "WORSE"
    assert verdict == f"VERDICT: {expected}"


def test_a_metric_that_no_score_has_is_one_line(words, sts, capsys):
    more = ["--loss", "simcse", "--dev", str(sts / "tiny" / "test.jsonl"), "--eval_steps", "1"]
    assert code([*words, *more, "--metric_for_best_model", "loss"]) == 2
    assert "eval_loss', which is not found" in capsys.readouterr().err.splitlines()[-1]


def test_pairs_of_columns(words, corpus, capsys, trainers):
    rows = [{"title": f"{text} {number}", "body": text} for number, text in enumerate(SENTENCES)]
    corpus.with_suffix(".jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {"title": "", "body": "b"}])
    )
    words[words.index("--data") + 1] = str(corpus.with_suffix(".jsonl"))
    words[words.index("--column") + 1] = "title,body"
    assert main([*words, "--loss", "simcse"]) == 0
    assert trainers[0].train_dataset[:] == {
        name: [row[k] for row in rows] for name, k in (("sentence", "title"), ("other", "body"))
    }
    assert "1 empty" in capsys.readouterr().out


def test_describe(checkpoint, corpus, capsys):
    words = ["describe", str(corpus), "--model", str(checkpoint("bert"))]
    assert main([*words, "--column", "body"]) == 0
    assert "12 read" in capsys.readouterr().out
    assert main([*words, "--column", "id,body"]) == 0
    assert "'id', 'body'" in capsys.readouterr().out
    for column, *more in (["text"], ["body,text"], ["id,body", "--pairs", "first"]):
        assert main([*words, "--column", column, *more]) == 2
        assert column.split(",")[-1] in capsys.readouterr().err


def test_a_loss_in_the_current_folder(words, tmp_path, monkeypatch, trainers):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_loss_of_mine.py").write_text("from tests.losses_of_ones_own import Shrinking as Mine\n")
    assert main([*words, "--loss", "a_loss_of_mine:Mine", "--factor", "0.25"]) == 0
    assert trainers[0].loss.factor == 0.25


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused(words, tmp_path, name, capsys):
    """As of a variable of the shell that is not set: it would be the current folder."""
    (tmp_path / "empty.yaml").write_text(f"loss: simcse\noutput_dir: '{name}'\n")
    lines = [([*words, "--loss", "simcse", f"--{option}", name], option) for option in ("output_dir", "dev", "column")]
    lines += [(["train", str(tmp_path / "empty.yaml"), *words[1:7]], "output_dir")]
    lines += [(["describe", name, "--model", "m"], "name is empty"), (["recipes", name], "name is empty")]
    for line, match in lines:
        assert code(line) == 2
        assert match in capsys.readouterr().err


def test_another_processs_error_is_printed(words, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "3")
    assert main([*words, "--loss", "bert"]) == 2
    assert re.search("process 3.*'bert'", capsys.readouterr().err)


@pytest.mark.filterwarnings("ignore:.*NaN")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_collapsed_run_exits_with_1(words, tmp_path):
    assert main([*words, "--loss", "simcse", "--max_steps", "4", "--learning_rate", "1e30"]) == 1
    assert not (tmp_path / "out" / "modules.json").exists()


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ([], "--loss"),
        (["--loss", "simcse", "--recipe", "mini-simcse"], "--recipe"),
        (["--loss", "bert"], "'bert'"),
        (["--recipe", "bert"], "'bert'"),
        (["--loss", "simcse", "--temperature"], "--temperature"),
        (["--loss", "simcse", "--tau", "1"], "tau"),
        (["--loss", "simcse", "--outputdir", "out"], "Did you mean output_dir"),
        (["--loss", "simcse", "--dev"], "--dev needs a value"),
        (["--loss", "simcse", "--batch_size", "4"], "Use per_device_train_batch_size"),
        (["--loss", "simcse", "--epochs", "4"], "Use num_train_epochs"),
        (["--loss", "simcse", "--learnig_rate", "4"], "Did you mean learning_rate"),
        (["--loss", "simcse", "--temp", "4"], "Use temperature"),
        (["--loss", "simcse", "--columns", "body"], "Did you mean column"),
        (["--loss", "simcse", "--stage1", "{max_steps: 1}"], "a recipe with a first stage"),
        (["--loss", "infocse", "--stage1", "fast"], "--stage1 fast must be settings"),
        (["--loss", "simcse", "--column", "title"], "title"),
        (["--loss", "simcse", "--column", "title", "--column=body"], "--column appears twice"),
        (["--loss", "simcse", "--data", "/no/such.csv"], "/no/such.csv"),
        (["--loss", "simcse", "--mix", "half"], "--mix"),
        (["--loss", "simcse", "--repeats", "2"], "repeats"),
        (["--loss", "simcse", "--num_train_epochs", "0", "--max_steps", "-1"], "num_train_epochs"),
        (["--loss", "simcse", "--repetition-rate=0.1"], "belongs to momentum"),
        (["--loss", "simcse", "--report_to", "tensorboard"], "TensorBoard"),
        (["--loss", "no.such.module:Loss"], "no.such"),
        (["--loss", "tests.cases:state_of"], "can't be imported"),
    ],
)
def test_bad_input_is_one_line(words, capsys, more, match):
    assert code([*words, *more]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if "st-contrastive" in line][-1]
    assert match in error


@pytest.mark.parametrize("name", ["/no/such.yaml", "own-text"])
def test_a_missing_file_of_settings_is_named(words, capsys, name):
    assert code(["train", name, *words[1:]]) == 2
    assert {"own-text": "type --recipe own-text"}.get(name, f"{name}: ") in capsys.readouterr().err


def test_the_home_directory_and_a_name_that_the_terminal_can_not_print(words, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main([*words, "--loss", "simcse", "--output_dir", "~/Übung"]) == 0
    assert (tmp_path / "Übung" / "modules.json").is_file()
    screen.flush()
    assert rb"\xdcbung" in screen.buffer.getvalue()


def test_help_needs_no_torch():
    script = (
        "import sys, contextlib\nfrom st_contrastive.cli import main\n"
        "with contextlib.suppress(SystemExit):\n    main(['train', '--help'])\nprint('torch' in sys.modules)"
    )
    shown = run_python("-c", script)
    assert shown.endswith("False\n")
    assert "--loss NAME" in shown


@pytest.mark.long
def test_two_processes(words, sts, tmp_path):
    words += ["--loss", "simcse", "--save_steps", "1", "--eval_steps", "1", "--use_cpu"]
    words += ["--dev", str(sts / "tiny" / "test.jsonl")]
    assert run_python(*TORCHRUN, 2, "-m", "st_contrastive", *words).count("Saved in") == 1
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["rain"]).shape == (1, 32)
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert state["global_step"] == 2


def test_recipes_are_listed(capsys):
    assert main(["recipes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == recipes.names()
    assert main(["recipes", "mini-conisi"]) == 0
    printed, recipe = capsys.readouterr().out, recipes.load("mini-conisi")
    assert all(f"# - {line}\n" in printed for line in (*recipe.notes, *recipe.differs))
    assert main(["recipes", "none"]) == 2
    assert "'none'" in capsys.readouterr().err


def test_without_wordnet(words, monkeypatch, capsys):
    monkeypatch.setattr("st_contrastive.augmentations._reader", mock.Mock(side_effect=LookupError("a page of text")))
    monkeypatch.setattr("st_contrastive.recipes.build.load_model", lambda *args: pytest.fail("a model is loaded"))
    for more in (["--loss", "conisi", "--antonyms", "1"], ["--recipe", "conisi-o2-bert-base", "--dev", "none"]):
        assert main([*words, *more]) == 2
        assert "WordNet" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Of the last 10 translations")
def test_translate(seq2seq, corpus, tmp_path, capsys):
    words = ["translate", "--model", seq2seq, "--data", str(corpus), "--column", "body", "--prefix", "german : "]
    output = tmp_path / "pairs.jsonl"
    assert main([*words, "--output", str(output), "--max_length", "8"]) == 0
    pairs = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [pair["sentence"] for pair in pairs] == SENTENCES
    assert main([*words, "--output", str(tmp_path), "--max_length", "8"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_the_time_of_a_run_counts_scores_and_checkpoints(monkeypatch, capsys):
    """Ten of twenty steps took 10 s, a score takes 60 s, and there are four on the way and one at the end."""
    now = iter([200.0, 210.0, 210.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(now))
    progress, state = _progress.Progress(is_scored=True), TrainerState(max_steps=20, eval_steps=5, save_steps=5)
    state.is_world_process_zero = True
    progress.print_start(0.5, 60.0)
    progress.on_train_begin(None, state, None)
    state.global_step = 10
    arguments = SimpleNamespace(eval_strategy="steps", save_strategy="steps")
    progress.on_step_end(arguments, state, None, model=torch.nn.Linear(8, 8))
    assert "20 steps take about 5 min" in capsys.readouterr().out


def test_a_soup_names_its_runs(words, tmp_path, capsys):
    assert main([*words, "--loss", "simcse", "--soup", "2", "--seed", "5"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("Run ")] == [
        "Run 1 of 2, seed 5:",
        "Run 2 of 2, seed 6:",
    ]
    assert printed.count("Rows: ") == 1
    assert (tmp_path / "out" / "run2").is_dir()


def test_two_stages_in_a_folder_called_stage1(words, checkpoint, tmp_path, capsys):
    more = ["--model", str(checkpoint("bert-mlm")), "--output_dir", str(tmp_path / "stage1")]
    assert main([*words, *more, "--loss", "infocse", "--stage1", "{learning_rate: 1e-4}"]) == 0
    printed = capsys.readouterr().out
    assert (printed.count("Stage 1:"), printed.count("Stage 2:")) == (1, 1)
    assert (tmp_path / "stage1" / "stage1" / "modules.json").is_file()


def test_a_small_term_has_its_digits(words, capsys, tmp_path):
    """sentence-transformers logs it as 0.0001 or less."""
    more = ["--loss", "infocse", "--mlm_weight", "1e-5", "--logging_steps", "1", "--max_length", "9"]
    assert main([*words, *more]) == 0
    shown = re.findall(r"mlm (\S+)", capsys.readouterr().out)
    assert shown
    assert all(1e-6 < float(value) < 1e-3 and value not in ("0.0001", "0") for value in shown)


FLAGS = [
    (["--overwrite_output_dir"], "no setting overwrite_output_dir"), (["--overwrite_output_dir", "true"], "output_dir"),
    (["--mlp_only_train"], "no setting mlp_only_train"), (["--evaluation_strategy", "steps"], "Use eval_strategy"),
    (["--model_name_or_path", "bert"], "Use model"), (["--train_file", "a.txt"], "Use data"),
    (["--pooler_type", "cls"], "Use pooling"), (["--do_mlm"], "Use mlm_weight"), (["--no_cuda"], "Use use_cpu"),
    (["--max_seq_length", "32"], "Use max_length"), (["--an_option_of_nobody"], "no setting an_option_of_nobody"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "match"), FLAGS, ids=[" ".join(more) for more, _ in FLAGS])
def test_options_of_other_tools_are_answered_by_name(words, capsys, more, match):
    assert main([*words, "--loss", "simcse", *more]) == 2
    assert match in capsys.readouterr().err
