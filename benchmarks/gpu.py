"""What a training step of each loss costs on a GPU, in at most nine minutes a call; called again, it goes on.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --device cpu --smoke --json smoke.json

The encoder is BERT-base with random weights, its texts are made in code: nothing is downloaded. Cells, in this order:

- steps: our step, the bare encoder passes, the straightforward form (all as in ``benchmarks._forms``) and
  sentence-transformers' MultipleNegativesRankingLoss, at 64 and 512 sentences of at most 32 tokens, in float32 with
  TF32 products and in bfloat16 autocast: milliseconds, TFLOP/s, and peak memory above weights and AdamW's state.
- options: our step with each way to save work changed: whether it pays on this GPU.
- large: 16,384 sentences in mini-batches, beside CachedMultipleNegativesRankingLoss.
- end to end: the Trainer, tokenising included, and what a million sentences take at that rate. It is extrapolated.
- other losses: our steps of the losses that are not in the forms.
- compiled: the steps with ``torch.compile`` in bfloat16.

Steps are timed with CUDA events, after warm-up, all forms in turn on the same batches; medians. Texts are tokenised
before, except end to end; the straightforward form of ConIsI decodes its texts in the step. The results are written
after each cell. A cell that failed is tried again at the end of the next call.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, TrainerCallback, set_seed

import st_contrastive as stc
from benchmarks import _gpu_model
from benchmarks._forms import METHODS, Form, Pass, form, step, translations
from benchmarks._results import read, write
from st_contrastive.distributed import HostValue
from st_contrastive.training import ContrastiveTrainer

RESULTS = Path(__file__).parent / "results" / "gpu.json"
#: Losses without another form than ours.
OTHERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Momentum": (stc.MomentumContrastLoss, {}),
    "Twins, one column": (stc.TwinsLoss, {"train_pooling": "cls"}),
    "InfoCSE with RTD": (stc.InfoCSELoss, {"ablation": stc.InfoCSEAblation(rtd_weight=0.005)}),
    "DiffCSE": (stc.DiffCSELoss, {}),
    "Combined": (stc.CombinedLoss, {}),
    "InfoCSE, stage 1": (stc.AuxiliaryMLMPretrainingLoss, {}),
}
DATASETS: dict[str, Callable[..., Any]] = {
    "SimCSE": stc.text_dataset,
    "ConIsI": stc.conisi_dataset,
    "Twins": stc.twins_dataset,
    "InfoCSE": stc.text_dataset,
}
MNRL = "MultipleNegativesRankingLoss"
MILLION = 1_000_000
#: Seconds that the first cell of a kind may take, before one is known.
USUAL = {"steps": 20, "options": 30, "large": 60, "end to end": 40, "other losses": 15, "compiled": 120}


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    config: BertConfig
    length: int
    batches: tuple[int, ...]
    large: int
    mini_batch: int
    turns: int
    warm_up: int
    inner: int  # steps between two events
    trained: int  # steps of the Trainer
    left_out: int  # of those, before the clock starts
    workers: tuple[int, ...]


FULL = Scale(_gpu_model.BASE, 32, (64, 512), 16_384, 512, 9, 2, 4, 45, 15, (0, 4))
SMOKE = Scale(_gpu_model.TINY, 16, (4,), 12, 5, 1, 1, 1, 3, 1, (0,))


@contextmanager
def read_at_once() -> Iterator[None]:
    """While open, numbers that a step reads are copied, and waited for, where they are computed."""

    def begin(self: HostValue, value: Tensor) -> None:
        self._value, self._copied = value.detach().cpu(), None

    with mock.patch.object(HostValue, "__init__", begin):
        yield


def tokenised_once(model: SentenceTransformer) -> None:
    """Let ``model.preprocess`` give for the same texts what it gave before, on the device."""
    preprocess, known = model.preprocess, {}

    def features(texts: Sequence[str]) -> dict[str, Any]:
        key = tuple(texts)
        if key not in known:
            given = preprocess(list(texts)).items()
            known[key] = {name: value.to(model.device) if isinstance(value, Tensor) else value for name, value in given}
        return dict(known[key])

    vars(model)["preprocess"] = features


class TokenisedOnce:
    """A tokenizer that gives for the same texts what it gave before, on the device."""

    def __init__(self, tokenizer: Any, device: torch.device) -> None:
        self.tokenizer, self.device = tokenizer, device
        self.known: dict[Any, dict[str, Tensor]] = {}

    def __call__(self, *columns: Sequence[str], **options: Any) -> dict[str, Tensor]:
        key = (*map(tuple, columns), *options.items())
        if key not in self.known:
            encoded = self.tokenizer(*columns, **options)
            self.known[key] = {name: value.to(self.device) for name, value in encoded.items()}
        return dict(self.known[key])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


class Bench:
    """The cells, and what they share."""

    def __init__(self, scale: Scale, device: str, folder: Path) -> None:
        self.scale, self.device = scale, device
        _gpu_model.save(folder, scale.config)
        self.folder = folder
        self._texts: list[str] = []
        self._method = ""
        self._forms: dict[str, Form] = {}

    def cells(self) -> list[tuple[str, str, Callable[[], dict[str, Any]]]]:
        """Kind, name and function of each."""
        found: list[tuple[str, str, Callable[[], dict[str, Any]]]] = []

        def add(kind: str, name: str, function: Callable[..., dict[str, Any]], *args: Any) -> None:
            found.append((kind, name, lambda: function(*args)))

        scale = self.scale
        for method in METHODS:
            for size in scale.batches:
                for precision in ("tf32", "bf16"):
                    add("steps", f"{method} {size} {precision}", self.steps, method, size, precision)
                add("options", f"{method} {size} bf16", self.options, method, size)
        for method in (*METHODS, MNRL):
            add("large", f"{method} {scale.large} bf16", self.large, method)
        for method in (*METHODS, MNRL):
            for size in scale.batches:
                add("end to end", f"{method} {size} bf16", self.end_to_end, method, size)
        for method in OTHERS:
            for size in scale.batches:
                add("other losses", f"{method} {size} bf16", self.steps, method, size, "bf16")
        for method in METHODS:
            for size in scale.batches:
                add("compiled", f"{method} {size} bf16", self.compiled, method, size)
        return found

    # What the cells measure.

    def steps(self, method: str, size: int, precision: str) -> dict[str, Any]:
        return self._measured(self._forms_of(method), size, precision)

    def compiled(self, method: str, size: int) -> dict[str, Any]:
        torch._dynamo.reset()
        kinds = ("ours", "passes", "library") if method == "SimCSE" else ("ours", "passes")
        forms = {kind: self._form(method, kind) for kind in kinds}
        for made in forms.values():
            made.loss.model[0].model.compile(backend="inductor" if self.device == "cuda" else "eager")
        # What compiled code multiplies is not counted: it is what the other cells' does.
        return self._measured(forms, size, "bf16", counted=False)

    def options(self, method: str, size: int) -> dict[str, Any]:
        made = self._forms_of(method)["ours"]
        run = step(made, "bf16", self.device)

        def with_(context: Callable[[], AbstractContextManager[None]] = nullcontext, **changed: Any) -> Pass:
            usual = {"narrows_last_layer": True, "saves_padding": False}

            def stepped(texts: Sequence[str]) -> Tensor:
                for name, value in {**usual, **changed}.items():
                    setattr(made.loss, name, value)
                with context():
                    return run(texts)

            return stepped

        runs = {
            "as it is on a GPU": with_(),
            "last layer whole": with_(narrows_last_layer=False),
            "rows grouped by length": with_(saves_padding=True),
        }
        if method == "InfoCSE":  # the others read no number in a step
            runs["numbers read at once"] = with_(read_at_once)
        seconds = self._in_turn(runs, size)
        base = seconds.pop("as it is on a GPU")
        with_()(self._batches(size)[0])  # leaves the loss as it was
        made.loss.saves_padding = None
        return {
            "ms": {"as it is on a GPU": _ms(base), **{name: _ms(own) for name, own in seconds.items()}},
            "over_as_it_is": {name: _ratio(own, base) for name, own in seconds.items()},
        }

    def large(self, method: str) -> dict[str, Any]:
        self._forget()
        scale = self.scale
        if method == MNRL:
            model = self._model()
            loss: Any = CachedMultipleNegativesRankingLoss(model, mini_batch_size=scale.mini_batch)

            def forward(texts: Sequence[str]) -> Tensor:
                found: Tensor = loss([model.preprocess(texts), model.preprocess(texts)], None)
                return found

            made = Form(loss.train(), forward)
        else:
            made = self._form(method, "ours")
            made.loss.mini_batch_size = scale.mini_batch
        run = step(made, "bf16", self.device)
        batch = self._batches(scale.large)[0]
        run(batch)
        seconds = [self._seconds(run, [batch]) for _ in range(2)]
        return {
            "mini_batch_size": scale.mini_batch,
            "seconds": round(statistics.median(seconds), 3),
            "sentences_a_second": round(scale.large / statistics.median(seconds)),
            "peak_mib": self._peak(run, batch),
        }

    def end_to_end(self, method: str, size: int) -> dict[str, Any]:
        self._forget()
        scale = self.scale
        texts = _gpu_model.sentences(scale.trained * size, scale.config.vocab_size)
        found = {}
        for workers in scale.workers:
            set_seed(42)
            model = _gpu_model.load(self.folder, scale.length).to(self.device)
            trainer_class: type[SentenceTransformerTrainer] = ContrastiveTrainer
            if method == MNRL:
                loss: Any = MultipleNegativesRankingLoss(model)
                data = stc.text_dataset(texts)
                data = data.add_column("positive", texts)
                trainer_class = SentenceTransformerTrainer
            else:
                make, options, two = METHODS[method]
                loss = make(model, **options)
                data = DATASETS[method](texts, *([translations(texts)] if two else []))
            with tempfile.TemporaryDirectory() as out:
                given = SentenceTransformerTrainingArguments(
                    out,
                    per_device_train_batch_size=size,
                    max_steps=scale.trained,
                    learning_rate=1e-6,
                    bf16=True,
                    save_strategy="no",
                    logging_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                    dataloader_num_workers=workers,
                    use_cpu=self.device == "cpu",
                )
                given._n_gpu = min(given.n_gpu, 1)  # with more, the Trainer would take DataParallel
                clock = Clock(scale.left_out, scale.trained, self._wait)
                trainer_class(model, given, data, loss=loss, callbacks=[clock]).train()
            rate = (scale.trained - scale.left_out) * size / clock.seconds
            found[f"{workers} workers"] = {
                "sentences_a_second": round(rate),
                "measured_steps": scale.trained - scale.left_out,
                "million_sentences_minutes_extrapolated": round(MILLION / rate / 60, 1),
            }
        return found

    # How they measure it.

    def _measured(self, forms: dict[str, Form], size: int, precision: str, *, counted: bool = True) -> dict[str, Any]:
        runs = {kind: step(made, precision, self.device) for kind, made in forms.items()}
        seconds = self._in_turn(runs, size)
        batch = self._batches(size)[0]
        own = seconds["ours"]
        found: dict[str, Any] = {
            "ms": {kind: _ms(values) for kind, values in seconds.items()},
            "ours_over": {kind: _ratio(own, values) for kind, values in seconds.items() if kind != "ours"},
            "sentences_a_second": round(size / statistics.median(own)),
        }
        if counted:
            counts = {kind: self._tflop(made, batch) for kind, made in forms.items()}
            found["tflop"] = {kind: float(f"{value:.4g}") for kind, value in counts.items()}
            found["tflop_a_second"] = {
                kind: float(f"{value / statistics.median(seconds[kind]):.4g}") for kind, value in counts.items()
            }
        return found | {"peak_mib": {kind: self._peak(run, batch) for kind, run in runs.items()}}

    def _in_turn(self, runs: dict[str, Pass], size: int) -> dict[str, list[float]]:
        scale, batches = self.scale, self._batches(size)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(scale.warm_up + scale.turns):
            given = [batches[(turn * scale.inner + k) % len(batches)] for k in range(scale.inner)]
            for name in list(runs) if turn % 2 else list(runs)[::-1]:
                took = self._seconds(runs[name], given)
                if turn >= scale.warm_up:
                    seconds[name].append(took)
        return seconds

    def _seconds(self, run: Pass, batches: Sequence[Sequence[str]]) -> float:
        """Of one step: the mean of some that follow each other, as they do in training."""
        if self.device != "cuda":
            started = time.perf_counter()
            for batch in batches:
                run(batch)
            return (time.perf_counter() - started) / len(batches)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for batch in batches:
            run(batch)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / len(batches)

    def _tflop(self, made: Form, batch: Sequence[str]) -> float:
        """Matrix products and attention of a forward and backward pass, by PyTorch's counter."""
        with FlopCounterMode(display=False) as counter:
            made.forward(batch).backward()
        made.loss.zero_grad()
        return float(counter.get_total_flops()) / 1e12

    def _peak(self, run: Pass, batch: Sequence[str]) -> int | None:
        """MiB of a step above what is there before it: weights, AdamW's state, and those of other forms."""
        if self.device != "cuda":
            run(batch)
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(batch)
        torch.cuda.synchronize()
        return round((torch.cuda.max_memory_allocated() - before) / 2**20)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    # What they measure it of.

    def _batches(self, size: int) -> list[list[str]]:
        count = size if size == self.scale.large else 8 * size
        if len(self._texts) < count:
            self._texts = _gpu_model.sentences(count, self.scale.config.vocab_size)
        return [self._texts[start : start + size] for start in range(0, count, size)]

    def _model(self) -> SentenceTransformer:
        set_seed(42)
        model = _gpu_model.load(self.folder, self.scale.length).to(self.device)
        tokenised_once(model)
        return model

    def _form(self, method: str, kind: str) -> Form:
        model = self._model()
        if method not in OTHERS:
            made = form(method, kind, "base", self.scale.length, self.device, model)
            if kind == "straightforward":  # which asks for the tokenizer itself
                model[0].processor = SimpleNamespace(tokenizer=TokenisedOnce(model.tokenizer, model.device))
            return made
        make, options = OTHERS[method]
        loss = make(model, log_terms=False, **options).train()
        return Form(loss, lambda texts: loss([model.preprocess(texts)]))

    def _forms_of(self, method: str) -> dict[str, Form]:
        """All forms of a method; those of the last one are kept."""
        if method != self._method:
            self._forget()
            kinds = ["ours"] if method in OTHERS else ["ours", "passes", "straightforward"]
            kinds += ["library"] if method == "SimCSE" else []
            self._forms = {kind: self._form(method, kind) for kind in kinds}
            self._method = method
        return self._forms

    def _forget(self) -> None:
        self._method, self._forms = "", {}
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


