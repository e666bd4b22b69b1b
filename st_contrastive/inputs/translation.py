"""Translation of a corpus into a file of pairs, which continues after it was stopped."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from st_contrastive._checks import require_count, require_texts, warn
from st_contrastive._files import complete_file, new_folder
from st_contrastive.inputs.corpus import open_bytes
from st_contrastive.inputs.translator import TranslationError, Translator

_BATCHES_SORTED_TOGETHER = 8  # by length, in the translator


def translate_corpus(
    sentences: Iterable[str],
    output: str | Path,
    translate: str | Path | Callable[[list[str]], list[str]],
    *,
    save_every: int | None = None,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Translate a corpus into a .jsonl or .jsonl.gz of ``{"sentence": ..., "translation": ...}`` lines.

    Each batch is saved in ``<output>.partial``. Stopped at any moment and called again with the same corpus and
    settings, it continues there. ``output`` appears when it is complete, with the translator's settings beside it
    (``<output>.settings.json``). A complete output of the same corpus and settings is left as it is. At the end a
    warning counts the empty translations, and the sentences that reached the translator's ``max_length``.

    Args:
        sentences: the corpus, an iterable of any length.
        output: the file to write.
        translate: the folder or hub name of a sequence-to-sequence model, a :class:`Translator`, or any function from a
            list of sentences to the list of their translations.
        save_every: number of sentences that are translated and saved at a time; None takes eight of the translator's
            batches, or 256.
        progress: show a progress bar.
        options: arguments of :class:`Translator`, such as ``languages=("en", "de")``, if ``translate`` is a name. The
            model is loaded once ``output`` is known to be usable.

    Returns:
        ``output``, which ``twins_examples(sentences, translations=output)`` and ``read_parallel`` read.

    Raises:
        TranslationError: ``output`` or its partial file exists and holds something else, or can't be written; or all
            translations that are to be saved first are empty.

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
    if save_every is not None:
        require_count("save_every", save_every)
    if not isinstance(translate, (str, Path)) and (options or not callable(translate)):
        raise TypeError(
            f"translate must be a model's name or a function from a list of sentences to a list of translations, got "
            f"{type(translate).__name__}; the arguments {', '.join(options) or '(none)'} go with a name."
        )
    stream = require_texts("sentences", sentences)
    stream = itertools.chain([next(stream)], stream)  # an empty corpus is refused before any file is made
    settings_path, partial = (path.with_name(path.name + ending) for ending in (".settings.json", ".partial"))
    is_complete = path.exists()
    if is_complete:
        _skip(stream, _lines(path), path)
        if next(stream, None) is not None:
            raise TranslationError(f"output {path} exists and ends before the corpus does. Name another file.")
    with ExitStack() as stack:
        if not is_complete:
            with _write_errors(path):
                stack.enter_context(new_folder(path.parent))
                _require_writable(partial)
        if isinstance(translate, (str, Path)):
            translate = Translator(translate, **options)
    settings = json.dumps(getattr(translate, "settings", None), ensure_ascii=False)
    if is_complete:
        made_with = settings_path.read_text(encoding="utf-8") if settings_path.exists() else "null"  # a function
        if made_with != settings:
            raise TranslationError(
                f"output {path} was made with other settings, {made_with:.200}. Name another file, or delete it."
            )
        partial.unlink(missing_ok=True)
        return path
    header = settings.encode() + b"\n"
    with _write_errors(path):
        file = _open_partial(partial, header)
    count, empty, at_limit = 0, 0, getattr(translate, "at_limit", 0)
    with file:
        done = _skip(stream, _complete_lines(file), partial)
        save_every = save_every or _BATCHES_SORTED_TOGETHER * getattr(translate, "batch_size", 32)
        with tqdm(desc="translate", unit=" sentences", initial=done, disable=not progress) as bar:
            for pairs in in_batches("translate", translate, stream, save_every):
                empty += sum(not translation.strip() for sentence, translation in pairs if sentence.strip())
                if empty == len(pairs) > 1 and not done + count:
                    raise TranslationError(
                        f"the first {empty} translations are all empty: check the model, its tokenizer and languages."
                    )
                count += len(pairs)
                rows = ({"sentence": sentence, "translation": translation} for sentence, translation in pairs)
                _append(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(), path)
                bar.update(len(pairs))
    with _write_errors(path):
        if settings != "null":
            with complete_file(settings_path) as ready:
                ready.write_text(settings, encoding="utf-8")
        with (
            complete_file(path) as ready,
            partial.open("rb") as source,
            gzip.open(ready, "wb") if path.suffix == ".gz" else ready.open("wb") as target,
        ):
            source.seek(len(header))
            shutil.copyfileobj(source, target)
        partial.unlink()
    at_limit = getattr(translate, "at_limit", 0) - at_limit
    found = [f"{empty:,} translations are empty"] if empty else []
    found += [f"{at_limit:,} sentences or translations reached max_length, and may be cut"] if at_limit else []
    if found:
        warn(f"Of the {count:,} sentences translated now, {' and '.join(found)}.")
    return path


def _require_writable(partial: Path) -> None:
    """Refuse a file that can't be made, before a model is loaded for it."""
    is_new = not partial.exists()
    partial.open("ab").close()
    if is_new:
        partial.unlink()


