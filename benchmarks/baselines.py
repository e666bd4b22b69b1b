"""Two baselines of the papers' tables, CT and DCLR, trained where the mini recipes are.

    python -m benchmarks.baselines --methods simcse ct dclr --seeds 0 1 2 --data wiki.txt.gz --suites data/ \
        --dev data/sts/stsb/dev.jsonl.gz --json benchmarks/results/baselines.json

The setting is that of ``mini-simcse``, and its numbers are read from that recipe: all-MiniLM-L6-v2 under [CLS] pooling,
150 steps, a batch of 64, 32 tokens, linear decay from 3e-5, the best of the evaluations on ``--dev``. Cells have the
form of ``benchmarks.replicate``'s. Each is trained in a process of its own and written when it ends; a cell that is
in the file is not run again.

``simcse`` is the recipe itself, for comparison in the same file.

``ct`` is Contrastive Tension (Carlsson et al., ICLR 2021) in its original form: sentence-transformers'
``ContrastiveTensionLoss`` on the batches of its ``ContrastiveTensionDataLoader``, not the later variant with in-batch
negatives. Two copies of the encoder, pairs labelled 1 (the same sentence) or 0 (another), 7 negatives a positive,
binary cross-entropy of the dot product; the second copy is scored. The authors' code (Training.py of
FreddeFrallan/Contrastive-Tension) has 16 pairs a batch and RMSprop at 1e-5, lowered every 500 steps down to 2e-6. Here
a batch has 64 pairs, so that a step encodes as many texts as SimCSE's, under AdamW with linear decay. Gradients are not
clipped: the loss is a sum over pairs, and the Trainer would clip one copy only. ``--lr 1e-5`` is the authors' learning
rate.

``dclr`` is DCLR (Zhou et al., ACL 2022, arXiv 2205.00656): :class:`DCLRLoss`, with ``simcse`` of the same seed as the
complementary model.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import ContrastiveTensionDataLoader, ContrastiveTensionLoss
from torch import Tensor
from transformers import set_seed

from benchmarks import replicate
from benchmarks._results import read, software
from st_contrastive.components import TanhHead
from st_contrastive.encoder import Rows
from st_contrastive.losses.base import ContrastiveLoss
from st_contrastive.recipes import recipe

METHODS = ("simcse", "ct", "dclr")
SETTING = "mini-simcse"
NEGATIVES = 7  # of a positive pair, in CT
RESULTS = Path(__file__).parent / "results" / "baselines.json"


def cosines(rows: Tensor, columns: Tensor) -> Tensor:
    """(N, d) and (M, d) to (N, M), in float32 at least."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    with torch.autocast(rows.device.type, enabled=False):
        return F.normalize(rows.to(wide), dim=-1) @ F.normalize(columns.to(wide), dim=-1).T


def noise_negatives(
    anchors: Tensor, positives: Tensor, count: int, *, temperature: float, steps: int, step_size: float
) -> Tensor:
    r"""Gaussian vectors moved to where the representation space is not uniform: DCLR's noise-based negatives.

    Each starts from N(0, 1) and takes ``steps`` steps :math:`\hat h + \beta\, g / \lVert g \rVert` up the gradient g of
    InfoNCE with the noise among the negatives, as the authors' code has it.

    Returns:
        (count, d), without a gradient.
    """
    anchors, positives = anchors.detach(), positives.detach()
    noise = torch.randn(count, anchors.shape[1], device=anchors.device, dtype=anchors.dtype)
    targets = torch.arange(len(anchors), device=anchors.device)
    with torch.enable_grad():
        for _ in range(steps):
            noise.requires_grad_()
            logits = torch.cat([cosines(anchors, positives), cosines(anchors, noise)], dim=1) / temperature
            (gradient,) = torch.autograd.grad(F.cross_entropy(logits, targets), noise)
            noise = noise.detach() + step_size * F.normalize(gradient, dim=-1)
    return noise.detach()


