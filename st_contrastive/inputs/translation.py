"""A corpus through a translation model into a file of pairs, which survives being stopped."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from st_contrastive._checks import require_count
from st_contrastive._files import complete_file
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
        TranslationError: ``output`` or its partial file is there and of something else, or can't be written.

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
    require_count("batch_size", batch_size)
    stream = _checks.texts("sentences", sentences)
    # An empty corpus is an error before there is any file.
    stream = itertools.chain([next(stream)], stream)
    told = path.with_name(path.name + ".settings.json")
    settings = json.dumps(getattr(translate, "settings", None), ensure_ascii=False)
    partial = path.with_name(path.name + ".partial")
    if path.exists():
        if told.exists() and told.read_bytes() != settings.encode():
            raise TranslationError(f"output {path} was made with other settings, see {told.name}. Name another file.")
        _passed_file(stream, path)
        if next(stream, None) is not None:
            raise TranslationError(f"output {path} is there and ends before the corpus does. Name another file.")
        partial.unlink(missing_ok=True)
        return path
    header = settings.encode() + b"\n"
    with _saying(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _appending(partial, header)
    with file:
        done = _pass_over(stream, file, partial)
        file.seek(0, os.SEEK_END)
        with tqdm(desc="translate", unit=" sentences", initial=done, disable=not progress) as bar:
            for pairs in in_batches("translate", translate, stream, batch_size):
                _append(file, b"".join(_line(*pair) for pair in pairs), path)
                bar.update(len(pairs))
    with _saying(path):
        if settings != "null":
            with complete_file(told) as ready:
                ready.write_text(settings, encoding="utf-8")
        with (
            complete_file(path) as ready,
            partial.open("rb") as source,
            _compressed(ready, path) as target,
        ):
            source.seek(len(header))
            shutil.copyfileobj(source, target)
        partial.unlink()
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


def _append(file: BinaryIO, content: bytes, path: Path) -> None:
    """Write, down to the disk; a half line that did not fit is taken off when the file is opened again."""
    with _saying(path):
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.raw.close()  # type: ignore[attr-defined] # else closing the file would try again, and raise
            raise


def _appending(partial: Path, header: bytes) -> BinaryIO:
    """The partial file behind its header, without the half line that a kill may have left."""
    is_new = not partial.exists()
    file = partial.open("x+b" if is_new else "r+b")
    try:
        first = file.readline()
        if header != first and header.startswith(first):  # new, or stopped within it
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
        file.raw.close()
        if is_new:
            partial.unlink()
        raise
    return file


def _passed_file(sentences: Iterator[str], path: Path) -> None:
    try:
        with open_bytes(path) as file:
            _pass_over(sentences, file, path)
    except OSError as error:
        raise TranslationError(f"output {path} can't be read: {error.strerror or error}.") from error


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


@contextmanager
def _saying(path: Path) -> Iterator[None]:
    """An error of the disk as one that says what is kept."""
    try:
        yield
    except OSError as error:
        partial = path.with_name(path.name + ".partial")
        kept = f" What is translated so far is in {partial.name}: call again to go on." if partial.exists() else ""
        raise TranslationError(f"output {path} can't be written: {error.strerror or error}.{kept}") from error


def _compressed(ready: Path, path: Path) -> Any:
    return gzip.open(ready, "wb") if path.suffix == ".gz" else ready.open("wb")
