"""The recipes at the papers' scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from st_contrastive.recipes.recipe import Difference, Recipe, Setting

OURS = "ours: not published"
_SIMCSE, _SIMCSE_CODE = "SimCSE, appendix A", "SimCSE, authors' script"
_ESIMCSE = "ESimCSE, experimental setup"
_DIFFCSE = "DiffCSE, authors' script"
_CONISI = "ConIsI, experimental setup"
_TWINS = "Twins, experimental setup"
_INFOCSE, _INFOCSE_CODE = "InfoCSE, experimental setup", "InfoCSE, authors' script"
_AS_SIMCSE = "as SimCSE; the paper does not say"
_DATA = Difference(
    "trained on --data: the paper takes 1,000,000 sentences of English Wikipedia (wiki1m_for_simcse.txt)"
)


def cite(source: str, **values: Any) -> dict[str, Setting]:
    """Settings that have one source."""
    return {name: Setting(value, source) for name, value in values.items()}


#: What all of them share: SimCSE's loop, on the best of the evaluations on the STS Benchmark's development split.
_LOOP = {
    **cite(_SIMCSE_CODE, max_length=32, epochs=1, evaluate_steps=125, warmup=0.0, seed=42),
    "dev": Setting("hub", "STS Benchmark, development split"),
}
_BERT, _LARGE, _ROBERTA = "bert-base-uncased", "bert-large-uncased", "roberta-base"
_WEIGHT = "ours: the paper does not give it"


def _simcse(name: str, model: str, lr: float, batch_size: int, reported: str) -> Recipe:
    run = {**_LOOP, **cite(_SIMCSE, model=model, lr=lr, batch_size=batch_size)}
    loss = cite(_SIMCSE, temperature=0.05, head=True)
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
            **cite(_CONISI, model=model, lr=3e-5, batch_size=64, max_length=length, evaluate_steps=125, seed=42),
        }
        loss = {
            **cite(_CONISI, strategy=strategy, interaction_weight=weight),
            **cite(_AS_SIMCSE, temperature=0.05),
            **(cite(_WEIGHT, replacement_rate=0.15) if strategy == "subword" else {}),
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
                    Difference("BatchNorm takes its statistics over all 3 N rows: the paper does not say"),
                    *(
                        (Difference("the share of replaced subwords is not in the paper"),)
                        if strategy == "subword"
                        else ()
                    ),
                ),
                reported=reported.get(short, ""),
            )
        )
    return made


def _twins(
    name: str, model: str, fraternal: str | None, title: str, reported: str, data: Difference = _DATA, **run: Any
) -> Recipe:
    published = cite("Twins, derived from when it evaluates", batch_size=64, evaluate_steps=151)
    return Recipe(
        name,
        f"Twins, {title}",
        "twins",
        {
            **_LOOP,
            **published,
            **cite(_TWINS, model=model, fraternal=fraternal, epochs=1),
            **cite(OURS, lr=3e-5, max_length=32),
            **cite("Twins: trained on [CLS], evaluated on the mean", pooling="mean"),
            **cite("the paper's data is Chinese", **run),
        },
        {
            **cite(_TWINS, train_pooling="cls"),
            **cite(OURS, temperature=0.05, fusion_rate=0.8, queue_batches=3, forgetting_rate=0.25),
        },
        translations=True,
        differs=(
            data,
            Difference(
                "the paper does not publish fusion rate, queue length, forgetting rate, temperature, learning rate and "
                "length: these are ours"
            ),
            Difference(
                "which translator the paper used is not said: st-contrastive translate makes --translations of --data"
            ),
            Difference(
                "only safetensors are loaded: of a checkpoint without them, AutoModel.save_pretrained makes some"
            ),
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
            **cite(_INFOCSE_CODE, model=model, batch_size=64, max_length=32, epochs=2, warmup=0.0),
            "lr": lr,
        },
        {
            **cite(_INFOCSE, temperature=0.05, mlm_weight=1e-5),
            **cite(_INFOCSE_CODE, mask_rate=mask_rate, lower_dropout=large, masked_views="both", head="projector"),
            **cite("ours: trains the network at full scale, see InfoCSELoss", weighting="gradient"),
        },
        stage1={
            **cite("ours: 1e-4 is BERT's own", lr=1e-4),
            **cite("ours: as the joint stage", batch_size=64, max_length=32),
            **cite("the paper makes 8 epochs of Wikipedia and BookCorpus", epochs=1),
        },
        differs=(
            _DATA,
            Difference(
                "stage 1 makes one epoch of --data; the paper makes 8 of Wikipedia and BookCorpus, and loses 1.8 "
                "points without it (table 4)",
                ("stage1",),
            ),
            Difference(
                "the joint stage takes the auxiliary network of stage 1, and its encoder from --model; the paper does "
                "not say"
            ),
            Difference("two epochs, as the authors' code; the text says one", ("epochs", "steps")),
            Difference("float16 in the paper: add --bf16", ("bf16",)),
        ),
        reported=reported,
    )


FULL = (
    _simcse("simcse-bert-base", _BERT, 3e-5, 64, "76.25 on seven STS sets"),
    _simcse("simcse-bert-large", _LARGE, 1e-5, 64, "78.41 on seven STS sets"),
    _simcse("simcse-roberta-base", _ROBERTA, 1e-5, 512, "76.57 on seven STS sets"),
    Recipe(
        "esimcse-bert-base",
        "ESimCSE: words said twice, and a momentum encoder's queue, bert-base-uncased",
        "momentum",
        {**_LOOP, **cite(_AS_SIMCSE, model=_BERT, lr=3e-5, batch_size=64), **cite(_ESIMCSE, repetition=0.32)},
        {**cite(_ESIMCSE, momentum=0.995, queue_size=160), **cite(_AS_SIMCSE, temperature=0.05, head=True)},
        augmentation="repetition",
        differs=(_DATA, Difference("whole words are said twice; the paper repeats subwords", ("repetition",))),
    ),
    Recipe(
        "moco-bert-base",
        "MoCo: keys of a momentum encoder, bert-base-uncased",
        "momentum",
        {**_LOOP, **cite(_AS_SIMCSE, model=_BERT, lr=3e-5, batch_size=64)},
        {
            **cite("MoCo, section 4", momentum=0.999, queue_size=65536, temperature=0.07, positives="momentum"),
            **cite(_AS_SIMCSE, head=True),
        },
        differs=(_DATA, Difference("MoCo is of images: there is no paper of it on sentences to repeat")),
    ),
    Recipe(
        "diffcse-bert-base",
        "DiffCSE, bert-base-uncased",
        "diffcse",
        {
            **_LOOP,
            **cite(_DIFFCSE, model=_BERT, lr=7e-6, batch_size=64, epochs=2, generator="distilbert-base-uncased"),
        },
        cite(_DIFFCSE, temperature=0.05, rtd_weight=0.005, mask_rate=0.3, head="projector"),
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
        data=Difference(
            "trained on 100,000 sentences of --data, and without --dev FILE, the development split of C-STS-B, the "
            "last step's weights are kept: the paper takes 100,000 of Chinese Wikipedia, and the best",
            ("dev", "limit"),
        ),
        dev=None,
        limit=100_000,
    ),
    _infocse("infocse-bert-base", _BERT, Setting(7e-6, _INFOCSE_CODE), 0.4, False, "78.85 on seven STS sets"),
    _infocse("infocse-bert-large", _LARGE, Setting(1e-5, _AS_SIMCSE), 0.3, True, "80.18 on seven STS sets"),
)
