"""A WordNet of a few words in the database's own format, for machines that have none: all in this file is ours."""

from __future__ import annotations

from pathlib import Path

POS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
#: (part of speech, words of the synset, antonym of the first word, uses of the first word)
SYNSETS: list[tuple[str, list[str], str | None, int]] = [
    ("a", ["easy"], "difficult", 50),
    ("a", ["difficult", "hard"], "easy", 40),
    ("a", ["hot"], "cold", 30),
    ("a", ["cold"], "hot", 30),
    ("a", ["large", "big"], "small", 60),
    ("a", ["small", "little"], "large", 60),
    ("a", ["good"], "bad", 90),
    ("a", ["bad"], "good", 70),
    ("a", ["better"], "worse", 20),
    ("a", ["worse"], "better", 20),
    ("a", ["happy", "glad"], "unhappy", 20),
    ("a", ["unhappy"], "happy", 5),
    ("a", ["ugly"], "beautiful", 5),
    ("a", ["beautiful"], "ugly", 25),
    ("a", ["early"], "late", 30),
    ("a", ["late"], "early", 30),
    ("a", ["light"], "heavy", 10),
    ("a", ["heavy"], "light", 10),
    ("n", ["light"], "darkness", 30),  # a noun more often than an adjective
    ("n", ["darkness", "dark"], "light", 10),
    ("n", ["day"], "night", 90),
    ("n", ["night", "evening"], "day", 80),
    ("n", ["man"], "woman", 90),
    ("n", ["woman"], "man", 90),
    ("n", ["men"], None, 0),
    ("n", ["city", "town"], None, 20),
    ("n", ["in", "inch"], None, 1),
    ("v", ["lose"], "find", 20),
    ("v", ["find"], "lose", 60),
    ("v", ["rise"], "fall", 40),
    ("v", ["fall"], "rise", 50),
    ("v", ["open"], "close", 40),
    ("v", ["close", "shut"], "open", 30),
    ("v", ["love"], "hate", 30),
    ("v", ["hate"], "love", 10),
    ("v", ["stop", "halt"], "start", 30),
    ("v", ["start", "begin"], "stop", 40),
    ("v", ["buy", "purchase"], "sell", 30),
    ("v", ["sell"], "buy", 30),
    ("v", ["come"], "go", 80),
    ("v", ["go"], "come", 80),
    ("a", ["usual"], "unusual", 20),
    ("a", ["unusual"], "usual", 10),
    ("a", ["honest"], "dishonest", 20),
    ("a", ["dishonest"], "honest", 5),
    ("a", ["unilateral"], "multilateral", 5),
    ("a", ["multilateral"], "unilateral", 5),
    ("a", ["few"], "many", 30),
    ("a", ["many"], "few", 30),
    ("v", ["work"], "idle", 30),
    ("v", ["work_out"], None, 1),
    ("r", ["always"], "never", 40),
    ("r", ["never"], "always", 40),
    ("r", ["quickly", "fast"], "slowly", 20),
    ("r", ["slowly"], "quickly", 20),
]
SECOND_SENSES = [("v", ["idle"], "work", 2), ("n", ["day"], "eve", 3), ("n", ["eve"], "day", 1)]
EXCEPTIONS = {
    "noun": ["men man", "women woman"],
    "verb": [
        "bought buy",
        "came come",
        "fallen fall",
        "fell fall",
        "found find",
        "gone go",
        "lost lose",
        "risen rise",
        "rose rise",
        "sold sell",
        "stopped stop",
        "stopping stop",
        "went go",
    ],
    "adj": ["better good", "easiest easy", "hotter hot", "hottest hot", "worse bad"],
    "adv": [],
}


def write_wordnet(data: Path) -> Path:
    """The database as a corpus in this folder of NLTK's data; returns the corpus's folder."""
    folder = data / "corpora" / "wordnet"
    folder.mkdir(parents=True)
    (folder / "lexnames").write_text("00\tadj.all\t3\n", encoding="utf-8")
    (folder / "index.sense").touch()
    synsets = SYNSETS + SECOND_SENSES
    offsets = _lay_out(synsets)
    lines: dict[str, list[str]] = {pos: [] for pos in POS}
    for number in range(len(synsets)):
        lines[synsets[number][0]].append(_data_line(number, synsets, offsets))
    for pos, name in POS.items():
        (folder / f"data.{name}").write_text("".join(lines[pos]), encoding="utf-8")
        index: dict[str, list[int]] = {}
        for number, (this, words, _, _) in enumerate(synsets):
            for word in words if this == pos else ():
                index.setdefault(word, []).append(offsets[number])
        (folder / f"index.{name}").write_text(
            "".join(
                f"{word} {pos} {len(found)} 1 ! {len(found)} 1 {' '.join(f'{o:08d}' for o in found)}  \n"
                for word, found in sorted(index.items())
            ),
            encoding="utf-8",
        )
        (folder / f"{name}.exc").write_text("".join(f"{line}\n" for line in EXCEPTIONS[name]), encoding="utf-8")
    numbers = {"n": 1, "v": 2, "a": 3, "r": 4}
    counts = [
        f"{words[0]}%{numbers[pos]}:00:{_sense_id(number)}:: 1 {uses}\n"
        for number, (pos, words, _, uses) in enumerate(synsets)
        if uses
    ]
    (folder / "cntlist.rev").write_text("".join(sorted(counts)), encoding="utf-8")
    return folder


def _sense_id(number: int) -> str:
    return f"{number % 16:02d}"


def _data_line(number: int, synsets: list, offsets: list[int]) -> str:
    pos, words, antonym, _ = synsets[number]
    # The lexical id tells the senses of a word apart.
    listed = " ".join(f"{word} {number % 16:x}" for word in words)
    pointers = ""
    count = 0
    if antonym is not None:
        target = next(n for n, (p, w, _, _) in enumerate(synsets) if p == pos and w[0] == antonym)
        pointers, count = f"! {offsets[target]:08d} {pos} 0101 ", 1
    frames = "01 + 02 00 " if pos == "v" else ""
    return f"{offsets[number]:08d} 00 {pos} {len(words):02x} {listed} {count:03d} {pointers}{frames}| {words[0]}  \n"


def _lay_out(synsets: list) -> list[int]:
    """Byte offsets of the lines in their files: they are of a length that does not depend on the offsets."""
    ends = dict.fromkeys(POS, 0)
    offsets = []
    for number, (pos, *_) in enumerate(synsets):
        offsets.append(ends[pos])
        ends[pos] += len(_data_line(number, synsets, [0] * len(synsets)).encode())
    return offsets
