"""Translator: a sequence-to-sequence model as a function on lists of sentences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase

from st_contrastive._checks import first_line, require_count, require_languages, require_texts
from st_contrastive._files import checkpoint_name


class Translator:
    """A transformers sequence-to-sequence model (Marian, T5, mBART, NLLB, ...) as a function on lists of sentences.

    ``at_limit`` counts the sentences that reached ``max_length``, or whose translation did; they may be cut.

    Args:
        model: folder or hub name of a model with safetensors weights.
        languages: source and target, as the model names them: ("en", "de") for T5, ("eng_Latn", "deu_Latn") for NLLB,
            ("en_XX", "de_DE") for mBART. A Marian model of many languages uses the target only. None for a model of
            one direction.
        prefix: text put before each sentence, which T5 needs. None takes the model's own prefix for ``languages``.
        batch_size: number of sentences per batch; each batch has sentences of similar length.
        max_length: limit on the tokens read of a sentence, and on the tokens generated for it.
        num_beams: number of beams; 1 decodes greedily.
        device: the device; None takes the accelerator that torch finds (CUDA, MPS, XPU), or else the CPU.

    Raises:
        ValueError: the model can't be loaded, or does not know a language; the message names those that it knows.
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
        if languages is not None:
            require_languages(languages)
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
        if device is None:
            device = str(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
        self.model.to(device).eval()
        self.batch_size, self.max_length = batch_size, max_length
        self.prefix, forced = _direction(name, self.model, self.tokenizer, languages, prefix)
        # A checkpoint may set max_length, which would contradict max_new_tokens.
        self.options = {
            **forced, "max_new_tokens": max_length, "max_length": None, "num_beams": num_beams, "do_sample": False
        }  # fmt: skip
        self.at_limit = 0
        self.settings = {
            "model": name, "languages": languages, "prefix": self.prefix, "max_length": max_length, "num_beams": num_beams
        }  # fmt: skip

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """The translations, in the order of the sentences."""
        sentences = list(require_texts("sentences", sentences)) if len(sentences) else []
        order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]), reverse=True)
        translations = [""] * len(sentences)
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            for place, text in zip(places, self._batch([sentences[place] for place in places]), strict=True):
                translations[place] = text
        return translations

    def _batch(self, sentences: list[str]) -> list[str]:
        inputs = self.tokenizer(
            [self.prefix + sentence for sentence in sentences],
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        ).to(self.model.device)
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            ids = self.model.generate(**inputs, **self.options)
        read, written = inputs["attention_mask"].sum(dim=1), (ids[:, 1:] != self.model.config.pad_token_id).sum(dim=1)
        self.at_limit += int(((read >= self.max_length) | (written >= self.max_length)).sum())
        texts: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [" ".join(text.split()) for text in texts]


def _direction(
    name: str, model: Any, tokenizer: PreTrainedTokenizerBase, languages: tuple[str, str] | None, prefix: str | None
) -> tuple[str, dict[str, Any]]:
    """The prefix of a sentence and the arguments of ``generate`` for a pair of languages."""
    if prefix is not None and not hasattr(tokenizer, "src_lang"):
        return prefix, {}
    tasks = getattr(model.config, "task_specific_params", None) or {}
    prefixes = {task.removeprefix("translation_"): each["prefix"] for task, each in tasks.items() if "prefix" in each}
    codes = [code.strip("<>") for code in getattr(tokenizer, "supported_language_codes", None) or []]
    if hasattr(tokenizer, "src_lang"):  # mBART, NLLB, M2M-100, which writes its language tokens as __de__
        specials = {token.strip("_"): token for token in tokenizer.all_special_tokens}
        known, asked = sorted(specials), languages or ()
    elif codes:  # Marian models of several target languages
        known, asked = codes, languages[1:] if languages else ()
    elif prefixes:  # T5
        known, asked = sorted(prefixes), ("_to_".join(languages),) if languages else ()
    elif languages is None:
        return "", {}
    else:
        raise ValueError(
            f'languages={languages!r}: model {name} has no list of them. Leave it out, or give prefix="...".'
        )
    if not asked or not set(asked) <= set(known):
        raise ValueError(f"languages={languages!r}: model {name} translates {', '.join(known[:20])}, ....")
    if hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang, target = asked
        return prefix or "", {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(specials[target])}
    return (f">>{asked[0]}<< " if codes else prefixes[asked[0]]), {}
