"""``st-contrastive losses``: the losses in a list, or the arguments of one with their defaults."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import textwrap

from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._text import columns
from st_contrastive.methods import METHODS, PRETRAINING, Method, argument_defaults

_ALL = {**METHODS, PRETRAINING.name: PRETRAINING}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "losses",
        help="list the losses, or the arguments of one",
        description="Without NAME, every loss; with NAME, the arguments that train --loss-arg sets, with defaults. "
        f"{PRETRAINING.name} is the loss of pretrain-infocse.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"{', '.join(_ALL)}, or the name of a loss's class")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print."""
    if args.name is None:
        print(columns((one.name, one.loss, sentence(_docstring(one))) for one in _ALL.values()))
        return 0
    found = [one for one in _ALL.values() if args.name in (one.name, one.loss)]
    if not found:
        raise UserError(f"there is no loss {args.name!r}; give one of {', '.join(_ALL)}.")
    print(described(found[0]))
    return 0


def described(method: Method) -> str:
    """The loss's first sentence and its arguments, each with its default and the first sentence about it."""
    from st_contrastive.cli._common import settable

    text = _docstring(method)
    about = arguments_of(text)
    if method.loss_class.ablation_class is not None:
        about |= arguments_of(inspect.getdoc(method.loss_class.ablation_class) or "")
    defaults = argument_defaults(method.loss_class)
    names = {name: f"  {name} = {defaults[name]!r}" for name in settable(method)}
    width = max(map(len, names.values())) + 2
    page = max(60, min(100, shutil.get_terminal_size().columns))
    lines = [f"{method.name}: {method.loss}", *textwrap.wrap(sentence(text), page), ""]
    for name, start in names.items():
        lines += textwrap.wrap(
            sentence(about.get(name, "")),
            page,
            initial_indent=start.ljust(width),
            subsequent_indent=" " * width,
        ) or [start]
    return "\n".join(lines)


def arguments_of(docstring: str) -> dict[str, str]:
    """What the docstring's section Args says of each argument.

    Example:
        >>> arguments_of("A loss.\\n\\nArgs:\\n    rate: a share\\n        of it.\\n    head: none.\\n\\nMore: none.")
        {'rate': 'a share of it.', 'head': 'none.'}
    """
    found: dict[str, str] = {}
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    name = ""
    for line in section.group(1).splitlines() if section else []:
        start = re.match(r"    (\w+): (.*)", line)
        if start:
            name, found[start.group(1)] = start.group(1), start.group(2).strip()
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


def sentence(text: str) -> str:
    """The first sentence, without the markup.

    Example:
        >>> sentence("The ``head``, of SimCSE (Gao et al., 2021). More of it.")
        'The head, of SimCSE (Gao et al., 2021).'
    """
    paragraph = " ".join(text.partition("\n\n")[0].split())
    plain = re.sub(r"\\([a-z])", r"\1", re.sub(r":\w+:`~?([^`]*)`", r"\1", paragraph)).replace("`", "")
    plain = re.sub(r"\\[,;]|[{}]", "", plain)  # LaTeX's spaces and groups
    return re.split(r"(?<=\.) (?=[A-Z\"])", plain)[0]


def _docstring(method: Method) -> str:
    return inspect.getdoc(method.loss_class) or ""
