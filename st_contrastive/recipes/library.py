"""The recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from st_contrastive.recipes.recipe import Recipe, Setting

OURS = "ours: not published"
_SIMCSE, _SIMCSE_CODE = "SimCSE, appendix A", "SimCSE, authors' script"
_ESIMCSE = "ESimCSE, experimental setup"
_DIFFCSE = "DiffCSE, authors' script"
_CONISI = "ConIsI, experimental setup"
_TWINS = "Twins, experimental setup"
_INFOCSE, _INFOCSE_CODE = "InfoCSE, experimental setup", "InfoCSE, authors' script"
_AS_SIMCSE = "as SimCSE; the paper does not say"
_DATA = "trained on --data: the paper takes 1,000,000 sentences of English Wikipedia (wiki1m_for_simcse.txt)"


def _cite(source: str, **values: Any) -> dict[str, Setting]:
    return {name: Setting(value, source) for name, value in values.items()}


#: What all of them share: SimCSE's loop, on the best of the evaluations on the STS Benchmark's development split.
_LOOP = {
    **_cite(_SIMCSE_CODE, max_length=32, epochs=1, evaluate_steps=125, warmup=0.0, seed=42),
    "dev": Setting("hub", "STS Benchmark, development split"),
}
_BERT, _LARGE, _ROBERTA = "bert-base-uncased", "bert-large-uncased", "roberta-base"
_WEIGHT = "ours: the paper does not give it"


def _simcse(name: str, model: str, lr: float, batch_size: int, reported: str) -> Recipe:
    run = {**_LOOP, **_cite(_SIMCSE, model=model, lr=lr, batch_size=batch_size)}
    loss = _cite(_SIMCSE, temperature=0.05, head=True)
    return Recipe(name, f"unsupervised SimCSE, {model}", "simcse", run, loss, differs=(_DATA,), reported=reported)


def _conisi(suffix: str, strategy: str, title: str, reported: Mapping[str, str]) -> list[Recipe]:
    made = []
    for short, model, length, weight in (
        ("bert-base", _BERT, 32, 0.8),
        ("roberta-base", _ROBERTA, 32, 0.1),
        ("bert-large", _LARGE, 28, 0.1),
    ):
        run = {
            **_LOOP,
            **_cite(_CONISI, model=model, lr=3e-5, batch_size=64, max_length=length, evaluate_steps=125, seed=42),
        }
        loss = {
            **_cite(_CONISI, strategy=strategy, interaction_weight=weight),
            **_cite(_AS_SIMCSE, temperature=0.05),
            **(_cite(_WEIGHT, replacement_rate=0.15) if strategy == "subword" else {}),
        }
        made.append(
            Recipe(
                f"conisi-{suffix}-{short}",
                f"ConIsI-{suffix} ({title}), {model}",
                "conisi",
                run,
                loss,
                augmentation="antonyms" if strategy == "given" else None,
                differs=(
                    _DATA,
                    "BatchNorm takes its statistics over all 3 N rows: the paper does not say",
                    *(("the share of replaced subwords is not in the paper",) if strategy == "subword" else ()),
                ),
                reported=reported.get(short, ""),
            )
        )
    return made


def _twins(
    name: str, model: str, fraternal: str | None, title: str, reported: str, data: str = _DATA, **run: Any
) -> Recipe:
    published = _cite("Twins, derived from when it evaluates", batch_size=64, evaluate_steps=151)
    return Recipe(
        name,
        f"Twins, {title}",
        "twins",
        {
            **_LOOP,
            **published,
            **_cite(_TWINS, model=model, fraternal=fraternal, epochs=1),
            **_cite(OURS, lr=3e-5, max_length=32),
            **_cite("Twins: trained on [CLS], evaluated on the mean", pooling="mean"),
            **_cite("the paper's data is Chinese", **run),
        },
        {
            **_cite(_TWINS, train_pooling="cls"),
            **_cite(OURS, temperature=0.05, fusion_rate=0.8, queue_batches=3, forgetting_rate=0.25),
        },
        translations=True,
        differs=(
            data,
            "the paper does not publish fusion rate, queue length, forgetting rate, temperature, learning rate and "
            "length: these are ours",
            "which translator the paper used is not said: st-contrastive translate makes --translations of --data",
            "only safetensors are loaded: of a checkpoint without them, AutoModel.save_pretrained makes some",
        ),
        reported=reported,
    )


def _infocse(name: str, model: str, lr: Setting, mask_rate: float, large: bool, reported: str) -> Recipe:
    return Recipe(
        name,
        f"InfoCSE, {model}",
        "infocse",
        {
            **_LOOP,
            **_cite(_INFOCSE_CODE, model=model, batch_size=64, max_length=32, epochs=2, warmup=0.0),
            "lr": lr,
        },
        {
            **_cite(_INFOCSE, temperature=0.05, mlm_weight=1e-5),
            **_cite(_INFOCSE_CODE, mask_rate=mask_rate, lower_dropout=large, masked_views="both", projector=True),
            **_cite("ours: trains the network at full scale, see InfoCSELoss", weighting="gradient"),
        },
        stage1={
            **_cite("ours: 1e-4 is BERT's own", lr=1e-4),
            **_cite("ours: as the joint stage", batch_size=64, max_length=32),
            **_cite("the paper makes 8 epochs of Wikipedia and BookCorpus", epochs=1),
        },
        differs=(
            _DATA,
            "stage 1 makes one epoch of --data; the paper makes 8 of Wikipedia and BookCorpus, and without it loses "
            "1.8 points (table 4)",
            "the joint stage takes stage 1's auxiliary network, and its encoder from --model; the paper does not say",
            "two epochs, as the authors' code; the text says one",
            "float16 in the paper: add --bf16",
        ),
        reported=reported,
    )


_FULL = (
    _simcse("simcse-bert-base", _BERT, 3e-5, 64, "76.25 on seven STS sets"),
    _simcse("simcse-bert-large", _LARGE, 1e-5, 64, "78.41 on seven STS sets"),
    _simcse("simcse-roberta-base", _ROBERTA, 1e-5, 512, "76.57 on seven STS sets"),
    Recipe(
        "esimcse-bert-base",
        "ESimCSE: words said twice, and a momentum encoder's queue, bert-base-uncased",
        "momentum",
        {**_LOOP, **_cite(_AS_SIMCSE, model=_BERT, lr=3e-5, batch_size=64), **_cite(_ESIMCSE, repetition=0.32)},
        {**_cite(_ESIMCSE, momentum=0.995, queue_size=160), **_cite(_AS_SIMCSE, temperature=0.05, head=True)},
        augmentation="repetition",
        differs=(_DATA, "whole words are said twice; the paper repeats subwords"),
    ),
    Recipe(
        "moco-bert-base",
        "MoCo: keys of a momentum encoder, bert-base-uncased",
        "momentum",
        {**_LOOP, **_cite(_AS_SIMCSE, model=_BERT, lr=3e-5, batch_size=64)},
        {
            **_cite("MoCo, section 4", momentum=0.999, queue_size=65536, temperature=0.07, positives="momentum"),
            **_cite(_AS_SIMCSE, head=True),
        },
        differs=(_DATA, "MoCo is of images: there is no paper of it on sentences to repeat"),
    ),
    Recipe(
        "diffcse-bert-base",
        "DiffCSE, bert-base-uncased",
        "diffcse",
        {
            **_LOOP,
            **_cite(_DIFFCSE, model=_BERT, lr=7e-6, batch_size=64, epochs=2, generator="distilbert-base-uncased"),
        },
        _cite(_DIFFCSE, temperature=0.05, rtd_weight=0.005, mask_rate=0.3, projector=True),
        differs=(_DATA,),
    ),
    *_conisi(
        "s",
        "other",
        "another sentence of the batch",
        {"bert-base": "78.30", "roberta-base": "77.34", "bert-large": "79.55"},
    ),
    *_conisi("o1", "subword", "replaced subwords", {"bert-base": "77.14", "roberta-base": "78.35"}),
    *_conisi("o2", "given", "antonyms", {"bert-base": "77.35", "roberta-base": "78.13"}),
    _twins(
        "twins-bert-base",
        _BERT,
        "stefan-it/albert-large-german-cased",
        "bert-base-uncased, German",
        "77.80 on seven STS sets",
    ),
    _twins(
        "twins-bert-large",
        _LARGE,
        "stefan-it/albert-large-german-cased",
        "bert-large-uncased, German",
        "79.44 on seven STS sets",
    ),
    _twins(
        "twins-bert-multilingual",
        "bert-base-multilingual-uncased",
        "stefan-it/albert-large-german-cased",
        "bert-base-multilingual-uncased, German",
        "",
    ),
    _twins(
        "twins-chinese",
        "bert-base-chinese",
        "denpa92/bert-base-cantonese",
        "bert-base-chinese, Cantonese, 100,000 sentences",
        "C-STS-B 71.41, SimCLUE 44.42",
        data="trained on 100,000 sentences of --data, and without --dev FILE, the development split of C-STS-B, the "
        "last step's weights are kept: the paper takes 100,000 of Chinese Wikipedia, and the best",
        dev=None,
        limit=100_000,
    ),
    _infocse("infocse-bert-base", _BERT, Setting(7e-6, _INFOCSE_CODE), 0.4, False, "78.85 on seven STS sets"),
    _infocse("infocse-bert-large", _LARGE, Setting(1e-5, _AS_SIMCSE), 0.3, True, "80.18 on seven STS sets"),
)

_SMALL = "ours: MiniLM under [CLS] pooling, where it has flattened out"
_MINI = {
    **_cite(
        _SMALL,
        model="sentence-transformers/all-MiniLM-L6-v2",
        lr=3e-5,
        batch_size=64,
        steps=150,
        max_length=32,
        evaluate_steps=25,
    ),
    **_cite("the Trainer's", seed=42),
}
_MINI_STAGE1 = _cite(_SMALL, lr=1e-4, batch_size=64, steps=150, max_length=32)


_FULL_BY_NAME = {one.name: one for one in _FULL}


def _mini(name: str, title: str, like: str, **changes: Any) -> Recipe:
    """A recipe at full scale on MiniLM: its loss, but for what changes, in 150 steps."""
    full = _FULL_BY_NAME[like]
    stage1 = changes.pop("stage1", full.stage1 is not None)
    translations = changes.pop("translations", full.translations)
    run = {
        **_MINI,
        **{key: full.run[key] for key in ("pooling", "repetition") if key in full.run},
    }
    loss = {**full.loss, **_cite("ours: for so few steps", **changes)}
    others = [
        f"{key} {run[key].value}, not {full.run[key].value}"
        for key in ("lr", "batch_size")
        if run[key].value != full.run[key].value
    ]
    if translations and "fraternal" in full.run:
        others.append(f"both languages under one tokenizer, not {full.run['fraternal'].value}")
    others += [
        f"{key} {value}, not {full.loss[key].value}" if key in full.loss else f"{key} {value}"
        for key, value in changes.items()
    ]
    if full.translations and not translations:
        others.append("no translations: one column")
    if full.stage1 is not None:
        others.append("stage 1 of 150 steps" if stage1 else "no stage 1")
    return Recipe(
        f"mini-{name}",
        f"{title}, all-MiniLM-L6-v2",
        full.method,
        run,
        loss,
        augmentation=full.augmentation,
        translations=translations,
        stage1=_MINI_STAGE1 if stage1 else None,
        differs=(
            "all-MiniLM-L6-v2, which is a sentence encoder already; 150 steps, and without --dev the last of them",
            *([f"against {like}: {'; '.join(others)}"] if others else []),
        ),
    )


_ONE_COLUMN: dict[str, Any] = {"translations": False}
_NO_STAGE1: dict[str, Any] = {"stage1": False, "mlm_weight": 0.1}
_MINIS = (
    _mini("simcse", "SimCSE", "simcse-bert-base"),
    _mini("conisi-s", "ConIsI-s", "conisi-s-bert-base", interaction_weight=0.1),
    _mini("conisi-o1", "ConIsI-o1", "conisi-o1-bert-base", interaction_weight=0.1),
    _mini("conisi-o2", "ConIsI-o2", "conisi-o2-bert-base", interaction_weight=0.1),
    _mini("twins", "Twins", "twins-bert-base"),
    _mini("twins-one-column", "Twins without fraternal twins (w/o FI, TL)", "twins-bert-base", **_ONE_COLUMN),
    _mini(
        "twins-no-queue", "Twins without fraternal twins and queue", "twins-bert-base", queue_batches=0, **_ONE_COLUMN
    ),
    _mini(
        "twins-momentum",
        "Twins without fraternal twins, MoCo's keys in the queue",
        "twins-bert-base",
        key_momentum=0.995,
        **_ONE_COLUMN,
    ),
    _mini("infocse", "InfoCSE without stage 1", "infocse-bert-base", **_NO_STAGE1),
    _mini("infocse-stage1", "InfoCSE", "infocse-bert-base", mlm_weight=0.1),
    _mini(
        "infocse-rtd",
        "InfoCSE without stage 1, with replaced-token detection",
        "infocse-bert-base",
        rtd_weight=0.005,
        **_NO_STAGE1,
    ),
    _mini("diffcse", "DiffCSE", "diffcse-bert-base"),
    _mini("moco", "MoCo", "moco-bert-base", queue_size=1024, temperature=0.05, momentum=0.995),
    _mini("esimcse", "ESimCSE", "esimcse-bert-base"),
    Recipe(
        "mini-combined",
        "ConIsI's pairs, Twins' queue and InfoCSE's network, all-MiniLM-L6-v2",
        "combined",
        _MINI,
        _cite("ours: for so few steps", mlm_weight=0.1),
        differs=("no paper has it: InfoCSE, section 6.3, suggests that such objectives add up",),
    ),
)

#: Every recipe by its name.
RECIPES: Mapping[str, Recipe] = {one.name: one for one in (*_FULL, *_MINIS)}


def recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: there is none; the message lists those there are.

    Example:
        >>> recipe("infocse-bert-base").loss_arguments["mlm_weight"]
        1e-05
        >>> recipe("infocse-bert-base").loss["mlm_weight"].source
        'InfoCSE, experimental setup'
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}.")
    return RECIPES[name]
