"""Translation of a corpus into a file of pairs, by a sequence-to-sequence model or any function."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from st_contrastive._arguments import Count, checked
from st_contrastive._checks import require_texts, warn
from st_contrastive._files import checkpoint_name
from st_contrastive.inputs.builders import Sentences, iter_texts

_SAVE_EVERY = 256  # sentences, which are also sorted by length together


class Translator:
    """A MarianMT or T5 model as a function on lists of sentences.

    ``num_truncated`` counts the sentences that reached ``max_length``, or whose translation did; they may be cut.

    Args:
        model: folder or hub name of a model with safetensors weights.
        prefix: text before each sentence, such as ">>deu<< " for a Marian model of several target languages, or
            "translate English to German: " for T5.
        max_length: limit on the tokens read of a sentence, and on the tokens generated for it.
        device: None takes the accelerator that torch finds (CUDA, MPS, XPU), or else the CPU.
    """

    @checked
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        prefix: str | None = None,
        batch_size: Count = 32,
        max_length: Count = 128,
        num_beams: Count = 1,
        device: str | None = None,
    ) -> None:
        name = checkpoint_name(os.fspath(model), "model")
        self.model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=False, use_safetensors=True)
        self.tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        tasks = getattr(self.model.config, "task_specific_params", None) or {}
        prefixes = [options["prefix"] for options in tasks.values() if "prefix" in options]
        several = hasattr(self.tokenizer, "src_lang") or getattr(self.tokenizer, "supported_language_codes", None)
        if prefix is None and (prefixes or several):
            known = ", ".join(map(repr, prefixes)) or "'>>deu<< '"
            raise ValueError(
                f"prefix is missing: model {name} has several tasks or languages. Name one, such as {known}, or give "
                "translate_corpus a function."
            )
        self.prefix = prefix or ""
        if device is None:
            device = str(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
        self.model.to(device).eval()
        self.batch_size, self.max_length, self.num_beams = batch_size, max_length, num_beams
        self.num_truncated = 0
        self.settings = {"model": name, "prefix": self.prefix, "max_length": max_length, "num_beams": num_beams}

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """The translations, in the order of the sentences."""
        sentences = list(require_texts("sentences", sentences))
        order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]), reverse=True)
        translations: dict[int, str] = {}
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            translations.update(zip(indices, self._batch([sentences[index] for index in indices]), strict=True))
        return [translations[index] for index in range(len(sentences))]

    def _batch(self, sentences: list[str]) -> list[str]:
        texts = [self.prefix + sentence for sentence in sentences]
        inputs = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        ).to(self.model.device)
        inputs.pop("token_type_ids", None)
        # A checkpoint may set max_length, which would contradict max_new_tokens.
        options = {"max_new_tokens": self.max_length, "max_length": None, "num_beams": self.num_beams}
        with torch.inference_mode():
            ids = self.model.generate(**inputs, **options, do_sample=False)
        read, written = inputs["attention_mask"].sum(dim=1), (ids[:, 1:] != self.model.config.pad_token_id).sum(dim=1)
        self.num_truncated += int(((read >= self.max_length) | (written >= self.max_length)).sum())
        return [" ".join(text.split()) for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]


@checked
def translate_corpus(
    sentences: Sentences,
    output: str | os.PathLike[str],
    translate: Callable[[list[str]], list[str]],
) -> Path:
    """Translate a corpus into a .jsonl of ``{"sentence": ..., "translation": ...}`` lines.

    Stopped at any moment and called again with the same corpus and settings, it continues; until ``output`` is complete
    it is named ``<output>.partial``. At the end a warning counts empty translations and those that may be cut.

    Args:
        output: the file to write, which :func:`load_translations` reads.
        translate: a :class:`Translator`, or a function from a list of sentences to the list of their translations.

    Raises:
        ValueError: ``output`` is of another corpus or other settings.
    """
    path = Path(output).expanduser()
    if path.suffix != ".jsonl":
        raise ValueError(f"output must end in .jsonl, got {path}.")
    texts = iter(iter_texts(sentences))
    texts = chain([next(texts)], texts)  # an empty corpus is refused before any file is made
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
    count, empty, num_truncated = 0, 0, getattr(translate, "num_truncated", 0)
    with tqdm(desc="translate", unit=" sentences", initial=done) as bar:
        while batch := list(islice(texts, _SAVE_EVERY)):
            translations = list(require_texts("translate(...)", translate(batch[:])))
            pairs = list(zip(batch, translations, strict=True))
            empty += sum(not translation.strip() for sentence, translation in pairs if sentence.strip())
            count += len(pairs)
            lines = (json.dumps({"sentence": one, "translation": two}, ensure_ascii=False) for one, two in pairs)
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            bar.update(len(pairs))
    num_truncated = getattr(translate, "num_truncated", 0) - num_truncated
    if empty or num_truncated:
        warn(
            f"Of the last {count:,} translations, {empty:,} are empty, and {num_truncated:,} may be cut: they reached "
            "max_length."
        )


def _skip(sentences: Iterator[str], file: BinaryIO, path: Path) -> int:
    """Skip the sentences that the file has; a half line at its end, which a killed run leaves, is removed."""
    count, end = 0, 0
    for line in file:
        if not line.endswith(b"\n"):
            file.truncate(end)
            break
        sentence = None
        with suppress(KeyError, TypeError, ValueError):  # of a file of something else
            sentence = json.loads(line)["sentence"]
        if sentence is None or sentence != next(sentences, None):
            raise ValueError(f"output: {path} is of another corpus: sentence {count + 1} differs. Name another file.")
        count, end = count + 1, end + len(line)
    return count
