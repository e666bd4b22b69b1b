"""Cuts documents into sentences by the rules of a language."""

from __future__ import annotations

import re

#: The two-letter codes of ISO 639-1.
_LANGUAGES = frozenset(
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en "
    "eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv "
    "ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne "
    "ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st "
    "su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu".split()
)
#: The white space after a mark that ends a sentence in Khmer or Tibetan.
_MARK = re.compile("(?<=[\u17d4\u17d5\u0f0d\u0f0e])(?!\\s*[\u17d4\u17d5\u0f0d\u0f0e]|$)\\s*")
#: Signs of several sentences in one text: a space in Thai or Lao, a line break, a bar in Devanagari, 500 characters.
UNCUT = re.compile("[\u0e01-\u0edf]\\s+[\u0e01-\u0edf]|\\S\\s*\n\\s*\\S|[\u0900-\u097f]\\s*[|]|.{500}", re.DOTALL)


def get_language(segment: str) -> str | None:
    """The language whose rules ``segment`` uses to cut documents; None for "lines", which does not cut them."""
    if segment == "lines":
        return None
    return "en" if segment == "sentences" else require_language("segment", segment, '"lines", "sentences" or ')


def require_language(name: str, code: str, other_choices: str = "") -> str:
    """Return the code if it is the code of a language; raise an error otherwise."""
    if code not in _LANGUAGES:
        raise ValueError(
            f'{name} must be {other_choices}the two-letter code of a language (ISO 639-1), such as "de"; got {code!r}.'
        )
    return code


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Cut a document into sentences by sentencex's rules for a language. Line breaks in a sentence become spaces.

    A blank line ends a sentence, and the full stops of other scripts do, too.
    """
    import sentencex

    parts = (part for sentence in sentencex.segment(language, text) for part in _MARK.split(sentence))
    return [sentence for part in parts if (sentence := " ".join(part.split()))]
