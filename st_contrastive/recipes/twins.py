"""Twins: the rows of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from st_contrastive.recipes._shared import BERT, DATA, LARGE
from st_contrastive.recipes.recipe import Difference, Recipe, Setting, cite

_SETUP = "Twins, section 4.1"
_OURS = "ours: not in the paper's text"
_MULTILINGUAL = "bert-base-multilingual-uncased"
_GERMAN = "stefan-it/albert-large-german-cased"

_BY_T5 = Difference(
    "section 4.1 translates with a 'T5 pre-trained model from Huggingface', and does not say which; --translations "
    "holds what st-contrastive translate, or another program, makes of --data"
)
_BY_BAIDU = Difference(
    "section 4.1 translates with the Baidu Translator API; --translations may be made with another translator"
)

_SAFETENSORS = Difference("only safetensors are loaded; AutoModel.save_pretrained converts other checkpoints")


def _twins(
    name: str,
    model: Setting,
    title: str,
    reported: str,
    fraternal: str | None = _GERMAN,
    differs: tuple[Difference, ...] = (DATA, _BY_T5),
    run: Mapping[str, Setting] | None = None,
    loss: Mapping[str, Setting] | None = None,
) -> Recipe:
    """A row of a table; without ``fraternal``, one that is trained on sentences without translations."""
    return Recipe(
        name,
        f"Twins, {title}",
        "twins",
        {
            **cite(_OURS, learning_rate=3e-5, max_length=32, warmup=0.0, seed=42),
            **cite("Twins, section 4.4: 8,456 steps of about 540,000 sentences", batch_size=64),
            **({} if fraternal is None else cite(_SETUP, translation_encoder=fraternal)),
            **cite(_SETUP, epochs=1, evaluate_steps=151),
            **cite(f"{_SETUP}: 'the verification sets of STS-B or C-STB'", dev_from_hub=True),
            **cite("Twins, table 1: the mean of the last layer 'for verification'", pooling="mean"),
            "model": model,
            **(run or {}),
        },
        {
            **cite("Twins, table 1: '[cls] representations for training'", train_pooling="cls"),
            **cite(_OURS, temperature=0.05, forgetting_rate=0.25),
            **cite(
                f"ours: {_SETUP.partition(', ')[2]} leaves it to supplementary materials",
                fusion_rate=0.8,
                queue_batches=3,
            ),
            **(loss or {}),
        },
        translations=fraternal is not None,
        differs=(
            *differs,
            Difference(
                "fusion rate, queue length, forgetting rate, temperature, learning rate and length are ours: they are "
                "not in the paper's text, which leaves the first two to supplementary materials"
            ),
            *(() if fraternal is None else (_SAFETENSORS,)),
        ),
        reported=reported,
    )


def _ablation(name: str, title: str, reported: str, source: str, columns: int = 2, **changes: Any) -> Recipe:
    """The BERT-base row with parts left out, scored on the STS Benchmark's test split."""
    return _twins(
        f"twins-{name}-bert-base",
        Setting(BERT, _SETUP),
        f"bert-base-uncased, {title}",
        f"{reported} on the STS Benchmark, {source}; 80.27 with all parts" if reported else "",
        fraternal=_GERMAN if columns == 2 else None,
        differs=(DATA, _BY_T5) if columns == 2 else (DATA,),
        loss=cite(f"Twins, {source}", **changes),
    )


TWINS = (
    _twins("twins-bert-base", Setting(BERT, _SETUP), "bert-base-uncased, German", "77.80 on seven STS sets (table 1)"),
    _twins(
        "twins-bert-large", Setting(LARGE, _SETUP), "bert-large-uncased, German", "79.44 on seven STS sets (table 1)"
    ),
    _twins(
        "twins-bert-multilingual",
        Setting(_MULTILINGUAL, _SETUP),
        "bert-base-multilingual-uncased, German",
        "",
        differs=(
            DATA,
            _BY_T5,
            Difference("the paper names this checkpoint, but has no English row for it: tables 1 and 2 are of BERT"),
        ),
    ),
    _twins(
        "twins-chinese",
        Setting(_MULTILINGUAL, f"{_SETUP}: of the three that it names, the one that reads Chinese"),
        "bert-base-multilingual-uncased, Cantonese, 100,000 sentences",
        "C-STS-B 71.41, SimCLUE 44.42 (table 3)",
        "denpa92/bert-base-cantonese",
        (
            Difference(
                "trained on 100,000 sentences of --data; section 4.1 takes them from Chinese Wikipedia, and evaluates "
                "on C-STS-B's development split: without that as --dev FILE, the last step's weights are saved",
                ("dev", "limit"),
            ),
            Difference(
                "section 4.1 names no Chinese checkpoint, and does not say from which one the Chinese rows start",
                ("model",),
            ),
            _BY_BAIDU,
        ),
        {
            **cite("ours: the hub's splits that --dev-from-hub reads are English", dev_from_hub=False),
            **cite(f"{_SETUP}: CnData", limit=100_000),
        },
    ),
    _ablation("one-column", "one column", "78.10", "table 2, row 'w/o FI, TL'", columns=1),
    _ablation(
        "one-column-no-queue",
        "one column, without queue",
        "76.83",
        "table 2, row 'w/o FI, TL, HQ', which is SimCSE",
        columns=1,
        queue_batches=0,
    ),
    _ablation("no-queue", "German, without queue", "78.81", "table 2, row 'w/o HQ'", queue_batches=0),
    _ablation("no-margin", "German, without Twins loss", "78.65", "figure 4b, 'w/o TL'", twins_weight=0.0),
    _ablation(
        "no-margin-no-queue",
        "German, without Twins loss and queue",
        "77.26",
        "table 2, row 'w/o TL, HQ'",
        twins_weight=0.0,
        queue_batches=0,
    ),
    _ablation(
        "moco",
        "German, MoCo's mechanism in the queue's place",
        "",
        "figure 4c and section 4.4, 'MoCo w/ ME'; the momentum is ours",
        key_momentum=0.995,
        forgetting_rate=0.0,
    ),
)
