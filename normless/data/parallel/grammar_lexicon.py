"""The words of the grammar's two languages, from ``grammar_words.yaml``, and their inflection."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import yaml

Gender = Literal["m", "f", "n"]
Case = Literal["nominative", "accusative", "dative"]


class Noun(NamedTuple):
    """A noun: English singular and plural, its gender in German, German singular and plural."""

    english: str
    english_plural: str
    gender: Gender
    german: str
    german_plural: str

    def in_english(self, plural: bool) -> str:
        """Its form in the number."""
        return self.english_plural if plural else self.english

    def in_german(self, plural: bool, case: Case) -> str:
        """Its form in the number and the case: only the dative plural has an ending, -n."""
        if not plural:
            return self.german
        return self.german_plural + ("n" if case == "dative" and self.german_plural[-1] not in "ns" else "")


class Verb(NamedTuple):
    """A verb: third person singular, plural and infinitive, past participle; in English and in German."""

    english_singular: str
    english: str
    english_participle: str
    german_singular: str
    german: str
    german_participle: str


_WORDS = {
    kind: tuple(tuple(line.split()) for line in lines.splitlines())
    for kind, lines in yaml.safe_load(Path(__file__).with_name("grammar_words.yaml").read_text("utf-8")).items()
}
ANIMATE, THINGS = (tuple(Noun(*words) for words in _WORDS[kind]) for kind in ("animate", "things"))
INTRANSITIVE, TRANSITIVE, DITRANSITIVE, COMPLEMENT = (
    tuple(Verb(*words) for words in _WORDS[kind])
    for kind in ("intransitive", "transitive", "ditransitive", "complement")
)
MODALS, ADJECTIVES, ADVERBS = (_WORDS[kind] for kind in ("modals", "adjectives", "adverbs"))
HAVE = ("has", "have", "hat", "haben")

# English singular and plural forms; None where the determiner has no such number.
DETERMINERS: dict[str, tuple[str | None, str | None]] = {
    "definite": ("the", "the"),
    "indefinite": ("a", None),
    "demonstrative": ("this", "these"),
    "two": (None, "two"),
    "many": (None, "many"),
}

# Endings by case of masculine, feminine, neuter and plural: those of "dieser", which carry gender and case.
_STRONG: dict[Case, tuple[str, str, str, str]] = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
}
_ARTICLE: dict[Case, tuple[str, str, str, str]] = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
}
_INDEFINITE: dict[Case, tuple[str, str, str]] = {
    "nominative": ("ein", "eine", "ein"),
    "accusative": ("einen", "eine", "ein"),
    "dative": ("einem", "einer", "einem"),
}


def _column(gender: Gender, plural: bool) -> int:
    return 3 if plural else "mfn".index(gender)


def german_determiner(kind: str, gender: Gender, plural: bool, case: Case) -> str:
    """A key of `DETERMINERS` in German."""
    column = _column(gender, plural)
    if kind == "definite":
        return _ARTICLE[case][column]
    if kind == "indefinite":
        return _INDEFINITE[case][column]
    if kind == "two":
        return "zwei"
    return ("dies" if kind == "demonstrative" else "viel") + _STRONG[case][column]


def german_adjective(stem: str, kind: str, gender: Gender, plural: bool, case: Case) -> str:
    """An adjective after a determiner: strong where that does not show gender and case, else weak."""
    column = _column(gender, plural)
    strong = kind in ("two", "many") or (
        kind == "indefinite" and german_determiner(kind, gender, plural, case) == "ein"
    )
    if strong:
        return stem + _STRONG[case][column]
    short = not plural and (case == "nominative" or (case == "accusative" and gender != "m"))
    return stem + ("e" if short else "en")


def relative_pronoun(gender: Gender, plural: bool, case: Literal["nominative", "accusative"]) -> str:
    """The German "that" of a noun; it is the article in these cases."""
    return _ARTICLE[case][_column(gender, plural)]
