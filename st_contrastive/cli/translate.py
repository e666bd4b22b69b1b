"""``st-contrastive translate``: translate a corpus, and write pairs of sentences and translations."""

from __future__ import annotations

import argparse

from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._user_errors import parse_name, positive_number, user_error


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "translate",
        help="translate a corpus, for training Twins on two languages",
        description="Translate a corpus with a sequence-to-sequence model. After an interruption, run it again.",
    )
    parser.add_argument("--model", required=True, type=parse_name, metavar="NAME", help="folder or hub name")
    parser.add_argument("--data", required=True, type=parse_name, metavar="FILE", help="the corpus, as for train")
    parser.add_argument("--column", type=parse_name, metavar="NAME", help="column of --data with the texts")
    parser.add_argument("--output", required=True, type=parse_name, metavar="FILE", help="a .jsonl file")
    parser.add_argument(
        "--prefix",
        metavar="TEXT",
        help="text before each sentence, which tells a multilingual model the target language",
    )
    parser.add_argument(
        "--batch_size", type=positive_number, default=32, metavar="N", help="sentences at a time; default: 32"
    )
    parser.add_argument(
        "--max_length", type=positive_number, default=128, metavar="N", help="tokens per sentence; default: 128"
    )
    parser.add_argument("--beams", type=positive_number, default=1, metavar="N", help="beam width; default: 1")
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Translate the sentences that the output does not have yet."""
    from st_contrastive.inputs import Translator, load_sentences, translate_corpus

    with user_error(ImportError, OSError, RuntimeError, ValueError):
        sentences = load_sentences(args.data, column=args.column)["sentence"]
        options = {"batch_size": args.batch_size, "max_length": args.max_length, "num_beams": args.beams}
        path = translate_corpus(sentences, args.output, Translator(args.model, prefix=args.prefix, **options))
    print(f"The translations are in {path}. Train on them: st-contrastive train --loss twins --translations {path} ...")
    return 0