def weighted_contrast(anchors: Tensor, positives: Tensor, noise: Tensor, kept: Tensor, *, temperature: float) -> Tensor:
    r"""DCLR's objective, mean over the anchors.

    .. math::
        -\log \frac{e^{s(h_i, h_i^+)/\tau}}
        {e^{s(h_i, h_i^+)/\tau} + \sum_{\hat h} e^{s(h_i, \hat h)/\tau}
        + \sum_{j \ne i} \alpha_{ij} e^{s(h_i, h_j^+)/\tau}}

    Args:
        anchors: (N, d).
        positives: (N, d).
        noise: (K, d).
        kept: (N, N) truth values, alpha; its diagonal is not read.
        temperature: tau.
    """
    own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    in_batch = cosines(anchors, positives).masked_fill(~(kept | own), -torch.inf)
    logits = torch.cat([in_batch, cosines(anchors, noise)], dim=1) / temperature
    return F.cross_entropy(logits, torch.arange(len(anchors), device=anchors.device))


class DCLRLoss(ContrastiveLoss):
    """SimCSE whose negatives are weighted by a complementary model, with noise as further negatives (DCLR).

    A negative whose cosine with the anchor under the complementary model is ``threshold`` or more gets weight 0.
    Defaults are those of the authors' script for BERT-base (RUCAIBox/DCLR, run.sh: phi 0.9, noise_times 1) and of their
    code (step size 1e-3, noise from N(0, 1)). Three things differ. ``noise_steps`` is ours, for their default was not
    found. The complementary model is read without dropout. And the loss is the negative logarithm of the paper's
    objective: their code multiplies an excluded logit by 0, which leaves it in the sum as 1, and adds the binary
    cross-entropy of all negatives.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module, its dropout on.
        complementary: a trained SimCSE model with the same tokenizer. It is not trained.
        temperature: tau.
        threshold: phi.
        noise_multiple: k, noise vectors over sentences of the batch.
        noise_steps: t, steps up the gradient.
        noise_step_size: beta.
        head: put SimCSE's Linear and Tanh on top of the embeddings, in training only.
        log_terms: return a dict of terms; False returns the sum as one tensor.
    """

    columns = {1: "sentences"}

    def __init__(
        self,
        model: SentenceTransformer,
        complementary: SentenceTransformer,
        temperature: float = 0.05,
        threshold: float = 0.9,
        noise_multiple: float = 1.0,
        noise_steps: int = 4,
        noise_step_size: float = 1e-3,
        head: bool = True,
        log_terms: bool = True,
    ) -> None:
        super().__init__(
            model, temperature=temperature, gather_across_devices=False, log_terms=log_terms, mini_batch_size=None
        )
        # In a tuple it is no part of this module: neither trained, nor put into training mode, nor saved.
        self._complementary = (complementary.to(model.device).eval(),)
        self.threshold, self.noise_multiple = threshold, noise_multiple
        self.noise_steps, self.noise_step_size = noise_steps, noise_step_size
        width = model.get_embedding_dimension()
        self.head = TanhHead(width) if head else None
        self._excluded = torch.zeros(2, device=model.device)
        self.warn_without_dropout()
        self.finish_setup()

    @property
    def excluded_share(self) -> float:
        """Of all negatives of the batches that were trained on, the share that got weight 0."""
        excluded, pairs = self._excluded.tolist()
        return excluded / max(pairs, 1.0)

    @torch.no_grad()
    def kept(self, rows: Rows) -> Tensor:
        """(N, N) truth values: whether sentence j is a negative of sentence i."""
        vectors = self._complementary[0](rows.features())["sentence_embedding"]
        return cosines(vectors, vectors) < self.threshold

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        vectors = torch.cat(self.by_rows(lambda batch: self.sentences_of(batch, batch), columns[0]))
        if self.head is not None:
            vectors = self.head(vectors)
        anchors, positives = vectors.chunk(2)
        kept = self.kept(columns[0])
        if self.is_learning:
            rows = len(kept)
            diagonal = (~kept).diagonal().sum()
            self._excluded += torch.stack([(~kept).sum() - diagonal, diagonal.new_tensor(rows * (rows - 1))])
        noise = noise_negatives(
            anchors,
            positives,
            int(self.noise_multiple * len(anchors)),
            temperature=self.temperature,
            steps=self.noise_steps,
            step_size=self.noise_step_size,
        )
        return {"contrastive": weighted_contrast(anchors, positives, noise, kept, temperature=self.temperature)}

    def get_config_dict(self) -> dict[str, Any]:
        names = ("temperature", "threshold", "noise_multiple", "noise_steps", "noise_step_size", "log_terms")
        return {**{name: getattr(self, name) for name in names}, "head": self.head is not None}

    @property
    def citation(self) -> str:
        return """
@inproceedings{zhou-etal-2022-debiased,
    title = "Debiased Contrastive Learning of Unsupervised Sentence Representations",
    author = "Zhou, Kun and Zhang, Beichen and Zhao, Xin and Wen, Ji-Rong",
    booktitle = "Proceedings of the 60th Annual Meeting of the Association for Computational Linguistics",
    year = "2022",
    publisher = "Association for Computational Linguistics",
    url = "https://arxiv.org/abs/2205.00656",
}
"""


