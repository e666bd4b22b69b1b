"""A miniature WordNet in the format of the database. Its entries were written for these tests."""

from __future__ import annotations

from pathlib import Path

POS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
#: Each line: part of speech and two antonyms. Each antonym may have synonyms, and ends with its number of uses.
ANTONYMS = """
a easy 50, difficult hard 40
a hot 30, cold 30
a large big 60, small little 60
a good 90, bad 70
a better 20, worse 20
a happy glad 20, unhappy 5
a ugly 5, beautiful 25
a early 30, late 30
a light 10, heavy 10
n light 30, darkness dark 10
n day 90, night evening 80
n man 90, woman 90
v lose 20, find 60
v rise 40, fall 50
v open 40, close shut 30
v love 30, hate 10
v stop halt 30, start begin 40
v buy purchase 30, sell 30
v come 80, go 80
a usual 20, unusual 10
a honest 20, dishonest 5
a unilateral 5, multilateral 5
a few 30, many 30
r always 40, never 40
r quickly fast 20, slowly 20
"""
#: (part of speech, words of the synset, antonym of the first word, uses of the first word)
SYNSETS: list[tuple[str, list[str], str | None, int]] = []
for _pos, _line in (line.split(" ", 1) for line in ANTONYMS.strip().splitlines()):
    (*_one, _uses), (*_other, _more) = (half.split() for half in _line.split(","))
    SYNSETS += [(_pos, _one, _other[0], int(_uses)), (_pos, _other, _one[0], int(_more))]
SYNSETS += [
    ("n", ["men"], None, 0),
    ("n", ["city", "town"], None, 20),
    ("n", ["in", "inch"], None, 1),
    ("v", ["work"], "idle", 30),
    ("v", ["work_out"], None, 1),
]
SECOND_SENSES = [("v", ["idle"], "work", 2), ("n", ["day"], "eve", 3), ("n", ["eve"], "day", 1)]
EXCEPTIONS = {
    "noun": "men man, women woman",
    "verb": "bought buy, came come, fallen fall, fell fall, found find, gone go, lost lose, risen rise, rose rise, "
    "sold sell, stopped stop, stopping stop, went go",
    "adj": "better good, easiest easy, hotter hot, hottest hot, worse bad",
    "adv": "",
}


def write_wordnet(data: Path) -> Path:
    """Write the database as a corpus into a folder of NLTK's data, and return the corpus's folder."""
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
        (folder / f"{name}.exc").write_text(
            "".join(f"{line}\n" for line in EXCEPTIONS[name].split(", ") if line), encoding="utf-8"
        )
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
    # The lexical id distinguishes the senses of a word.
    listed = " ".join(f"{word} {number % 16:x}" for word in words)
    pointers = ""
    count = 0
    if antonym is not None:
        target = next(n for n, (p, w, _, _) in enumerate(synsets) if p == pos and w[0] == antonym)
        pointers, count = f"! {offsets[target]:08d} {pos} 0101 ", 1
    frames = "01 + 02 00 " if pos == "v" else ""
    return f"{offsets[number]:08d} 00 {pos} {len(words):02x} {listed} {count:03d} {pointers}{frames}| {words[0]}  \n"


def _lay_out(synsets: list) -> list[int]:
    """Byte offsets of the lines in their files. The length of a line does not depend on its offsets."""
    ends = dict.fromkeys(POS, 0)
    offsets = []
    for number, (pos, *_) in enumerate(synsets):
        offsets.append(ends[pos])
        ends[pos] += len(_data_line(number, synsets, [0] * len(synsets)).encode())
    return offsets
