"""The baselines: SimCSE, ESimCSE, MoCo and DiffCSE."""

from __future__ import annotations

from typing import Any

from st_contrastive.recipes._shared import AS_LOOP, BERT, DATA, FLOAT16, LARGE, LOOP, ROBERTA, SIMCSE, SIMCSE_CODE
from st_contrastive.recipes.recipe import Difference, Recipe, cite

_ESIMCSE = "ESimCSE's paper; not verified against its text"
_ESIMCSE_LOG = "ESimCSE, authors' logs/roberta-base.log"
_MOCO = "MoCo, authors' main_moco.py, defaults"
_DIFFCSE = "DiffCSE, authors' run_diffcse.sh"


def _simcse(
    name: str, model: str, lr: float, batch_size: int, reported: str, title: str = "unsupervised SimCSE", **masked: Any
) -> Recipe:
    return Recipe(
        name,
        f"{title}, {model}",
        "simcse",
        {**LOOP, **cite(SIMCSE, model=model, learning_rate=lr, batch_size=batch_size)},
        {
            **cite(SIMCSE_CODE, temperature=0.05, head=True),
            **cite("SimCSE, train.py's default, in the copy of ESimCSE's authors", **masked),
        },
        differs=(DATA, FLOAT16),
        reported=reported,
    )


BASELINES = (
    _simcse("simcse-bert-base", BERT, 3e-5, 64, "76.25 on seven STS sets (authors' README)"),
    _simcse("simcse-bert-large", LARGE, 1e-5, 64, "78.41 on seven STS sets (authors' README)"),
    _simcse("simcse-roberta-base", ROBERTA, 1e-5, 512, "76.57 on seven STS sets (authors' README)"),
    _simcse(
        "simcse-mlm-bert-base",
        BERT,
        3e-5,
        64,
        "86.64 on seven transfer tasks, 85.81 without (InfoCSE, table 10)",
        "unsupervised SimCSE with masked-LM on the encoder itself",
        mlm_weight=0.1,
        mask_rate=0.15,
    ),
    Recipe(
        "esimcse-bert-base",
        "ESimCSE: repeated words and a momentum encoder's queue, bert-base-uncased",
        "momentum",
        {
            **AS_LOOP,
            **cite(f"as {SIMCSE}; not verified against ESimCSE's text", model=BERT, learning_rate=3e-5),
            **cite(f"{_ESIMCSE_LOG}, of RoBERTa", batch_size=64, epochs=1, evaluate_steps=125, warmup=0.0, seed=42),
            **cite(f"{_ESIMCSE} (0.3 in the name of the run of logs/roberta-base.log)", repetition=0.32),
        },
        {
            **cite(_ESIMCSE, momentum=0.995),
            **cite(f"{_ESIMCSE_LOG}, of RoBERTa, in the name of its run", queue_size=160),
            **cite("ESimCSE, authors' train.py, default", temperature=0.05),
            **cite(f"as {SIMCSE_CODE}", head=True),
        },
        augmentation="repetition",
        differs=(
            DATA,
            Difference("whole words are repeated; the authors' train.py repeats subwords", ("repetition",)),
            FLOAT16,
        ),
    ),
    Recipe(
        "moco-bert-base",
        "MoCo: keys of a momentum encoder, bert-base-uncased",
        "momentum",
        {**AS_LOOP, **cite(f"as {SIMCSE}", model=BERT, learning_rate=3e-5, batch_size=64)},
        {
            **cite(_MOCO, momentum=0.999, queue_size=65536, temperature=0.07),
            **cite("MoCo, authors' main_moco.py: one view to each encoder", positives="momentum"),
            **cite(f"as {SIMCSE_CODE}", head=True),
        },
        differs=(Difference("MoCo's paper is about images; no paper applies it to sentences alone"),),
    ),
    Recipe(
        "diffcse-bert-base",
        "DiffCSE, bert-base-uncased",
        "diffcse",
        {
            **AS_LOOP,
            **cite(_DIFFCSE, model=BERT, learning_rate=7e-6, batch_size=64, max_length=32, evaluate_steps=125),
            **cite(_DIFFCSE, generator="distilbert-base-uncased"),
            **cite(f"{_DIFFCSE}; its README says 1", epochs=2),
        },
        cite(_DIFFCSE, temperature=0.05, rtd_weight=0.005, mask_rate=0.3, head="projector"),
        differs=(DATA, FLOAT16),
    ),
)
