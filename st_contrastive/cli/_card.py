"""The saved model's card: facts about the run that sentence-transformers' template leaves blank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from st_contrastive import __version__
from st_contrastive.cli._record import last_part
from st_contrastive.methods import Method

#: Comments that the template writes for empty fields.
_BLANK = re.compile(
    r"^ *<!-- - \*\*(?:Base model|Training Dataset|Language|License):\*\*.*Unknown.*-->\n", re.MULTILINE
)
_SETTINGS = {
    "batch_size": "{} sentences a batch",
    "learning_rate": "learning rate {:g}",
    "max_length": "{} tokens a sentence",
    "warmup": "warm-up over {:g} of the steps",
    "pooling": "pooling {}",
    "seed": "seed {}",
}
_OTHERS = {
    "translations": "Translations",
    "translation_encoder": "Translation encoder",
    "auxiliary": "Auxiliary network",
    "generator": "Generator",
}


def prepare(model: SentenceTransformer, method: Method, base: str, data: str) -> None:
    """Give the card its title, base model and training text before the Trainer fills in the rest.

    Nothing is looked up on the hub. The widget gets an empty entry, which keeps the Trainer's constructor from adding
    random sentences of the training text as examples; the caller removes it afterwards.

    Args:
        model: the model that is trained.
        method: the method that it is trained with.
        base: folder or hub name of the encoder that training starts from.
        data: file of the training text.
    """
    card = model.model_card_data
    card.local_files_only = True
    card.model_name = f"{last_part(base)} trained with {method.title}"
    if not Path(base).exists():  # a name on the hub, which the card links to
        card.base_model = base
    card.train_datasets = [{"name": Path(data).name}]
    card.widget = [{"text": ""}]
    card.add_tags("st_contrastive")


def add_facts(folder: Path, method: Method, record: dict[str, Any], *, size: int, sentences: int) -> None:
    """Add a table of facts to the card in ``folder``, and remove the template's empty fields.

    Args:
        folder: folder of the saved model.
        method: the method that the model was trained with.
        record: the record of the run.
        size: size of the training text in bytes.
        sentences: number of sentences in it.
    """
    path = folder / "README.md"
    if not path.is_file():
        return
    text = _BLANK.sub("", path.read_text(encoding="utf-8"))
    facts = _facts(method, record, size, sentences)
    rows = "".join(f"| {name} | {value.replace('|', chr(92) + '|')} |\n" for name, value in facts.items())
    section = f"## Training Run\n\n|   |   |\n|:--|:--|\n{rows}\n"
    path.write_text(text.replace("## Model Details\n", f"{section}## Model Details\n", 1), encoding="utf-8")


def _facts(method: Method, record: dict[str, Any], size: int, sentences: int) -> dict[str, str]:
    options, before, best = record["options"], record["dev_before"], record["best"] or {}
    found = {"Base model": str(options["model"]), "Method": f"{method.title} (`{method.loss}`)"}
    if options.get("recipe"):
        found["Recipe"] = f"`{options['recipe']}`"
    found["Training text"] = f"`{options['data']}`, {_size(size)}, {sentences:,} sentences"
    found |= {title: f"`{options[key]}`" for key, title in _OTHERS.items() if options.get(key)}
    settings = [form.format(options[key]) for key, form in _SETTINGS.items() if options.get(key) or key == "seed"]
    found["Settings"] = ", ".join([f"{record['steps']:,} steps", *settings])
    if options.get("loss_arg"):
        found["Loss arguments"] = ", ".join(f"`{one}`" for one in options["loss_arg"])
    start = "after stage 1" if options.get("stage1") else "before training"
    weights = "those of the last step" if best.get("step") is None else f"those of step {best['step']}"
    if before is not None and record["dev_after"] is not None:
        pairs = f"`{options['dev']}`" if options.get("dev") else "the STS Benchmark's development split"
        found["Development score"] = (
            f"{100 * before:.2f} {start}, {100 * record['dev_after']:.2f} with the saved weights "
            f"(Spearman x 100 on {pairs})"
        )
    if record["share"] < 1:
        weights = f"{record['share']:g} of {weights}, and {1 - record['share']:g} of those {start}"
    found["Weights"] = weights
    found["Made with"] = f"st_contrastive {__version__}"
    return found


def _size(count: int) -> str:
    """A number of bytes in a readable unit.

    Example:
        >>> _size(900), _size(12_300), _size(2_500_000)
        ('900 bytes', '12.3 kB', '2.5 MB')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
