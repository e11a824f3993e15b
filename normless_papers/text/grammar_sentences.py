"""Sentences as trees, each with an English and a German form; their words are in ``grammar_words.yaml``.

English keeps subject, verb, object. German puts the finite verb second in a main clause and last in a subordinate
one, participles and infinitives at the end; articles and adjectives agree with gender, number and case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

Words = list[str]
Gender = Literal["m", "f", "n"]
Case = Literal["nominative", "accusative", "dative"]


class Noun(NamedTuple):
    """A noun: English singular and plural, its gender in German, German singular and plural."""

    english: str
    english_plural: str
    gender: Gender
    german: str
    german_plural: str

    def in_german(self, plural: bool, case: Case) -> str:
        """Return its form in the number and the case: only the dative plural has an ending, -n."""
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
DETERMINERS = {kind: forms for kind, *forms in _WORDS["determiners"]}
_ENDINGS = {kind: forms for kind, *forms in _WORDS["endings"]}


def _declined(forms: Sequence[str], gender: Gender, plural: bool, case: Case) -> str:
    """Return one of twelve forms, as ``grammar_words.yaml`` lists them."""
    return forms[4 * ("nominative", "accusative", "dative").index(case) + (3 if plural else "mfn".index(gender))]


@dataclass(frozen=True)
class NounPhrase:
    """A noun with a determiner (a key of `DETERMINERS`) and adjectives (English, German stem).

    A companion ("with …") or a relative clause may follow; a companion has neither.
    """

    determiner: str
    adjectives: tuple[tuple[str, str], ...]
    noun: Noun
    plural: bool
    companion: NounPhrase | None = None
    relative: RelativeClause | None = None

    def english(self) -> Words:
        """Return the English words."""
        noun = self.noun.english_plural if self.plural else self.noun.english
        rest = [*(english for english, _ in self.adjectives), noun]
        determiner = DETERMINERS[self.determiner][self.plural]
        if determiner == "a" and rest[0][0] in "aeiou":
            determiner = "an"
        companion = ["with", *self.companion.english()] if self.companion else []
        return [determiner, *rest, *companion, *(self.relative.english(self.plural) if self.relative else ())]

    def german(self, case: Case) -> Words:
        """Return the German words in a case."""
        form = (self.noun.gender, self.plural, case)
        determiner = _declined(DETERMINERS[self.determiner][2:], *form)
        # Strong where the determiner does not show gender and case.
        kind = "strong" if self.determiner in ("two", "many") or determiner == "ein" else "weak"
        adjectives = [stem + _declined(_ENDINGS[kind], *form) for _, stem in self.adjectives]
        companion = ["mit", *self.companion.german("dative")] if self.companion else []
        relative = [",", *self.relative.german(self), ","] if self.relative else []
        noun = self.noun.in_german(self.plural, case)
        return [determiner, *adjectives, noun, *companion, *relative]


@dataclass(frozen=True)
class Predicate:
    """A verb with its tense (an integer is an index into `MODALS`), dative recipient and accusative patient."""

    verb: Verb
    tense: Literal["present", "perfect"] | int
    recipient: NounPhrase | None = None
    patient: NounPhrase | None = None

    def english(self, plural: bool) -> Words:
        """Return the English words, for a subject of this number."""
        objects = [word for phrase in (self.recipient, self.patient) if phrase for word in phrase.english()]
        if self.tense == "present":
            return [self.verb.english if plural else self.verb.english_singular, *objects]
        if self.tense == "perfect":
            return [HAVE[plural], self.verb.english_participle, *objects]
        return [MODALS[self.tense][0], self.verb.english, *objects]

    def german(self, plural: bool) -> tuple[str, Words, Words]:
        """Return the German words, for a subject of this number: finite verb, objects, participle or infinitive."""
        objects = self.recipient.german("dative") if self.recipient else []
        objects += self.patient.german("accusative") if self.patient else []
        if self.tense == "present":
            return self.verb.german if plural else self.verb.german_singular, objects, []
        if self.tense == "perfect":
            return HAVE[2 + plural], objects, [self.verb.german_participle]
        return MODALS[self.tense][1 + plural], objects, [self.verb.german]


@dataclass(frozen=True)
class RelativeClause:
    """A clause about a noun, which is its subject, or with a `subject` of its own its object in the accusative."""

    predicate: Predicate
    subject: NounPhrase | None = None

    def english(self, plural: bool) -> Words:
        """Return the English words, about a noun of this number."""
        if self.subject is None:
            return ["that", *self.predicate.english(plural)]
        return ["that", *self.subject.english(), *self.predicate.english(self.subject.plural)]

    def german(self, head: NounPhrase) -> Words:
        """Return the German words: the verb at the end."""
        subject = [] if self.subject is None else self.subject.german("nominative")
        case: Case = "nominative" if self.subject is None else "accusative"
        # The relative pronoun is the article in these cases.
        pronoun = _declined(DETERMINERS["definite"][2:], head.noun.gender, head.plural, case)
        finite, objects, rest = self.predicate.german((self.subject or head).plural)
        return [pronoun, *subject, *objects, *rest, finite]

    def ambiguous(self, head: NounPhrase) -> bool:
        """Return whether the German clause stays the same when subject and object are exchanged."""
        if self.subject is not None:
            exchanged = RelativeClause(replace(self.predicate, patient=self.subject))
        elif self.predicate.patient is not None and self.predicate.recipient is None:
            exchanged = RelativeClause(replace(self.predicate, patient=None), self.predicate.patient)
        else:
            return False
        return self.german(head) == exchanged.german(head)


@dataclass(frozen=True)
class Clause:
    """A subject and its predicate; an adverb (English, German) if main; clauses after 'that' and 'because'."""

    subject: NounPhrase
    predicate: Predicate
    adverb: tuple[str, str] | None = None
    complement: Clause | None = None
    reason: Clause | None = None

    def english(self) -> Words:
        """Return the English words."""
        adverb = [self.adverb[0]] if self.adverb else []
        complement = ["that", *self.complement.english()] if self.complement else []
        reason = ["because", *self.reason.english()] if self.reason else []
        return [*adverb, *self.subject.english(), *self.predicate.english(self.subject.plural), *complement, *reason]

    def german(self, *, main: bool) -> Words:
        """Return the German words: the finite verb second in a main clause, else last."""
        subject = self.subject.german("nominative")
        finite, objects, rest = self.predicate.german(self.subject.plural)
        if not main:
            words = [*subject, *objects, *rest, finite]
        elif self.adverb:
            words = [self.adverb[1], finite, *subject, *objects, *rest]
        else:
            words = [*subject, finite, *objects, *rest]
        complement = [",", "dass", *self.complement.german(main=False)] if self.complement else []
        reason = [",", "weil", *self.reason.german(main=False)] if self.reason else []
        return [*words, *complement, *reason]


def written(words: Words) -> str:
    """Words as a sentence: a capital first, one comma where several meet, none before the full stop."""
    text = " ".join(words).replace(" ,", ",").replace(",,", ",").rstrip(",")
    return f"{text[0].upper()}{text[1:]}."
