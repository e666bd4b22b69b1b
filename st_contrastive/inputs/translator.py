"""Translator: a sequence-to-sequence model as a function on lists of sentences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from st_contrastive._checks import first_line, require_count, require_texts
from st_contrastive._files import checkpoint_name


class Translator:
    """A MarianMT or T5 model as a function on lists of sentences.

    ``at_limit`` counts the sentences that reached ``max_length``, or whose translation did; they may be cut.

    Args:
        model: folder or hub name of a model with safetensors weights.
        languages: source and target, ("en", "de"), for a T5 that has a prefix for them. None for a model of one
            direction.
        prefix: text put before each sentence in place of the model's own prefix: ">>deu<< " for a Marian model of
            several target languages.
        batch_size: number of sentences per batch; each batch has sentences of similar length.
        max_length: limit on the tokens read of a sentence, and on the tokens generated for it.
        num_beams: number of beams; 1 decodes greedily.
        device: the device; None takes the accelerator that torch finds (CUDA, MPS, XPU), or else the CPU.

    Raises:
        OSError, ValueError: the model can't be loaded, or does not know the languages.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        languages: tuple[str, str] | None = None,
        prefix: str | None = None,
        batch_size: int = 32,
        max_length: int = 128,
        num_beams: int = 1,
        device: str | None = None,
    ) -> None:
        for argument, value in (("batch_size", batch_size), ("max_length", max_length), ("num_beams", num_beams)):
            require_count(argument, value)
        name = checkpoint_name(os.fspath(model), "model")
        try:
            self.model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=False, use_safetensors=True)
            self.tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(
                f"model {name} can't be loaded: {first_line(error).rstrip('.')}. It must be a sequence-to-sequence "
                "model with safetensors and its tokenizer; Marian's tokenizer needs the extra 'translate'."
            ) from error
        if 2 * len(self.tokenizer) < self.model.get_input_embeddings().num_embeddings:
            # transformers makes an empty tokenizer where a folder has no files of one
            raise ValueError(f"model {name} has no tokenizer files. Save the tokenizer beside the model.")
        self.prefix = self._prefix_for(name, languages) if prefix is None else prefix
        if device is None:
            device = str(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
        self.model.to(device).eval()
        self.batch_size, self.max_length, self.num_beams = batch_size, max_length, num_beams
        self.at_limit = 0
        self.settings = {"model": name, "prefix": self.prefix, "max_length": max_length, "num_beams": num_beams}

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """The translations, in the order of the sentences."""
        sentences = list(require_texts("sentences", sentences))
        order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]), reverse=True)
        translations = [""] * len(sentences)
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            for place, text in zip(places, self._batch([sentences[place] for place in places]), strict=True):
                translations[place] = text
        return translations

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
        self.at_limit += int(((read >= self.max_length) | (written >= self.max_length)).sum())
        return [" ".join(text.split()) for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]

    def _prefix_for(self, name: str, languages: tuple[str, str] | None) -> str:
        """The model's own prefix for the languages."""
        tasks: dict[str, Any] = getattr(self.model.config, "task_specific_params", None) or {}
        prefixes = {task.removeprefix("translation_"): each.get("prefix", "") for task, each in tasks.items()}
        many = hasattr(self.tokenizer, "src_lang") or getattr(self.tokenizer, "supported_language_codes", None)
        if languages is None and not prefixes and not many:
            return ""
        if (direction := "_to_".join(languages or ())) not in prefixes:
            known = ", ".join(prefixes) or "no languages by name: give prefix=... (or a function as translate)"
            raise ValueError(f"languages={languages!r}: model {name} knows {known}.")
        return str(prefixes[direction])