def in_batches(
    name: str, translate: Callable[[list[str]], list[str]], sentences: Iterator[str], batch_size: int
) -> Iterator[list[tuple[str, str]]]:
    """Batches of the sentences with their translations; ``name`` is what errors call ``translate``.

    Raises:
        TypeError, ValueError: ``translate`` does not return one text for each sentence.
    """
    while batch := list(itertools.islice(sentences, batch_size)):
        translations = list(require_texts(f"{name}(...)", translate(batch[:])))
        if len(translations) != len(batch):
            raise TranslationError(f"{name} returned {len(translations)} texts for {len(batch)} sentences.")
        yield list(zip(batch, translations, strict=True))


def _append(file: BinaryIO, content: bytes, path: Path) -> None:
    """Write to the disk. If only a part of a line fits, it is removed when the file is opened again."""
    with _write_errors(path):
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.raw.close()  # type: ignore[attr-defined] # otherwise closing the file would write again, and raise
            raise


def _open_partial(partial: Path, header: bytes) -> BinaryIO:
    """The partial file, positioned after its header."""
    is_new = not partial.exists()
    file = partial.open("x+b" if is_new else "r+b")
    try:
        first = file.readline()
        if header != first and header.startswith(first):  # a new file, or one without its whole header
            file.seek(0)
            file.truncate()
            file.write(header)
            file.flush()
        elif first != header:
            raise TranslationError(
                f"{partial} was begun with other settings: {first.decode(errors='replace').strip():.200}. Delete it to "
                "start again, or use those settings."
            )
    except BaseException:
        file.raw.close()
        if is_new:
            partial.unlink()
        raise
    return file


def _lines(path: Path) -> Iterator[bytes]:
    with open_bytes(path) as file:
        yield from file


def _complete_lines(file: BinaryIO) -> Iterator[bytes]:
    """The rest of the file's lines. A half line at the end, which a killed run may leave, is removed from the file."""
    end = file.tell()
    while (line := file.readline()).endswith(b"\n"):
        yield line
        end = file.tell()
    if line:
        file.truncate(end)
    file.seek(end)


def _skip(sentences: Iterator[str], lines: Iterable[bytes], path: Path) -> int:
    """Skip the sentences of the corpus that the lines of a file have, and return their number."""
    count = 0
    try:
        for line in lines:
            if json.loads(line)["sentence"] != next(sentences, None):
                raise TranslationError(
                    f"{path} exists and is not of this corpus: its sentence {count + 1} differs. Name another file, or "
                    "delete it."
                )
            count += 1
    except TranslationError:
        raise
    except (EOFError, OSError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise TranslationError(f"{path} exists and can't be read as a file of pairs ({error}).") from error
    return count


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one that says what is kept."""
    try:
        yield
    except OSError as error:
        partial = path.with_name(path.name + ".partial")
        kept = f" The translations so far are in {partial.name}: call again to continue." if partial.exists() else ""
        raise TranslationError(f"output {path} can't be written: {error.strerror or error}.{kept}") from error
