"""InfoCSE: the rows of its tables."""

from __future__ import annotations

from typing import Any

from st_contrastive.recipes._shared import BERT, DATA, FLOAT16, LARGE
from st_contrastive.recipes.recipe import Difference, Recipe, Setting, cite

_TEXT = "InfoCSE, section 4.2"
_CONDENSER = f"Condenser, authors' README, which {_TEXT}, follows; its own number is not legible in the copy we read"


def _infocse(name: str, model: str, script: str, start: str, mask_rate: Setting, reported: str, **more: Any) -> Recipe:
    code = f"InfoCSE, authors' {script}"
    shape = {name: more[name] for name in ("split_layer", "extra_layers") if name in more}
    return Recipe(
        name,
        f"InfoCSE, {model}",
        "infocse",
        {
            **cite(f"{_TEXT}, by its size alone; uncased as SimCSE", model=model),
            **cite(f"{code}; section 4.2's is not legible in the copy we read", learning_rate=7e-6, batch_size=64),
            **cite(code, max_length=32, epochs=2),
            **cite(f"transformers' default, which {script} keeps", warmup=0.0, seed=42),
            **cite(_TEXT, evaluate_steps=125),
            **cite(f"{_TEXT}: 'the development set of STS-B'", dev_from_hub=True),
        },
        {
            **cite(f"{code}; no value is legible in the copy of the paper that we read", temperature=0.05),
            **cite("InfoCSE, section 5.4 and table 8", mlm_weight=1e-5),
            "mask_rate": mask_rate,
            **cite(code, **more),
            **cite("InfoCSE, authors' train_cls_mlm.py; section 3.2 masks one copy", masked_views="both"),
            **cite(
                f"{code}: --batchnorm; sections 2 and 5.5 have a pooler of a linear layer and an activation",
                head="projector",
            ),
            **cite("ours: trains the network at full scale, see InfoCSELoss", weighting="gradient"),
        },
        stage1={
            **cite(_CONDENSER, learning_rate=1e-4, warmup=0.1),
            **cite(
                f"ours, as the joint stage: {_TEXT}, has a number that is not legible in the copy we read",
                batch_size=64,
            ),
            **cite("ours, as the joint stage: not in the paper's text", max_length=32),
            **cite(f"ours: {_TEXT}, makes 8", epochs=1),
        },
        stage1_loss={
            **cite("InfoCSE, sections 2 and 3.1: BERT's own; table 7 is of the joint stage", mask_rate=0.15),
            **cite(
                "InfoCSE, eq. 6, and Condenser, authors' modeling.py: the plain sum; the weight that section 4.2 names "
                "is not legible in the copy we read",
                auxiliary_weight=1.0,
            ),
            **cite(code, **shape),
        },
        differs=(
            DATA,
            Difference(
                "stage 1 makes one epoch of --data; section 4.2 makes 8 of Wikipedia and BookCorpus, and table 4 loses "
                "1.8 points without it",
                ("stage1",),
            ),
            Difference(
                f"starts from BERT and makes stage 1, as sections 3.1 and 4.2; the authors' {script} makes none and "
                f"starts the joint stage from {start}, with the extra layers of a model.pt in a local folder of that "
                "name, and untrained ones without",
                ("model", "auxiliary"),
            ),
            Difference(f"two epochs, as the authors' {script}; section 4.2 says one", ("epochs", "steps")),
            FLOAT16,
        ),
        reported=reported,
    )


INFOCSE = (
    _infocse(
        "infocse-bert-base",
        BERT,
        "infocse-bert-base.sh",
        "Luyu/condenser",
        Setting(0.4, "InfoCSE, section 5.3 and table 7"),
        "78.85 on seven STS sets (table 2)",
        lower_dropout=False,
    ),
    _infocse(
        "infocse-bert-large",
        LARGE,
        "infoCSE-bert-large.sh",
        "ffgcc/condenser-bert-large-uncased",
        Setting(0.3, "InfoCSE, authors' infoCSE-bert-large.sh; table 7 is of the base size"),
        "80.18 on seven STS sets (table 2)",
        lower_dropout=True,
        split_layer=6,
        extra_layers=2,
    ),
)