def tension_batches(sentences: list[str], pairs: int) -> Iterator[list[Any]]:
    """Batches of CT's labelled pairs without end, from the library's loader: each epoch shuffled anew.

    Raises:
        ValueError: the sentences do not fill one batch.
    """
    loader = ContrastiveTensionDataLoader(list(sentences), batch_size=pairs, pos_neg_ratio=NEGATIVES + 1)
    if not len(loader):
        raise ValueError(
            f"{len(sentences)} sentences do not fill one batch of {pairs} pairs: give --data more of them."
        )
    while True:
        yield from loader


def tension_dataset(sentences: list[str], steps: int, pairs: int, seed: int) -> Dataset:
    """CT's pairs for so many steps, in the order of the loader's batches."""
    random.seed(seed)  # the loader draws from it
    batches = tension_batches(sentences, pairs)
    examples = [example for _ in range(steps) for example in next(batches)]
    return Dataset.from_dict(
        {
            "sentence_a": [example.texts[0] for example in examples],
            "sentence_b": [example.texts[1] for example in examples],
            "label": [example.label for example in examples],
        }
    )


def in_order(dataset: Dataset, **options: Any) -> DefaultBatchSampler:
    """Batches of rows as they come, so that each keeps its positives and negatives."""
    return DefaultBatchSampler(range(len(dataset)), **options)


