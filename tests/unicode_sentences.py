"""Random text of every unpleasant kind, the same for the same seed."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Callable

LONGEST = 100_000
LINE_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
INVISIBLE = ["\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u180e", "\ufe0f", "\u034f"]
BIDI = ["\u200e", "\u200f", "\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069"]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇳🇴", "1️⃣", "❤️", "🧑🏿‍🚀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
RIGHT_TO_LEFT = ["שלום", "עולם", "مرحبا", "بالعالم", "ܫܠܡܐ", "ދިވެހި", "ﷺ", "لا"]
#: What tokenizers take for their own.
SPECIALS = ["[MASK]", "[SEP]", "[CLS]", "[PAD]", "[UNK]", "<mask>", "<s>", "</s>", "<pad>", "<unk>", "##ing", "Ġthe"]
PLAIN = "the small cat sleeps on a warm chair and two dogs run along the cold river".split()
_POINTS = [
    point for point in range(0x20, sys.maxunicode + 1, 7) if not 0xD800 <= point <= 0xDFFF
]  # every seventh is plenty
_UNASSIGNED = [chr(point) for point in _POINTS if unicodedata.category(chr(point)) == "Cn"]
_CONTROL = [chr(point) for point in (*range(0x20), *range(0x7F, 0xA0))]
_PRIVATE = [chr(point) for point in _POINTS if unicodedata.category(chr(point)) == "Co"]


def _some(rng: random.Random, among: list[str], most: int = 12, between: str = " ") -> str:
    return between.join(rng.choices(among, k=rng.randint(1, most)))


def _mixed(rng: random.Random, among: list[str]) -> str:
    return "".join(_some(rng, PLAIN, 3) + rng.choice(among) for _ in range(rng.randint(1, 5)))


KINDS: dict[str, Callable[[random.Random], str]] = {
    "plain": lambda rng: _some(rng, PLAIN, 20),
    "any": lambda rng: "".join(chr(point) for point in rng.choices(_POINTS, k=rng.randint(1, 40))),
    "pairs": lambda rng: "".join(chr(rng.randrange(0x10000, 0x110000)) for _ in range(rng.randint(1, 20))),
    "invisible": lambda rng: _mixed(rng, INVISIBLE),
    "invisible alone": lambda rng: _some(rng, INVISIBLE, 5, ""),
    "emoji": lambda rng: _some(rng, EMOJI, 8, rng.choice(["", " "])),
    "right to left": lambda rng: _some(rng, RIGHT_TO_LEFT),
    "bidi": lambda rng: _some(rng, [*PLAIN, *RIGHT_TO_LEFT, *BIDI], 16, rng.choice(["", " "])),
    "control": lambda rng: "".join(rng.choices(_CONTROL, k=rng.randint(1, 9))),
    "control inside": lambda rng: _mixed(rng, ["\x00", "\x07", "\x1b[31m", "\x7f", "\x9b"]),
    "line ends": lambda rng: _mixed(rng, LINE_ENDS),
    "combining": lambda rng: "".join(
        rng.choice("aeo") + "".join(chr(rng.randrange(0x300, 0x370)) for _ in range(rng.randint(0, 30)))
        for _ in range(rng.randint(1, 6))
    ),
    "unassigned": lambda rng: _some(rng, _UNASSIGNED, 12, ""),
    "private": lambda rng: _some(rng, _PRIVATE, 12, ""),
    "ideographs": lambda rng: "".join(chr(rng.randrange(0x4E00, 0xA000)) for _ in range(rng.randint(1, 30))),
    "specials": lambda rng: _some(rng, [*SPECIALS, *PLAIN], 12, rng.choice(["", " "])),
    "blank": lambda rng: rng.choice(["", " ", "\t", "\u3000", "\xa0 \xa0", *LINE_ENDS]),
    "punctuation": lambda rng: "".join(rng.choices("!?.,;:'\"()[]{}<>|\\/-_=+*&^%$#@~`", k=rng.randint(1, 30))),
}


def sentences(count: int, seed: int = 0) -> list[str]:
    """``count`` texts of all kinds, three of them of 100,000 characters, without halves of surrogate pairs."""
    rng = random.Random(seed)
    names = list(KINDS)
    texts = [KINDS[names[place % len(names)]](rng) for place in range(count)]
    long = ["é" * LONGEST, ("cat " * LONGEST)[:LONGEST], "\u0301" * LONGEST]
    for place, text in zip(rng.sample(range(count), len(long)), long, strict=True):
        texts[place] = text
    return texts


def with_halves(texts: list[str], seed: int = 0) -> tuple[list[str], list[int]]:
    """The texts, some with a half of a surrogate pair in them; and which."""
    rng = random.Random(seed)
    places = sorted(rng.sample(range(len(texts)), max(1, len(texts) // 20)))
    spoilt = list(texts)
    for place in places:
        text = spoilt[place]
        cut = rng.randint(0, len(text))
        spoilt[place] = text[:cut] + chr(rng.randrange(0xD800, 0xE000)) + text[cut:]
    return spoilt, places


def mended(text: str) -> str:
    """As the builders say that it be done."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
