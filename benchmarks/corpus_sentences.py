"""The sentences of a corpus in BEIR's form, one per line: somebody's own unlabelled text, to adapt an encoder to.

    python -m benchmarks.corpus_sentences retrieval/scifact scifact.txt

Titles are sentences; texts are cut behind a full stop, question or exclamation mark that a capital letter, a digit or a
parenthesis follows, unless it ends an abbreviation of papers. Queries and judgements are not read.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from st_contrastive.evaluation import read_documents

_SHORT = ("al", "Fig", "Figs", "vs", "e.g", "i.e", "cf", "Eq", "No", "approx")
_END = re.compile("".join(rf"(?<!\b{re.escape(word)}\.)" for word in _SHORT) + r"(?<=[.!?])\s+(?=[A-Z\d(])")


def sentences(folder: str, least_words: int = 4) -> list[str]:
    """Every sentence of so many words or more, once, in the order of the corpus."""
    found = {}
    for title, text in read_documents(folder).values():
        for sentence in (title, *_END.split(text)):
            if len(sentence.split()) >= least_words:
                found[" ".join(sentence.split())] = None
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a folder in BEIR's form")
    parser.add_argument("output", help="the file of sentences")
    args = parser.parse_args()
    made = sentences(args.corpus)
    Path(args.output).write_text("\n".join(made) + "\n", encoding="utf-8")
    print(f"{len(made):,} sentences")


if __name__ == "__main__":
    main()
