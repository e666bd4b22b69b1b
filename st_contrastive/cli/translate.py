"""``st-contrastive translate``: a corpus to a file of sentences and their translations."""

from __future__ import annotations

import argparse

from st_contrastive.cli._arguments import UserError, name, whole
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._saving import resolved


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "translate",
        help="translate a corpus, for the fraternal twin",
        description="Translate a corpus with a sequence-to-sequence model. Stopped and started again, it goes on.",
    )
    parser.add_argument("--model", required=True, type=name, help="folder or hub name of the translation model")
    parser.add_argument(
        "--data", required=True, type=name, metavar="FILE", help="UTF-8 text or .gz, one sentence a line"
    )
    parser.add_argument("--output", required=True, type=name, metavar="FILE", help="a .jsonl or .jsonl.gz")
    parser.add_argument(
        "--languages", nargs=2, metavar=("FROM", "TO"), help="as the model names them, where it knows several"
    )
    parser.add_argument("--prefix", help="put before each sentence, where the model wants one")
    parser.add_argument("--batch-size", type=whole, default=32, metavar="N", help="default: 32")
    parser.add_argument("--max-length", type=whole, default=128, metavar="N", help="tokens a sentence; default: 128")
    parser.add_argument("--beams", type=whole, default=1, metavar="N", help="default: 1")
    parser.add_argument("--limit", type=whole, metavar="N", help="take the first N sentences only")
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Translate what is not translated yet."""
    from st_contrastive.inputs import CorpusError, TranslationError, Translator, read_corpus, translate_corpus

    output = resolved("--output", args.output)
    if output.is_dir():
        raise UserError(f"--output {args.output} is a folder; name a file.")
    try:
        corpus = read_corpus(args.data, limit=args.limit)
        print(f"{args.data}: {corpus.report}")
        translator = Translator(
            args.model,
            languages=args.languages and tuple(args.languages),
            prefix=args.prefix,
            batch_size=args.batch_size,
            max_length=args.max_length,
            num_beams=args.beams,
        )
        path = translate_corpus(corpus.sentences, args.output, translator)
    except (CorpusError, TranslationError) as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"--output {args.output} can't be used: {error}.") from error
    print(f"Translations in {path}. Train with them: st-contrastive train --method twins --translations {path} ...")
    return 0
