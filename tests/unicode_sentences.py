"""Random texts of all unpleasant kinds, which a seed determines."""

from __future__ import annotations

import random
import sys
import unicodedata

LONGEST = 100_000
LINE_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
PLAIN = "the small cat sleeps on a warm chair and two dogs run along the cold river".split()
#: Every seventh character, to save time.
POINTS = [chr(point) for point in range(0x20, sys.maxunicode + 1, 7) if not 0xD800 <= point <= 0xDFFF]
RIGHT_TO_LEFT = ["שלום", "עולם", "مرحبا", "بالعالم", "ܫܠܡܐ", "ދިވެހި", "ﷺ", "لا"]
#: The parts of the texts of each kind.
KINDS: dict[str, list[str]] = {
    "plain": PLAIN,
    "any": POINTS,
    "pairs": [character for character in POINTS if ord(character) > 0xFFFF],
    "invisible": list("\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e\ufe0f\u034f"),
    "emoji": ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇳🇴", "1️⃣", "❤️", "🧑🏿‍🚀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"],
    "right to left": RIGHT_TO_LEFT,
    "bidi": RIGHT_TO_LEFT + list("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"),
    "control": [chr(point) for point in (*range(0x20), *range(0x7F, 0xA0))] + ["\x1b[31m"],
    "line ends": LINE_ENDS,
    "combining": ["a", "e", "o", *map(chr, range(0x300, 0x370))],
    "unassigned": [character for character in POINTS if unicodedata.category(character) == "Cn"],
    "private": [character for character in POINTS if unicodedata.category(character) == "Co"],
    "ideographs": [chr(point) for point in range(0x4E00, 0xA000)],
    # Special tokens of tokenizers.
    "specials": "[MASK] [SEP] [CLS] [PAD] [UNK] <mask> <s> </s> <pad> <unk> ##ing Ġthe".split(),
    "blank": ["", " ", "\t", "\u3000", "\xa0 \xa0", *LINE_ENDS],
    "punctuation": list("!?.,;:'\"()[]{}<>|\\/-_=+*&^%$#@~`"),
}


def sentences(count: int, seed: int = 0) -> list[str]:
    """Random texts of all kinds without lone surrogates. Three of them have 100,000 characters."""
    rng = random.Random(seed)
    kinds, texts = list(KINDS.values()), []
    for number in range(count):
        among, plain, between = kinds[number % len(kinds)], rng.choice([0, 0.5]), rng.choice(["", " "])
        parts = (rng.choice(PLAIN if rng.random() < plain else among) for _ in range(rng.randint(1, 20)))
        texts.append(between.join(parts))
    long = ["é" * LONGEST, ("cat " * LONGEST)[:LONGEST], "\u0301" * LONGEST]
    for row, text in zip(rng.sample(range(count), len(long)), long, strict=True):
        texts[row] = text
    return texts


def with_halves(texts: list[str], seed: int = 0) -> tuple[list[str], list[int]]:
    """Insert lone surrogates into some texts. Returns all texts and the numbers of the changed ones."""
    rng = random.Random(seed)
    places = sorted(rng.sample(range(len(texts)), max(1, len(texts) // 20)))
    spoilt = list(texts)
    for place in places:
        text = spoilt[place]
        cut = rng.randint(0, len(text))
        spoilt[place] = text[:cut] + chr(rng.randrange(0xD800, 0xE000)) + text[cut:]
    return spoilt, places


def mended(text: str) -> str:
    """Repair lone surrogates as the errors of the builders recommend."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
