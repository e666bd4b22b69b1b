"""``st-contrastive translate``: translate a corpus into a file of sentence pairs."""

from __future__ import annotations

import argparse

from st_contrastive.cli._arguments import Once, UserError, name, user_error, whole
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._saving import resolved


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "translate",
        help="translate a corpus, for training Twins on two languages",
        description="Translate a corpus with a sequence-to-sequence model. If interrupted, run it again to continue.",
    )
    parser.add_argument(
        "--model", required=True, type=name, metavar="NAME", help="translation model: a folder or a hub name"
    )
    parser.add_argument(
        "--data", action=Once, required=True, type=name, metavar="FILE", help="UTF-8 text, one sentence per line"
    )
    parser.add_argument("--output", required=True, type=name, metavar="FILE", help="a .jsonl or .jsonl.gz file")
    parser.add_argument(
        "--languages",
        nargs=2,
        metavar=("FROM", "TO"),
        help="source and target as the model names them, such as en de or eng_Latn deu_Latn",
    )
    parser.add_argument("--prefix", metavar="TEXT", help="text that the model expects before each sentence")
    parser.add_argument(
        "--batch-size", type=whole, default=32, metavar="N", help="sentences translated at a time; default: 32"
    )
    parser.add_argument("--max-length", type=whole, default=128, metavar="N", help="tokens per sentence; default: 128")
    parser.add_argument("--beams", type=whole, default=1, metavar="N", help="beam width; default: 1")
    parser.add_argument("--limit", type=whole, metavar="N", help="translate the first N sentences only")
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Translate the sentences that are not in the output yet."""
    from st_contrastive.cli._columns import read_text
    from st_contrastive.inputs import CorpusError, TranslationError, translate_corpus

    output = resolved("--output", args.output)
    if output.is_dir():
        raise UserError(f"--output {args.output} is a folder; name a file.")
    with (
        user_error(CorpusError, TranslationError, ValueError),
        user_error(OSError, prefix=f"--output {args.output} can't be used: "),
    ):
        sentences = read_text("--data", args.data, limit=args.limit)
        path = translate_corpus(
            sentences,
            args.output,
            args.model,
            languages=args.languages and tuple(args.languages),
            prefix=args.prefix,
            batch_size=args.batch_size,
            max_length=args.max_length,
            num_beams=args.beams,
        )
    print(f"Translations in {path}. Train with them: st-contrastive train --method twins --translations {path} ...")
    return 0
