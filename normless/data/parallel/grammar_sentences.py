"""Sentences as trees, each with an English and a German form.

English keeps subject, verb, object. German puts the finite verb second in a main clause and last in a subordinate
one, participles and infinitives at the end; articles and adjectives agree with gender, number and case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from normless.data.parallel.grammar_lexicon import (
    DETERMINERS,
    HAVE,
    MODALS,
    Case,
    Noun,
    Verb,
    german_adjective,
    german_determiner,
    relative_pronoun,
)

Words = list[str]


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
        """In English."""
        rest = [*(english for english, _ in self.adjectives), self.noun.in_english(self.plural)]
        determiner = DETERMINERS[self.determiner][self.plural]
        assert determiner is not None
        if determiner == "a" and rest[0][0] in "aeiou":
            determiner = "an"
        companion = ["with", *self.companion.english()] if self.companion else []
        return [determiner, *rest, *companion, *(self.relative.english(self.plural) if self.relative else ())]

    def german(self, case: Case) -> Words:
        """In German, in a case."""
        form = (self.noun.gender, self.plural, case)
        adjectives = [german_adjective(stem, self.determiner, *form) for _, stem in self.adjectives]
        companion = ["mit", *self.companion.german("dative")] if self.companion else []
        relative = [",", *self.relative.german(self), ","] if self.relative else []
        noun = self.noun.in_german(self.plural, case)
        return [german_determiner(self.determiner, *form), *adjectives, noun, *companion, *relative]


@dataclass(frozen=True)
class Predicate:
    """A verb with its tense (an integer is an index into `MODALS`), dative recipient and accusative patient."""

    verb: Verb
    tense: Literal["present", "perfect"] | int
    recipient: NounPhrase | None = None
    patient: NounPhrase | None = None

    def english(self, plural: bool) -> Words:
        """In English, for a subject of this number."""
        objects = [word for phrase in (self.recipient, self.patient) if phrase for word in phrase.english()]
        return [*self._english_verb(plural), *objects]

    def _english_verb(self, plural: bool) -> Words:
        if self.tense == "present":
            return [self.verb.english if plural else self.verb.english_singular]
        if self.tense == "perfect":
            return [HAVE[plural], self.verb.english_participle]
        return [MODALS[self.tense][0], self.verb.english]

    def german(self, plural: bool) -> tuple[str, Words, Words]:
        """In German, for a subject of this number: finite verb, objects, participle or infinitive."""
        recipient = self.recipient.german("dative") if self.recipient else []
        patient = self.patient.german("accusative") if self.patient else []
        objects = [*recipient, *patient]
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
        """In English, about a noun of this number."""
        if self.subject is None:
            return ["that", *self.predicate.english(plural)]
        return ["that", *self.subject.english(), *self.predicate.english(self.subject.plural)]

    def german(self, head: NounPhrase) -> Words:
        """In German: the verb at the end."""
        gender, plural = head.noun.gender, head.plural
        if self.subject is None:
            finite, objects, rest = self.predicate.german(plural)
            return [relative_pronoun(gender, plural, "nominative"), *objects, *rest, finite]
        finite, objects, rest = self.predicate.german(self.subject.plural)
        pronoun = relative_pronoun(gender, plural, "accusative")
        return [pronoun, *self.subject.german("nominative"), *objects, *rest, finite]

    def ambiguous(self, head: NounPhrase) -> bool:
        """Whether the German clause stays the same when subject and object are exchanged."""
        if self.subject is not None:
            other = RelativeClause(replace(self.predicate, patient=self.subject))
        elif self.predicate.patient is not None and self.predicate.recipient is None:
            other = RelativeClause(replace(self.predicate, patient=None), self.predicate.patient)
        else:
            return False
        return self.german(head) == other.german(head)


@dataclass(frozen=True)
class Clause:
    """A subject and its predicate; an adverb (English, German) if main; clauses after 'that' and 'because'."""

    subject: NounPhrase
    predicate: Predicate
    adverb: tuple[str, str] | None = None
    complement: Clause | None = None
    reason: Clause | None = None

    def english(self) -> Words:
        """In English."""
        adverb = [self.adverb[0]] if self.adverb else []
        complement = ["that", *self.complement.english()] if self.complement else []
        reason = ["because", *self.reason.english()] if self.reason else []
        return [*adverb, *self.subject.english(), *self.predicate.english(self.subject.plural), *complement, *reason]

    def german(self, *, main: bool) -> Words:
        """In German: the finite verb second in a main clause, else last."""
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
