"""The words of the grammar's two languages, and how they change."""

from __future__ import annotations

from typing import Literal, NamedTuple

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


def _nouns(text: str) -> tuple[Noun, ...]:
    return tuple(Noun(*line.split()) for line in text.strip().splitlines())  # type: ignore[arg-type]


def _verbs(text: str) -> tuple[Verb, ...]:
    return tuple(Verb(*line.split()) for line in text.strip().splitlines())


ANIMATE = _nouns("""
    man men m Mann Männer
    dog dogs m Hund Hunde
    bird birds m Vogel Vögel
    teacher teachers m Lehrer Lehrer
    king kings m König Könige
    doctor doctors m Arzt Ärzte
    woman women f Frau Frauen
    cat cats f Katze Katzen
    mouse mice f Maus Mäuse
    queen queens f Königin Königinnen
    sister sisters f Schwester Schwestern
    cow cows f Kuh Kühe
    child children n Kind Kinder
    horse horses n Pferd Pferde
    girl girls n Mädchen Mädchen
    pig pigs n Schwein Schweine
""")

THINGS = _nouns("""
    ball balls m Ball Bälle
    apple apples m Apfel Äpfel
    letter letters m Brief Briefe
    flower flowers f Blume Blumen
    bottle bottles f Flasche Flaschen
    lamp lamps f Lampe Lampen
    book books n Buch Bücher
    picture pictures n Bild Bilder
""")

INTRANSITIVE = _verbs("""
    sleeps sleep slept schläft schlafen geschlafen
    sings sing sung singt singen gesungen
    laughs laugh laughed lacht lachen gelacht
    dances dance danced tanzt tanzen getanzt
    works work worked arbeitet arbeiten gearbeitet
""")

TRANSITIVE = _verbs("""
    sees see seen sieht sehen gesehen
    loves love loved liebt lieben geliebt
    hears hear heard hört hören gehört
    finds find found findet finden gefunden
    draws draw drawn zeichnet zeichnen gezeichnet
    washes wash washed wäscht waschen gewaschen
    carries carry carried trägt tragen getragen
    seeks seek sought sucht suchen gesucht
""")

DITRANSITIVE = _verbs("""
    gives give given gibt geben gegeben
    shows show shown zeigt zeigen gezeigt
    brings bring brought bringt bringen gebracht
""")

COMPLEMENT = _verbs("""
    says say said sagt sagen gesagt
    thinks think thought denkt denken gedacht
    hopes hope hoped hofft hoffen gehofft
""")

# English, German singular, German plural; the English forms do not change.
MODALS = (("can", "kann", "können"), ("must", "muss", "müssen"), ("should", "soll", "sollen"))

HAVE = ("has", "have", "hat", "haben")

# The stem of the German adjective takes an ending.
ADJECTIVES = (
    ("small", "klein"),
    ("big", "groß"),
    ("old", "alt"),
    ("young", "jung"),
    ("red", "rot"),
    ("white", "weiß"),
    ("quiet", "still"),
    ("new", "neu"),
    ("beautiful", "schön"),
    ("strange", "seltsam"),
)

ADVERBS = (("today", "heute"), ("now", "jetzt"), ("here", "hier"), ("often", "oft"))

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