def train(method: str, seed: int, args: argparse.Namespace, complementary: str, out: str) -> dict[str, Any]:
    """Train a cell and save the model, with its record, in ``out``; what else is known of it."""
    from st_contrastive import text_dataset
    from st_contrastive.cli._models import cut_texts, trained_model
    from st_contrastive.cli._record import RunRecord, digests
    from st_contrastive.evaluation import STSEvaluator
    from st_contrastive.inputs import read_corpus
    from st_contrastive.training import ContrastiveTrainer, KeepBest

    options = recipe(SETTING).options
    steps, pairs = args.steps or options["max_steps"], options["batch_size"]
    sentences = read_corpus(args.data).sentences
    set_seed(seed)
    model = trained_model(options["model"], None, "cls", recipe=True)
    own_length = cut_texts(model, options["model"], options["max_length"])
    trainer_class, loss, more = ContrastiveTrainer, None, {}
    if method == "ct":
        loss = ContrastiveTensionLoss(model)
        dataset = tension_dataset(sentences, steps, pairs, seed)
        trainer_class, more = SentenceTransformerTrainer, {"batch_sampler": in_order, "max_grad_norm": 0.0}
    else:
        loss = DCLRLoss(model, SentenceTransformer(complementary), **recipe(SETTING).loss_arguments)
        cut_texts(loss._complementary[0], complementary, options["max_length"])
        dataset = text_dataset(sentences)
    evaluator = STSEvaluator(args.dev, "dev", dtype=torch.bfloat16 if args.bf16 else None) if args.dev else None
    lr = args.lr or options["learning_rate"]
    recorded = argparse.Namespace(
        method=method, data=args.data, dev=args.dev, seed=seed, bf16=args.bf16, learning_rate=lr, max_steps=steps,
        batch_size=pairs, max_length=options["max_length"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as work:
        record = RunRecord(recorded, digests(recorded), loss, model, evaluator)
        best = KeepBest("dev_spearman") if evaluator else None
        trainer = trainer_class(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=work,
                per_device_train_batch_size=pairs,
                learning_rate=lr,
                max_steps=steps,
                save_strategy="no",
                eval_strategy="steps" if evaluator else "no",
                eval_steps=min(options["evaluate_steps"], steps) if evaluator else None,
                logging_steps=10,
                logging_nan_inf_filter=False,
                seed=seed,
                bf16=args.bf16,
                use_cpu=model.device.type == "cpu",
                report_to="none",
                disable_tqdm=True,
                **more,
            ),
            train_dataset=dataset,
            loss=loss,
            evaluator=evaluator,
            callbacks=[record, *([best] if best else [])],
        )
        trainer.train()
        model.max_seq_length = own_length
        model.save_pretrained(out)
        model.max_seq_length = options["max_length"]
        record.write(Path(out), trainer.state, best)
    if method == "ct":
        return {"pairs": pairs, "negatives_per_positive": NEGATIVES, "optimizer": "AdamW"}
    return {"excluded_share": loss.excluded_share}


def in_own_process(*arguments: Any) -> dict[str, Any]:
    """:func:`train` in a new process, so that the peak of memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(train, *arguments).result()


def options_of(method: str, args: argparse.Namespace) -> str:
    """What differs from the setting, as options of a command; part of a cell's key."""
    words = [*(["--max-steps", str(args.steps)] if args.steps else []), *(["--bf16"] if args.bf16 else [])]
    words += ["--lr", f"{args.lr:g}"] if args.lr and method == "ct" else []
    return " ".join(words)


def place(method: str, seed: int, args: argparse.Namespace, folder: str) -> str:
    """Where the cell's model goes: under --models, else in the work folder. Other options have another place."""
    words = "\n".join([method, str(seed), options_of(method, args), Path(args.data).name, str(bool(args.dev))])
    return str(Path(args.models or folder, f"{method}-{seed}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"))


def digests_of(args: argparse.Namespace) -> dict[str, str]:
    """SHA-256 of the files that a cell is trained with."""
    from st_contrastive.cli._record import digests

    return digests(argparse.Namespace(data=args.data, dev=args.dev, model=None))


def cell(method: str, seed: int, args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Train, unless the model is there, and score."""
    out, known = place(method, seed, args, folder), {}
    if method == "simcse":
        simcse = argparse.Namespace(
            data=args.data, dev=args.dev, loss_arg=[], options=options_of(method, args), base=""
        )
        words = replicate.words_of(SETTING, seed, simcse)
    else:
        words = []
        if not Path(out, "training_run.json").is_file():
            complementary = ""
            if method == "dclr":
                complementary = place("simcse", seed, args, folder)
                if not Path(complementary, "training_run.json").is_file():
                    print(f"Training the complementary model of seed {seed}.", flush=True)
                    cell("simcse", seed, argparse.Namespace(**{**vars(args), "suite": []}), folder)
            Path(f"{out}.commit").parent.mkdir(parents=True, exist_ok=True)
            Path(f"{out}.commit").write_text(replicate.commit(), encoding="utf-8")
            known = in_own_process(method, seed, args, complementary, out)
    about = replicate.trained(words, out, digests_of(args))  # which reads the record of a run that was made
    return {**about, **known, "scores": replicate.scored(out, args.suite, args)}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--methods", nargs="+", choices=METHODS, default=["ct", "dclr"])
    made.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    made.add_argument("--data", required=True, help="sentences, one per line")
    made.add_argument("--dev", help="the STS Benchmark's development split; without, the last step's weights are kept")
    made.add_argument("--suites", required=True, help="folder with sts, retrieval, transfer")
    made.add_argument("--suite", nargs="+", default=["sts"], help="which of them; default: sts")
    made.add_argument("--score-length", type=int, help="tokens a text in scoring; default: as benchmarks.replicate")
    made.add_argument("--models", help="keep the trained models in this folder, and go on with those that are there")
    made.add_argument("--lr", type=float, help="CT's learning rate; default: the setting's")
    made.add_argument("--steps", type=int, help="default: the setting's")
    made.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    made.add_argument("--json", default=str(RESULTS), help="where the results go, and what is there is not run again")
    return made


def main() -> None:
    args = parser().parse_args()
    files = digests_of(args)
    data = Path(args.data).name
    if other := replicate.other_files(read(args.json, replicate.EMPTY), data, "", files):
        raise SystemExit(f"{args.json} has cells of another --{other}: rename it.")
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for method in args.methods:
                about = {
                    "recipe": SETTING if method == "simcse" else method, "label": "", "base": "", "data": data,
                    "seed": seed, "options": options_of(method, args), "set": [],
                }  # fmt: skip
                if any(replicate.key(one) == replicate.key(about) for one in read(args.json, replicate.EMPTY)["cells"]):
                    print(f"{about} is there and not run again.", flush=True)
                    continue
                found = {**about, **software(), **cell(method, seed, args, folder)}
                replicate.add(args.json, found)
                print(about, found["best_step"], found["seconds"], found["scores"], flush=True)


if __name__ == "__main__":
    main()