class Clock(TrainerCallback):
    """Seconds between the end of step ``first`` and that of step ``last``."""

    def __init__(self, first: int, last: int, wait: Callable[[], None]) -> None:
        self.first, self.last, self.wait = first, last, wait
        self.started = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step in (self.first, self.last):
            self.wait()
            self.seconds, self.started = time.perf_counter() - self.started, time.perf_counter()


def _ms(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds), 3)


def _ratio(mine: list[float], theirs: list[float]) -> dict[str, float]:
    """Of the same turns: median and range."""
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    return {
        "median": round(statistics.median(ratios), 3),
        "min": round(min(ratios), 3),
        "max": round(max(ratios), 3),
    }


def about(args: argparse.Namespace) -> dict[str, Any]:
    """What results must share to stand in one file."""
    cuda = args.device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cuda": torch.version.cuda if cuda else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__,
        "smoke": args.smoke,
    }


def run(args: argparse.Namespace) -> int:
    """Measure cells until the time is up; how many are left."""
    ends = time.monotonic() + 60 * args.minutes
    result = read(args.json, {"about": about(args), "cells": {}})
    if result["about"] != about(args):
        raise SystemExit(f"{args.json} is of {result['about']}, and this is {about(args)}: name another --json.")
    known = result["cells"]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(SMOKE if args.smoke else FULL, args.device, Path(folder))
        cells = [(kind, f"{kind}: {name}", measure) for kind, name, measure in bench.cells()]
        todo = [cell for cell in cells if "failed" in known.get(cell[1], {"failed": ""})]
        todo.sort(key=lambda cell: cell[1] in known)  # those that failed come last
        left = len(todo)
        for kind, name, measure in todo:
            of_kind = [one["took"] for other, one in known.items() if other.startswith(f"{kind}: ")]
            if time.monotonic() + max(of_kind, default=USUAL[kind]) > ends:
                continue  # a shorter one may still fit
            started = time.monotonic()
            try:
                found = measure()
            except Exception as error:  # one cell's, not the whole run's
                found = {"failed": f"{type(error).__name__}: {error}"[:300], "where": traceback.format_exc()[-1500:]}
            known[name] = {**found, "took": round(time.monotonic() - started, 1)}
            left -= "failed" not in found
            write(args.json, result)
            print(name, {key: value for key, value in known[name].items() if key != "where"}, flush=True)
    print(
        f"{len(cells) - left} of {len(cells)} cells are in {args.json}." + (" Run it again to go on." if left else "")
    )
    return left


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0 as long as it could run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--smoke", action="store_true", help="a tiny encoder, to see that the code runs")
    parser.add_argument("--minutes", type=float, default=9, help="begin no cell that would end later; default: 9")
    parser.add_argument("--json", default=str(RESULTS), help=f"where the results go; default: {RESULTS.name}")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("No CUDA device was found. --device cpu --smoke tries the code without one.")
    if args.smoke and args.json == str(RESULTS):
        raise SystemExit("--smoke measures nothing: name a file of its own with --json.")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TwinsLoss was given one column")
            run(args)
    finally:
        torch.set_float32_matmul_precision(before)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
