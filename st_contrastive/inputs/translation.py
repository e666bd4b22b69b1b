"""A corpus through a translation model into a file of pairs, which survives being stopped."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from st_contrastive.inputs import _checks
from st_contrastive.inputs.corpus import open_bytes
from st_contrastive.inputs.translator import TranslationError, Translator

_WINDOW = 8  # batches that are sorted by length together


def translate_corpus(
    sentences: Iterable[str],
    output: str | Path,
    translate: str | Path | Callable[[list[str]], list[str]],
    *,
    batch_size: int | None = None,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Translate a corpus into a .jsonl or .jsonl.gz of ``{"sentence": ..., "translation": ...}`` lines.

    What is done is kept in ``<output>.partial`` after every batch. Killed at any moment and called again with the same
    corpus and settings, it goes on where it stopped; ``output`` itself appears when it is complete, with the
    translator's settings beside it (``<output>.settings.json``). A complete output of the same corpus and settings is
    left as it is.

    Args:
        sentences: the corpus, an iterable of any length.
        output: the file to write.
        translate: the folder or hub name of a sequence-to-sequence model, a :class:`Translator`, or any function from a
            list of sentences to the list of their translations.
        batch_size: sentences that are kept at a time; None takes eight of the translator's batches, or 256.
        progress: show a bar.
        options: with a name, arguments of :class:`Translator`, such as ``languages=("en", "de")``.

    Returns:
        ``output``, which ``twins_examples(sentences, translations=output)`` and ``read_parallel`` read.

    Raises:
        TranslationError: ``output`` or its partial file is there and of something else.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/pairs.jsonl"
        >>> def shout(batch):
        ...     return [text.upper() for text in batch]
        >>> written = translate_corpus(["a cat", "rain"], path, shout, progress=False)
        >>> from st_contrastive.inputs import read_parallel
        >>> read_parallel(written).translations
        ['A CAT', 'RAIN']
    """
    from tqdm.auto import tqdm

    path = Path(output)
    if Path(path.name.removesuffix(".gz")).suffix != ".jsonl":
        raise TranslationError(f"output {path} must end in .jsonl or .jsonl.gz.")
    if isinstance(translate, (str, Path)):
        translate = Translator(translate, **options)
    elif options or not callable(translate):
        raise TypeError(
            f"translate must be a model's name or a function from a list of sentences to a list of translations, got "
            f"{type(translate).__name__}; the arguments {', '.join(options) or '(none)'} go with a name."
        )
    if batch_size is None:
        batch_size = _WINDOW * getattr(translate, "batch_size", 32)
    _checks.require_count("batch_size", batch_size)
    stream = _checks.texts("sentences", sentences)
    # An empty corpus is an error before there is any file.
    stream = itertools.chain([next(stream)], stream)
    told = path.with_name(path.name + ".settings.json")
    settings = json.dumps(getattr(translate, "settings", None), ensure_ascii=False)
    partial = path.with_name(path.name + ".partial")
    if path.exists():
        if told.exists() and told.read_text(encoding="utf-8") != settings:
            raise TranslationError(f"output {path} was made with other settings, see {told.name}. Name another file.")
        with open_bytes(path) as file:
            _pass_over(stream, file, path)
        if next(stream, None) is not None:
            raise TranslationError(f"output {path} is there and ends before the corpus does. Name another file.")
        partial.unlink(missing_ok=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    header = settings.encode() + b"\n"
    with _appending(partial, header) as file:
        done = _pass_over(stream, file, partial)
        file.seek(0, os.SEEK_END)
        with tqdm(desc="translate", unit=" sentences", initial=done, disable=not progress) as bar:
            for pairs in in_batches("translate", translate, stream, batch_size):
                file.write(b"".join(_line(*pair) for pair in pairs))
                file.flush()
                os.fsync(file.fileno())
                bar.update(len(pairs))
    if settings != "null":
        told.write_text(settings, encoding="utf-8")
    _finish(partial, path, len(header))
    return path


def in_batches(
    name: str, translate: Callable[[list[str]], list[str]], sentences: Iterator[str], batch_size: int
) -> Iterator[list[tuple[str, str]]]:
    """The sentences with their translations, as many at a time as ``translate`` gets.

    Raises:
        TypeError, TranslationError: it, ``name`` in the message, returns something else than a text for each.
    """
    while batch := list(itertools.islice(sentences, batch_size)):
        made = list(_checks.texts(f"{name}' result" if name.endswith("s") else f"{name}'s result", translate(batch[:])))
        if len(made) != len(batch):
            raise TranslationError(f"{name} returned {len(made)} texts for {len(batch)} sentences.")
        yield list(zip(batch, made, strict=True))


def _line(sentence: str, translation: str) -> bytes:
    # JSON escapes the line ends that a sentence may hold.
    return json.dumps({"sentence": sentence, "translation": translation}, ensure_ascii=False).encode() + b"\n"


def _appending(partial: Path, header: bytes) -> BinaryIO:
    """The partial file behind its header, without the half line that a kill may have left."""
    try:
        file = partial.open("r+b")
    except FileNotFoundError:
        file = partial.open("w+b")
    try:
        first = file.readline()
        if not first.endswith(b"\n"):
            file.seek(0)
            file.truncate()
            file.write(header)
            file.flush()
        elif first != header:
            raise TranslationError(
                f"{partial} was begun with other settings: {first.decode(errors='replace').strip():.200}. Delete it to "
                "start again, or go on with those."
            )
        start = file.tell()
        end = start
        while (line := file.readline()).endswith(b"\n"):
            end = file.tell()
        if line:
            file.truncate(end)
        file.seek(start)
    except BaseException:
        file.close()
        raise
    return file


def _pass_over(sentences: Iterator[str], file: Iterable[bytes], path: Path) -> int:
    """Take the sentences off the corpus that the file has; how many."""
    count = 0
    try:
        for line in file:
            if json.loads(line)["sentence"] != next(sentences, None):
                raise TranslationError(
                    f"{path} is there and is not of this corpus: its sentence {count + 1} is another one. Name another "
                    "file, or delete it."
                )
            count += 1
    except TranslationError:
        raise
    except (EOFError, OSError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise TranslationError(f"{path} is there and is no file of pairs, or is damaged ({error}).") from error
    return count


def _finish(partial: Path, path: Path, header: int) -> None:
    """The finished file under its name in one step; a crash leaves the partial one."""
    ready = path.with_name(path.name + ".ready")
    with partial.open("rb") as source, _compressed(ready, path) as target:
        source.seek(header)
        shutil.copyfileobj(source, target)
    os.replace(ready, path)
    partial.unlink()


def _compressed(ready: Path, path: Path) -> Any:
    return gzip.open(ready, "wb") if path.suffix == ".gz" else ready.open("wb")
