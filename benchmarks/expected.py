"""What the recipes at full scale need on one device: arithmetic and memory, counted on a few sentences and multiplied.

    python -m benchmarks.expected --data wiki.txt.gz --json benchmarks/results/expected.json

Each recipe's loss is made around an encoder of its shape with random weights, and takes one forward and backward pass
over ``--rows`` sentences padded to one length, as on a GPU, in float32: PyTorch's counter counts the matrix products,
and what autograd keeps is measured. Both grow in proportion to the rows, so they are multiplied by the batch; steps are
those of a million sentences (or of what the recipe says). Nothing of it was run on such a device: time is operations
over a rate that you put in.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel, set_seed

import st_contrastive as stc
from benchmarks._forms import translations
from benchmarks._results import read, software, write
from benchmarks._training import build
from st_contrastive.inputs import documentation_sentences, read_corpus
from st_contrastive.methods import METHODS, build_loss
from st_contrastive.recipes import RECIPES, Recipe

#: Layers, width, heads, inner width, vocabulary. RoBERTa counts as BERT with its vocabulary.
SHAPES = {
    "bert-base-uncased": (12, 768, 12, 3072, 30522),
    "bert-large-uncased": (24, 1024, 16, 4096, 30522),
    "roberta-base": (12, 768, 12, 3072, 50265),
    "bert-base-multilingual-uncased": (12, 768, 12, 3072, 105879),
    "bert-base-chinese": (12, 768, 12, 3072, 21128),
    "distilbert-base-uncased": (6, 768, 12, 3072, 30522),
}
MILLION = 1_000_000


def checkpoint(name: str, length: int, folder: str) -> str:
    """A folder with a masked-LM checkpoint of that shape; the tokenizer's words are the first of its vocabulary."""
    layers, width, heads, inner, vocabulary = SHAPES[name]
    tokenizer = build(length).tokenizer
    config = BertConfig(
        vocab_size=max(vocabulary, len(tokenizer)),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def encoder(folder: str, length: int, pooling: str) -> SentenceTransformer:
    transformer = Transformer(folder, max_seq_length=length)
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling)])


class Held:
    """Bytes that autograd keeps for the backward pass, parameters apart, each storage once."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self._found: dict[int, Tensor] = {}  # the tensors too, so that no storage is given to another

    def __enter__(self) -> Held:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *of: Any) -> None:
        self._hooks.__exit__(*of)
        self.bytes = sum(tensor.untyped_storage().nbytes() for tensor in self._found.values())

    def _keep(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in self._own:
            self._found.setdefault(place, tensor)
        return tensor


def one_pass(loss: Any, columns: list[list[str]]) -> dict[str, float]:
    """Operations and bytes held, of one pass over the rows, and what is trained."""
    for module in loss.modules():
        if isinstance(module, PreTrainedModel):
            module.set_attn_implementation("eager")  # the counter sees attention's products in this form
    loss.train()
    loss.saves_padding = False  # a CPU's default would group the rows
    features = [dict(loss.model.preprocess(column)) for column in columns]
    loss([dict(column) for column in features], None)  # tries the encoder, once, which is not of a step
    with FlopCounterMode(display=False) as counter:
        with Held(loss) as held:
            value = loss(features, None)
        value.backward()
    parameters = list(loss.parameters())
    trained = sum(one.numel() for one in parameters if one.requires_grad)
    frozen = sum(one.numel() for one in parameters if not one.requires_grad)
    return {"flop": counter.get_total_flops(), "held": held.bytes, "trained": trained, "frozen": frozen}


def row(name: str, chosen: Recipe, made: Any, texts: list[str], options: dict[str, Any]) -> dict[str, Any]:
    columns = [texts, translations(texts)] if chosen.translations or chosen.augmentation else [texts]
    found = one_pass(made, columns)
    batch = options["batch_size"]
    sentences = min(MILLION, chosen.options.get("limit") or MILLION)
    steps = math.ceil(sentences / batch) * options["epochs"]
    of_step = found["flop"] * batch / len(texts)
    return {
        "recipe": name,
        "batch_size": batch,
        "length": options["max_length"],
        "steps": steps,
        "teraflop_a_step": round(of_step / 1e12, 3),
        "petaflop": round(of_step * steps / 1e15, 1),
        "trained_parameters": found["trained"],
        # Weights, gradients and AdamW's two moments.
        "state_gib": round((16 * found["trained"] + 4 * found["frozen"]) / 2**30, 2),
        "held_gib": round(found["held"] * batch / len(texts) / 2**30, 2),
    }


def counted(name: str, texts: list[str]) -> list[dict[str, Any]]:
    warnings.filterwarnings("ignore")
    set_seed(42)
    chosen = RECIPES[name]
    options = chosen.options
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        method = METHODS[chosen.method]
        start = checkpoint(options["model"], options["max_length"], folder)
        arguments = dict(chosen.loss_arguments)
        if options.get("generator"):
            arguments["generator"] = checkpoint(options["generator"], options["max_length"], other)

        def fresh() -> SentenceTransformer:
            return encoder(start, options["max_length"], options.get("pooling") or method.pooling)

        rows = []
        if chosen.stage1 is not None:
            stage1 = stc.AuxiliaryMLMPretrainingLoss(fresh(), log_terms=False, **chosen.stage1_loss_arguments)
            settings = {key: setting.value for key, setting in chosen.stage1.items()}
            rows.append(row(f"{name}, stage 1", chosen, stage1, texts, settings))
        loss = build_loss(method.loss_class, fresh(), log_terms=False, **arguments)
        return [*rows, row(name, chosen, loss, texts, options)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=[name for name in RECIPES if not name.startswith("mini-")])
    parser.add_argument("--data", help="sentences, one per line; default: Python's documentation")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--json", help="where the results go, and what is there is not counted again")
    args = parser.parse_args()
    sentences = read_corpus(args.data).sentences if args.data else documentation_sentences(2000)
    # As long as in the corpus, the longest among them.
    by_length = sorted(sentences[:1000], key=len)
    texts = by_length[:: -(len(by_length) // args.rows)][: args.rows]
    done = read(args.json, {"rows": []})
    for name in args.recipes:
        if any(one["recipe"] == name for one in done["rows"]):
            continue
        # In a process of its own: a large model leaves no memory behind.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found = process.submit(counted, name, texts).result()
        print(*found, sep="\n", flush=True)
        done = {"rows_counted": args.rows, **software(), "rows": [*done["rows"], *found]}
        write(args.json, done)


if __name__ == "__main__":
    main()
