"""The text columns of a training run, read from the files that its options name."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from st_contrastive.cli._arguments import UserError, option_name, user_error
from st_contrastive.inputs import CorpusError, ParallelCorpus, is_pairs_file, read_corpus, read_parallel
from st_contrastive.methods import METHODS

#: Options that add a second column, and the column's name in the builders' datasets.
_COLUMN_OF = {"translations": "translation", "antonyms": "constructed", "repetition": "other"}
#: Options that name a checkpoint, and the argument of the loss that takes it.
_ARGUMENT_OF = {"translation_encoder": "fraternal", "auxiliary": "auxiliary", "generator": "generator"}


def check_together(args: argparse.Namespace) -> None:
    """Refuse options of another method, and options that are useless without another one."""
    for option in (*_COLUMN_OF, *_ARGUMENT_OF):
        column, argument = _COLUMN_OF.get(option), _ARGUMENT_OF.get(option)
        wanted = [one.name for one in METHODS.values() if column in one.columns or argument in one.checkpoints]
        if getattr(args, option) and args.method not in wanted:
            raise UserError(f"{option_name(option)} goes with --method {' or '.join(wanted)}, not {args.method}.")
    if args.antonym_rate is not None and not args.antonyms:
        raise UserError("--antonym-rate is the share of words that --antonyms replaces: add --antonyms.")
    if args.translation_encoder and not args.translations:
        raise UserError("--translation-encoder reads translations: add --translations FILE.")
    if args.languages and not args.translations:
        raise UserError("--languages names the fields of --translations: add --translations FILE.")


def read_columns(args: argparse.Namespace) -> list[Any]:
    """The text columns that the files hold."""
    columns = _columns(args)
    if len(columns[0]) < 2:
        which = "--limit 1 leaves one sentence" if args.limit == 1 else f"--data {args.data} holds one sentence"
        raise UserError(f"{which}: contrastive training needs many.")
    repeats = 0 if args.translations else len(columns[0]) - len(set(columns[0]))
    if repeats > len(columns[0]) / 100:
        print(
            f"{args.data}: {repeats:,} sentences repeat an earlier one. In a batch, equal sentences are negatives of "
            "each other: remove the repeats."
        )
    return columns


def _columns(args: argparse.Namespace) -> list[Any]:
    languages = tuple(args.languages) if args.languages else None
    if not args.translations:
        return [read_text("--data", args.data, limit=args.limit)]
    same = Path(args.data).resolve() == Path(args.translations).resolve()
    with user_error(CorpusError, ValueError):
        if not is_pairs_file(args.translations):
            if same or is_pairs_file(args.data):
                raise UserError(
                    f"--data {args.data} and --translations {args.translations}: give two text files, one sentence a "
                    "line, or a file of pairs (.tsv, .jsonl) as --translations."
                )
            parallel = read_parallel(args.data, args.translations, languages=languages, limit=args.limit)
            print(f"{args.data}: {parallel}")
            return [parallel.sentences, parallel.translations]
        known = read_parallel(args.translations, languages=languages)
        print(f"{args.translations}: {known}")
        if same:
            return [known.sentences[: args.limit], known.translations[: args.limit]]
        return _translated(read_text("--data", args.data, limit=args.limit), known, args)


def read_text(option: str, path: str, *, limit: int | None = None) -> list[str]:
    """The sentences of the file that an option names; prints how many lines were left out, and why.

    Raises:
        UserError: the file can't be read, or is a file of pairs.
    """
    if is_pairs_file(path):
        also = ", or, with --method twins, the same file as --translations too" if option == "--data" else ""
        raise UserError(
            f"{option}: {path} is a file of pairs by its name: give sentences, one per line (.txt, .txt.gz), such as "
            f"one column of it{also}."
        )
    with user_error(CorpusError, ValueError, prefix=f"{option}: "):
        corpus = read_corpus(path, limit=limit)
    print(f"{path}: {corpus.report}")
    if corpus.sentences[0][:1] == "{" and corpus.sentences[0][-1:] == "}":
        print(f"{path}: its first line looks like JSON. It is trained on as it is; write plain sentences instead.")
    return corpus.sentences


def _translated(sentences: list[str], known: ParallelCorpus, args: argparse.Namespace) -> list[Any]:
    """The sentences that have a translation, and their translations.

    A sentence with several translations takes the next one each time that it comes, and the last one from then on.
    """
    table: dict[str, list[str]] = {}
    for sentence, translation in zip(known.sentences, known.translations, strict=True):
        table.setdefault(sentence, []).append(translation)
    kept = [sentence for sentence in sentences if sentence in table]
    if not kept:
        raise UserError(f"--translations {args.translations} translates no sentence of --data {args.data}.")
    seen: Counter[str] = Counter()
    translations = []
    for sentence in kept:
        own = table[sentence]
        translations.append(own[min(seen[sentence], len(own) - 1)])
        seen[sentence] += 1
    unused = sum(max(0, len(own) - seen[sentence]) for sentence, own in table.items())
    print(
        f"{args.data}: {len(kept):,} of {len(sentences):,} sentences have a translation"
        + (f"; {unused:,} pairs of {args.translations} are not used" if unused else "")
    )
    return [kept, translations]
