"""ConIsI: each construction of its pairs, at each model size."""

from __future__ import annotations

from collections.abc import Mapping

from st_contrastive.recipes._shared import AS_LOOP, BERT, DATA, LARGE, ROBERTA
from st_contrastive.recipes.recipe import Difference, Recipe, cite

_TEXT, _TABLE = "ConIsI, section 4.3", "ConIsI, table 3"

#: What the paper leaves open about each construction.
_OPEN = {
    "other": (),
    "subword": (
        Difference(
            "section 3.2.1 replaces 'a certain proportion' of the subwords: 0.15 is ours", ("replacement_rate",)
        ),
        Difference(
            "20 % of the chosen subwords stay as they were; section 3.2.1 leaves 'the masked token unchanged', which "
            "may mean that they stay [MASK]"
        ),
    ),
    "given": (
        Difference("every word with an antonym is replaced; section 3.2.1 'randomly substitutes some full words'"),
    ),
}


def _conisi(suffix: str, strategy: str, title: str, table: str, reported: Mapping[str, str]) -> list[Recipe]:
    made = []
    source = _TABLE if suffix == "s" else f"{_TABLE}, of ConIsI-s: it does not cover ConIsI-{suffix}"
    for short, model, length, weight in (
        ("bert-base", BERT, 32, 0.8),
        ("roberta-base", ROBERTA, 32, 0.1),
        ("bert-large", LARGE, 28, 0.1),
    ):
        cased = "" if short == "roberta-base" else "; uncased as SimCSE"
        found = reported.get(short)
        made.append(
            Recipe(
                f"conisi-{suffix}-{short}",
                f"ConIsI-{suffix} ({title}), {model}",
                "conisi",
                {
                    **AS_LOOP,
                    **cite(f"{_TEXT}, by its size alone{cased}", model=model),
                    **cite(source, learning_rate=3e-5, batch_size=64, max_length=length),
                    **cite(_TEXT, epochs=1, evaluate_steps=125, seed=42),
                },
                {
                    **cite("ConIsI, section 3.2", strategy=strategy),
                    **cite(source, interaction_weight=weight),
                    **cite("ConIsI, sections 3.1.4 and 4.3", temperature=0.05),
                    **(cite("ours: not in the paper", replacement_rate=0.15) if strategy == "subword" else {}),
                },
                augmentation="antonyms" if strategy == "given" else None,
                differs=(
                    DATA,
                    Difference(
                        "BatchNorm takes its statistics over all 3 N rows: sections 3.1.4 and 3.1.5 do not say of which"
                    ),
                    Difference(
                        "the weights are of the best step on the STS Benchmark's development split, as in SimCSE; "
                        "section 4.3 evaluates every 125 steps, but does not say on what, or which step is kept",
                        ("dev",),
                    ),
                    *_OPEN[strategy],
                    *(() if found else (Difference("the paper has no row of this construction at this size"),)),
                ),
                reported=f"{found} on seven STS sets ({table})" if found else "",
            )
        )
    return made


CONISI = (
    *_conisi(
        "s",
        "other",
        "another sentence of the batch",
        "table 4",
        {"bert-base": "78.30", "roberta-base": "77.34", "bert-large": "79.55"},
    ),
    *_conisi("o1", "subword", "replaced subwords", "table 6", {"bert-base": "77.14", "roberta-base": "78.35"}),
    *_conisi("o2", "given", "antonyms", "table 6", {"bert-base": "77.35", "roberta-base": "78.13"}),
)
