"""Recipes for a laptop, each derived from a recipe at the paper's scale."""

from __future__ import annotations

from typing import Any

from st_contrastive.recipes.baselines import BASELINES
from st_contrastive.recipes.conisi import CONISI
from st_contrastive.recipes.infocse import INFOCSE
from st_contrastive.recipes.recipe import Difference, Recipe, cite
from st_contrastive.recipes.twins import TWINS

_SMALL = "ours: for a laptop; SimCSE's dev score rose by 0.1 in the last 50 of 150 steps"
_RUN = {
    **cite(
        _SMALL,
        model="sentence-transformers/all-MiniLM-L6-v2",
        learning_rate=3e-5,
        batch_size=64,
        max_steps=150,
        max_length=32,
        evaluate_steps=25,
    ),
    **cite("the Trainer's default", seed=42),
}
_FEW_STEPS = "ours: for MiniLM and so few steps"
#: Arguments of a loss that are tuned to the small scale; the others are ablations.
_TUNED = ("temperature", "interaction_weight", "mlm_weight", "queue_size", "momentum")
_STAGE1 = cite(_SMALL, learning_rate=1e-4, batch_size=64, max_steps=150, max_length=32)
_FULL = {one.name: one for one in (*BASELINES, *CONISI, *TWINS, *INFOCSE)}


def _mini(name: str, title: str, like: str, **changes: Any) -> Recipe:
    """The recipe ``like`` on MiniLM in 150 steps, with the changed arguments of its loss."""
    full = _FULL[like]
    stage1 = changes.pop("stage1", full.stage1 is not None)
    translations = changes.pop("translations", full.translations)
    run = {**_RUN, **{key: full.run[key] for key in ("pooling", "repetition") if key in full.run}}
    tuned = {key: value for key, value in changes.items() if key in _TUNED}
    loss = {**full.loss, **cite("the part that this recipe changes", **changes), **cite(_FEW_STEPS, **tuned)}
    others = [
        (key, f"{key} {run[key].value}, not {full.run[key].value}")
        for key in ("learning_rate", "batch_size")
        if run[key].value != full.run[key].value
    ]
    if translations and "translation_encoder" in full.run:
        others.append(
            ("translation_encoder", f"both languages under one tokenizer, not {full.run['translation_encoder'].value}")
        )
    if "generator" in full.run:
        generator = f"MiniLM's own copy as the generator, without a trained head, not {full.run['generator'].value}"
        others.append(("generator", generator))
    if changes.get("rtd_weight"):
        others.append(("model", "replaced tokens drawn by MiniLM's own copy, without a trained masked-LM head"))
    others += [
        (key, f"{key} {value}, not {full.loss[key].value}" if key in full.loss else f"{key} {value}")
        for key, value in changes.items()
    ]
    if full.translations and not translations:
        others.append(("translations", "no translations: one column"))
    if full.stage1 is not None:
        others.append(("stage1", "stage 1 of 150 steps") if stage1 else ("auxiliary", "no stage 1"))
    return Recipe(
        f"mini-{name}",
        f"{title}, all-MiniLM-L6-v2",
        full.method,
        run,
        loss,
        augmentation=full.augmentation,
        translations=translations,
        stage1=_STAGE1 if stage1 else None,
        stage1_loss=full.stage1_loss if stage1 else {},
        differs=(
            Difference("all-MiniLM-L6-v2, which is a sentence encoder already", ("model",)),
            Difference("150 steps; without --dev, the weights of the last step", ("max_steps", "epochs")),
            *(Difference(f"against {like}: {text}", (about,)) for about, text in others),
        ),
    )


_ONE_COLUMN: dict[str, Any] = {"translations": False}
# Temperatures by the STS Benchmark's dev split (benchmarks/README.md): BatchNorm in these two's heads makes 0.05 easy.
_CONISI: dict[str, Any] = {"temperature": 0.15, "interaction_weight": 0.1}
_INFOCSE: dict[str, Any] = {"temperature": 0.1, "mlm_weight": 0.1}
_NO_STAGE1: dict[str, Any] = {"stage1": False, **_INFOCSE}
MINIS = (
    _mini("simcse", "SimCSE", "simcse-bert-base", temperature=0.1),
    _mini("simcse-mlm", "SimCSE with masked-LM on the encoder itself", "simcse-mlm-bert-base", temperature=0.1),
    _mini("conisi-s", "ConIsI-s", "conisi-s-bert-base", **_CONISI),
    _mini("conisi-o1", "ConIsI-o1", "conisi-o1-bert-base", **_CONISI),
    _mini("conisi-o2", "ConIsI-o2", "conisi-o2-bert-base", **_CONISI),
    _mini("twins", "Twins", "twins-bert-base"),
    _mini("twins-no-margin", "Twins without its margin", "twins-bert-base", twins_weight=0.0),
    _mini("twins-no-queue", "Twins without queue", "twins-bert-base", queue_batches=0),
    _mini(
        "twins-no-margin-no-queue",
        "Twins without its margin and queue",
        "twins-bert-base",
        twins_weight=0.0,
        queue_batches=0,
    ),
    _mini(
        "twins-moco",
        "Twins with MoCo's mechanism in the queue's place",
        "twins-bert-base",
        key_momentum=0.995,
        forgetting_rate=0.0,
    ),
    _mini("twins-one-column", "Twins, one column", "twins-bert-base", **_ONE_COLUMN),
    _mini(
        "twins-one-column-no-queue",
        "Twins, one column, without queue",
        "twins-bert-base",
        queue_batches=0,
        **_ONE_COLUMN,
    ),
    _mini(
        "twins-one-column-momentum-keys",
        "Twins, one column, MoCo's keys in the queue",
        "twins-bert-base",
        key_momentum=0.995,
        **_ONE_COLUMN,
    ),
    _mini("infocse", "InfoCSE without stage 1", "infocse-bert-base", **_NO_STAGE1),
    _mini("infocse-stage1", "InfoCSE", "infocse-bert-base", **_INFOCSE),
    _mini(
        "infocse-rtd",
        "InfoCSE without stage 1, with replaced-token detection",
        "infocse-bert-base",
        rtd_weight=0.005,
        **_NO_STAGE1,
    ),
    _mini("infocse-tanh", "InfoCSE without stage 1, SimCSE's head", "infocse-bert-base", head="tanh", **_NO_STAGE1),
    _mini("infocse-no-head", "InfoCSE without stage 1 and head", "infocse-bert-base", head=None, **_NO_STAGE1),
    _mini("diffcse", "DiffCSE", "diffcse-bert-base"),
    _mini("moco", "MoCo", "moco-bert-base", queue_size=1024, temperature=0.05, momentum=0.995),
    _mini("esimcse", "ESimCSE", "esimcse-bert-base"),
    Recipe(
        "mini-combined",
        "ConIsI's pairs, Twins' queue and InfoCSE's network, all-MiniLM-L6-v2",
        "combined",
        _RUN,
        cite(_FEW_STEPS, temperature=0.15, mlm_weight=0.1),
        differs=(Difference("in no paper: InfoCSE, section 6.3, suggests that such objectives add up"),),
    ),
)
