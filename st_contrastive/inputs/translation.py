"""Translates a corpus into a file of pairs, with a sequence-to-sequence model or any function."""

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

_SAVE_EVERY = 256  # sentences per write; only these are sorted by length


class Translator:
    """A MarianMT or T5 model that is called with a list of sentences.

    ``num_truncated`` counts the sentences that may be cut: they or their translations reached ``max_length``.

    Args:
        model: folder or hub name of a model with safetensors weights.
        prefix: text put before each sentence, such as ">>deu<< " for a Marian model with several target languages, or
            "translate English to German: " for T5.
        max_length: limit on the tokens of a sentence, and on the tokens of its translation.
        device: None uses the accelerator that torch finds (CUDA, MPS, XPU), or else the CPU.
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
        codes = getattr(self.tokenizer, "supported_language_codes", None) or []
        if hasattr(self.tokenizer, "src_lang"):
            raise ValueError(
                f"model {name} ({type(self.tokenizer).__name__}) takes its languages as arguments of the tokenizer and "
                "of generate, which a prefix can't set. Use a Marian model, such as Helsinki-NLP/opus-mt-en-de, or "
                "pass your own function to translate_corpus in Python."
            )
        if prefix is None and (prefixes or codes):
            known = ", ".join(map(repr, prefixes or [f"{code} " for code in codes[:20]]))
            raise ValueError(f"prefix is missing: model {name} has several tasks or languages. Pass one of {known}.")
        if prefix and codes and prefix.strip() not in codes:
            raise ValueError(f"prefix {prefix!r} is none of the languages of model {name}: {', '.join(codes[:40])}.")
        self.prefix = prefix or ""
        if device is None:
            device = str(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
        self.model.to(device).eval()
        self.batch_size, self.max_length, self.num_beams = batch_size, max_length, num_beams
        self.num_truncated = 0
        self.settings = {"model": name, "prefix": self.prefix, "max_length": max_length, "num_beams": num_beams}

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """Translate sentences. The translations are in the order of the sentences."""
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
    """Translate a corpus into a .jsonl file with lines of the form ``{"sentence": ..., "translation": ...}``.

    An interrupted translation continues if the function is called again with the same corpus and settings. Until the
    file is complete, it is called ``<output>.partial``. At the end, a warning counts the translations that are empty or
    may be cut.

    Args:
        output: the file to write, which :func:`load_translations` reads.
        translate: a :class:`Translator`, or a function from a list of sentences to the list of their translations.

    Raises:
        ValueError: ``output`` holds translations of another corpus, or was written with other settings.
    """
    path = Path(output).expanduser()
    if path.suffix != ".jsonl":
        raise ValueError(f"output must end in .jsonl, got {path}.")
    texts = iter(iter_texts(sentences))
    texts = chain([next(texts)], texts)  # refuse an empty corpus before creating a file
    settings_path, partial = (path.with_name(path.name + ending) for ending in (".settings.json", ".partial"))
    settings = json.dumps(getattr(translate, "settings", None), ensure_ascii=False)
    existing, done = path if path.exists() else partial, 0
    if existing.exists():
        saved_settings = settings_path.read_text(encoding="utf-8") if settings_path.exists() else "null"
        if saved_settings != settings:
            raise ValueError(
                f"output: {existing} was written with other settings, {saved_settings:.200}. Delete it to start again."
            )
        with existing.open("r+b") as file:
            done = _skip(texts, file, existing)
    if existing == path:
        if next(texts, None) is not None:
            raise ValueError(f"output {path} exists, but has fewer sentences than the corpus. Name another file.")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    settings_path.write_text(settings, encoding="utf-8")
    with partial.open("ab") as file:
        _translate(texts, translate, file, done)
    os.replace(partial, path)
    return path


def _translate(texts: Iterator[str], translate: Callable[[list[str]], list[str]], file: BinaryIO, done: int) -> None:
    """Translate the remaining texts and append the pairs to the file."""
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
    """Skip the sentences that the file already has. Remove a half line at its end, which a killed run leaves behind."""
    count, end = 0, 0
    for line in file:
        if not line.endswith(b"\n"):
            file.truncate(end)
            break
        sentence = None
        with suppress(KeyError, TypeError, ValueError):  # the file may hold something else
            sentence = json.loads(line)["sentence"]
        if sentence is None or sentence != next(sentences, None):
            raise ValueError(
                f"output: {path} holds translations of another corpus: sentence {count + 1} differs. Name another file."
            )
        count, end = count + 1, end + len(line)
    return count
