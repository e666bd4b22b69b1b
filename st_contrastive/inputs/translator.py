"""Translator: a sequence-to-sequence model as a function on lists of sentences."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from st_contrastive._checks import first_line, require_count, require_languages, require_texts


class TranslationError(ValueError):
    """A translation can't be started or continued; the message names the remedy."""


class Translator:
    """A transformers sequence-to-sequence model (Marian, T5, mBART, NLLB, ...) as a function on lists of sentences.

    ``at_limit`` counts the sentences that reached ``max_length``, or whose translation did; they may be cut.

    Args:
        model: folder or hub name of a model with safetensors weights; or a loaded model, with ``tokenizer``.
        tokenizer: the tokenizer of a loaded model.
        languages: source and target, as the model names them: ("en", "de") for T5, ("eng_Latn", "deu_Latn") for NLLB,
            ("en_XX", "de_DE") for mBART. A Marian model of many languages uses the target only. None for a model of
            one direction.
        prefix: text put before each sentence, which T5 needs. None takes the model's own prefix for ``languages``.
        batch_size: number of sentences per batch.
        max_length: limit on the tokens read of a sentence, and on the tokens generated for it.
        num_beams: number of beams; 1 decodes greedily.
        device: the device; None takes a GPU if there is one.

    Raises:
        TranslationError: the model can't be loaded, or does not know a language; the message names known ones.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        languages: tuple[str, str] | None = None,
        prefix: str | None = None,
        batch_size: int = 32,
        max_length: int = 128,
        num_beams: int = 1,
        device: str | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("max_length", max_length), ("num_beams", num_beams)):
            require_count(name, value)
        if languages is not None:
            require_languages(languages)
        if isinstance(model, (str, Path)):
            self.name = str(model)
            model, tokenizer = _loaded(self.name)
        elif isinstance(model, PreTrainedModel):
            self.name = model.name_or_path or type(model).__name__
        else:
            raise TypeError(f"model must be a folder, a hub name or a loaded model, got {type(model).__name__}.")
        if tokenizer is None:
            raise TypeError("a loaded model needs tokenizer=... too.")
        try:
            model.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))  # type: ignore[arg-type]
        except RuntimeError as error:
            raise TranslationError(f"device {device!r} can't be used: {first_line(error)}") from error
        self.model = model.train(False)
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.prefix, self.options = _direction(self.name, model, tokenizer, languages, prefix)
        # A checkpoint may set max_length, which would contradict max_new_tokens.
        self.options.update(max_new_tokens=max_length, max_length=None, num_beams=num_beams, do_sample=False)
        self.max_length = max_length
        self.at_limit = 0
        self.settings = {
            "model": self.name,
            "languages": languages,
            "prefix": self.prefix,
            "max_length": max_length,
            "num_beams": num_beams,
        }

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """The translations, in the order of the sentences. Each batch has sentences of similar length."""
        sentences = list(require_texts("sentences", sentences)) if len(sentences) else []
        order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]), reverse=True)
        made: dict[int, str] = {}
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            made.update(zip(places, self._batch([sentences[place] for place in places]), strict=True))
        return [made[index] for index in range(len(sentences))]

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
        decoded: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [" ".join(text.split()) for text in decoded]


def _loaded(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    errors = (OSError, ValueError, ImportError, RuntimeError)
    saved = "from_pretrained(name).save_pretrained(folder)"
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=False, use_safetensors=True)
    except errors as error:
        reason = f"model {name} can't be loaded as a sequence-to-sequence model: {first_line(error).rstrip('.')}."
        if "safetensors" in str(error):
            reason += f" AutoModelForSeq2SeqLM.{saved} and AutoTokenizer.{saved} convert weights of another kind."
        raise TranslationError(reason) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except errors as error:
        reason = f"the tokenizer of model {name} can't be loaded: {first_line(error).rstrip('.')}."
        if find_spec("sentencepiece") is None:
            reason += (
                " Marian's needs the package sentencepiece: install it, or this package with its extra 'translate'."
            )
        raise TranslationError(reason) from error
    entries, known = model.get_input_embeddings().num_embeddings, len(tokenizer)
    if 2 * known < entries:  # transformers makes an empty tokenizer where a folder has no files of one
        raise TranslationError(
            f"the tokenizer of model {name} has {known:,} tokens, and the model {entries:,}: its files are missing. "
            f"Save it beside the model: AutoTokenizer.{saved}."
        )
    return model, tokenizer


def _direction(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    languages: tuple[str, str] | None,
    prefix: str | None,
) -> tuple[str, dict[str, Any]]:
    """The prefix of a sentence and the arguments of ``generate`` for a pair of languages."""
    tasks = getattr(model.config, "task_specific_params", None) or {}
    directions = {task.removeprefix("translation_"): params for task, params in tasks.items() if "prefix" in params}
    codes: list[str] = getattr(tokenizer, "supported_language_codes", None) or []
    if languages is None:
        if prefix is None and (codes or hasattr(tokenizer, "src_lang")):
            raise TranslationError(f"model {name} knows several languages: give languages=(source, target).")
        if prefix is None and directions:
            known = ", ".join(sorted(directions))
            raise TranslationError(f"model {name} needs languages=(source, target), one of {known}; or prefix=....")
        return prefix or "", {}
    source, target = languages
    if hasattr(tokenizer, "src_lang"):  # mBART, NLLB, M2M-100
        ids = {language: _language_id(tokenizer, language) for language in languages}
        for language, token_id in ids.items():
            if token_id is None:
                _unknown(name, language, sorted(tokenizer.all_special_tokens))
        tokenizer.src_lang = source
        return prefix or "", {"forced_bos_token_id": ids[target]}
    if prefix is not None:
        return prefix, {}
    if codes:  # Marian models of several target languages
        if f">>{target}<<" not in codes:
            _unknown(name, target, [code.strip("<>") for code in codes])
        return f">>{target}<< ", {}
    if directions:
        if f"{source}_to_{target}" not in directions:
            _unknown(name, f"{source}_to_{target}", sorted(directions))
        return directions[f"{source}_to_{target}"]["prefix"], {}
    raise TranslationError(
        f"model {name} has no list of languages, so languages={languages!r} can't be looked up. Leave it out, or give "
        'the text to put before each sentence: prefix="translate English to German: ".'
    )


def _language_id(tokenizer: PreTrainedTokenizerBase, language: str) -> int | None:
    # M2M-100 writes its language tokens as __de__.
    for token in (language, f"__{language}__"):
        token_id = tokenizer.convert_tokens_to_ids(token)
        if isinstance(token_id, int) and token_id != tokenizer.unk_token_id and token in tokenizer.all_special_tokens:
            return token_id
    return None


def _unknown(name: str, language: str, known: list[str]) -> NoReturn:
    near = difflib.get_close_matches(language, known, n=5, cutoff=0.3) or known[:5]
    raise TranslationError(f"model {name} does not know {language!r}; it knows, among others: {', '.join(near)}.")
