"""How many sentences have an antonym, and how fast they are found: ConIsI-o2 at corpus scale.

python -m benchmarks.antonyms --data wiki.txt.gz --json antonyms.json
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from benchmarks._results import write
from st_contrastive.augmentations import AntonymReplacement
from st_contrastive.inputs import read_corpus


def measure(replace: AntonymReplacement, sentences: list[str]) -> tuple[float, float, list[str]]:
    """Sentences a second of processor time, the share that changed, and the results."""
    rng = random.Random(0)
    started = time.process_time()
    made = [replace(sentence, rng) for sentence in sentences]
    seconds = time.process_time() - started
    return len(made) / seconds, sum(a != b for a, b in zip(made, sentences, strict=True)) / len(made), made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--rows", type=int, default=10_000, help="of the share, and of each timing")
    parser.add_argument("--warm-up", type=int, default=50_000, help="sentences before the last timing")
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    sentences = read_corpus(args.data, limit=2 * args.rows + args.warm_up).sentences
    replace = AntonymReplacement()
    cold, share, made = measure(replace, sentences[: args.rows])
    measure(replace, sentences[args.rows : args.rows + args.warm_up])
    warm, _, _ = measure(replace, sentences[args.rows + args.warm_up :])
    again, _, _ = measure(replace, sentences[: args.rows])
    row: dict[str, Any] = {
        "rows": args.rows,
        "warm_up": args.warm_up,
        "share_changed": share,
        "sentences_a_second": {"cold": round(cold), "new sentences, warm": round(warm), "seen before": round(again)},
    }
    print(f"{share:.1%} of {args.rows:,} sentences have an antonym; sentences a second: {row['sentences_a_second']}")
    for before, after in [(b, a) for b, a in zip(sentences, made, strict=False) if a != b][:5]:
        print(f"- {before}\n+ {after}")
    write(args.json, row)


if __name__ == "__main__":
    main()
