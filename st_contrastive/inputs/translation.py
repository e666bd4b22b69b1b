"""Translation of a corpus into a file of pairs, which continues after it was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from tqdm.auto import tqdm

from st_contrastive._checks import require_texts, warn
from st_contrastive.inputs.builders import Sentences, texts_of
from st_contrastive.inputs.translator import Translator

#: Sentences that are translated and saved at a time, and sorted by length together.
_SAVE_EVERY = 256


def translate_corpus(
    sentences: Sentences,
    output: str | os.PathLike[str],
    translate: str | Path | Callable[[list[str]], list[str]],
    **options: Any,
) -> Path:
    """Translate a corpus into a .jsonl of ``{"sentence": ..., "translation": ...}`` lines.

    Stopped at any moment and called again with the same corpus and settings, it continues; until ``output`` is complete
    it is named ``<output>.partial``. At the end a warning counts empty translations and those that may be cut.

    Args:
        sentences: the corpus, of any length.
        output: the file to write, which :func:`load_translations` reads.
        translate: the name of a model, a :class:`Translator`, or a function from a list of sentences to the list of
            their translations.
        options: arguments of :class:`Translator`, such as ``languages=("en", "de")``, if ``translate`` is a name.

    Raises:
        ValueError: ``output`` or its partial file is of another corpus or other settings, or the first translations
            are all empty.
    """
    path = Path(output).expanduser()
    if path.suffix != ".jsonl":
        raise ValueError(f"output must end in .jsonl, got {path}.")
    texts = iter(texts_of(sentences))
    texts = chain([next(texts)], texts)  # an empty corpus is refused before any file is made
    if isinstance(translate, (str, Path)):
        translate = Translator(translate, **options)
    if not callable(translate):
        raise TypeError(f"translate must be a model's name or a function, got {type(translate).__name__}.")
    settings_path, partial = (path.with_name(path.name + ending) for ending in (".settings.json", ".partial"))
    settings = json.dumps(getattr(translate, "settings", None), ensure_ascii=False)
    begun, done = path if path.exists() else partial, 0
    if begun.exists():
        noted = settings_path.read_text(encoding="utf-8") if settings_path.exists() else "null"
        if noted != settings:
            raise ValueError(f"output: {begun} was made with other settings, {noted:.200}. Delete it to start again.")
        with begun.open("r+b") as file:
            done = _skip(texts, file, begun)
    if begun == path:
        if next(texts, None) is not None:
            raise ValueError(f"output {path} exists and ends before the corpus does. Name another file.")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    settings_path.write_text(settings, encoding="utf-8")
    with partial.open("ab") as file:
        _translate(texts, translate, file, done)
    os.replace(partial, path)
    return path


def _translate(texts: Iterator[str], translate: Callable[[list[str]], list[str]], file: BinaryIO, done: int) -> None:
    """Append the pairs of the texts that are left."""
    count, empty, at_limit = 0, 0, getattr(translate, "at_limit", 0)
    with tqdm(desc="translate", unit=" sentences", initial=done) as bar:
        while batch := list(islice(texts, _SAVE_EVERY)):
            translations = list(require_texts("translate(...)", translate(batch[:])))
            if len(translations) != len(batch):
                raise ValueError(f"translate returned {len(translations)} texts for {len(batch)} sentences.")
            pairs = list(zip(batch, translations, strict=True))
            empty += sum(not translation.strip() for sentence, translation in pairs if sentence.strip())
            count += len(pairs)
            if empty == count > 1 and not done:
                raise ValueError(f"translate: the first {empty} translations are all empty; check model and languages.")
            lines = (json.dumps({"sentence": one, "translation": two}, ensure_ascii=False) for one, two in pairs)
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            bar.update(len(pairs))
    at_limit = getattr(translate, "at_limit", 0) - at_limit
    if empty or at_limit:
        warn(f"Of {count:,} translations, {empty:,} are empty and {at_limit:,} reached max_length and may be cut.")


def _skip(sentences: Iterator[str], file: BinaryIO, path: Path) -> int:
    """Skip the sentences that the file has; a half line at its end, which a killed run leaves, is removed."""
    count, end = 0, 0
    for line in file:
        if not line.endswith(b"\n"):
            file.truncate(end)
            break
        try:
            sentence = json.loads(line)["sentence"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"output: {path} exists and is no file of pairs. Name another file.") from error
        if sentence != next(sentences, None):
            raise ValueError(f"output: {path} is of another corpus: sentence {count + 1} differs. Name another file.")
        count, end = count + 1, end + len(line)
    return count
