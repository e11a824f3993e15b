"""The embedded parallel text: sentences of a small grammar in English and in German."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from normless_papers.text.grammar_sentences import (
    ADJECTIVES,
    ADVERBS,
    ANIMATE,
    COMPLEMENT,
    DETERMINERS,
    DITRANSITIVE,
    INTRANSITIVE,
    MODALS,
    THINGS,
    TRANSITIVE,
    Clause,
    Noun,
    NounPhrase,
    Predicate,
    RelativeClause,
    written,
)
from normless_papers.text.seeded_choice import SeededChoice, distinct_sets
from normless_papers.text.text_sets import Pairs, ParallelText

# Clauses within clauses, at most; and words of the longer side, so that a sentence has the length of a caption.
DEPTH = 2
LONGEST = 20


def grammar(
    *,
    source: str = "en",
    target: str = "de",
    train: int = 6000,
    validation: int = 300,
    test: int = 300,
    seed: int = 0,
) -> ParallelText:
    """English and German sentences of an embedded grammar with relative clauses, agreement and two orders of words.

    Sentences do not repeat within or between the sets, and all words of validation and test occur in training.
    Sentences and translations correspond one to one in both directions, so BLEU 100 can be reached.
    The languages are "en" and "de"; the sizes count pairs.

    Raises:
        ValueError: the languages are not these two, a size is below 1, or training is too small for its words to make
            sentences.
    """
    if {source, target} != {"en", "de"}:
        raise ValueError(f"The grammar's languages are en and de, one to the other; got {source!r} to {target!r}.")
    if min(train, validation, test) < 1:
        raise ValueError(f"Expected at least one pair in each set, got {train=}, {validation=}, {test=}.")
    generator = random.Random(seed)
    drawn = distinct_sets(lambda _: sentence_pair(generator), (train, validation, test))
    sets = (Pairs(*(tuple(side) for side in zip(*pairs, strict=True))) for pairs in drawn)
    if source == "de":
        sets = (Pairs(*reversed(pairs)) for pairs in sets)
    return ParallelText("grammar", f"sentences of the embedded grammar, seed {seed}", (source, target), *sets)


def sentence_pair(generator: random.Random) -> tuple[str, str]:
    """Draw a sentence in English and in German, neither longer than `LONGEST` words."""
    draw = _Draw(generator)
    while True:
        clause = draw.clause(0)
        if draw.chance(0.3):
            clause = replace(clause, adverb=draw.one_of(ADVERBS))
        if draw.chance(0.12) and clause.complement is None:
            clause = replace(clause, reason=draw.clause(1))
        pair = written(clause.english()), written(clause.german(main=True))
        if max(len(side.split()) for side in pair) <= LONGEST:
            return pair


class _Draw(SeededChoice):
    """Draws parts of sentences."""

    def clause(self, depth: int) -> Clause:
        """Draw a clause within `depth` others."""
        subject = self.noun_phrase(ANIMATE, depth)
        if depth < DEPTH and self.chance(0.15):
            predicate = Predicate(self.one_of(COMPLEMENT), self.tense())
            return Clause(subject, predicate, complement=self.clause(depth + 1))
        if self.chance(0.2):
            return Clause(subject, Predicate(self.one_of(INTRANSITIVE), self.tense()))
        if self.chance(0.2):
            recipient, patient = self.noun_phrase(ANIMATE, depth + 1), self.noun_phrase(THINGS, depth + 1)
            return Clause(subject, Predicate(self.one_of(DITRANSITIVE), self.tense(), recipient, patient))
        return Clause(subject, self.transitive(depth))

    def transitive(self, depth: int) -> Predicate:
        return Predicate(self.one_of(TRANSITIVE), self.tense(), patient=self.patient(depth))

    def patient(self, depth: int) -> NounPhrase:
        return self.noun_phrase(ANIMATE if self.chance(0.6) else THINGS, depth)

    def tense(self) -> Literal["present", "perfect"] | int:
        if self.chance(0.5):
            return "present"
        return "perfect" if self.chance(0.5) else self.one_of(range(len(MODALS)))

    def noun_phrase(self, nouns: Sequence[Noun], depth: int) -> NounPhrase:
        """Draw a noun phrase within `depth` clauses."""
        phrase = self.simple(nouns)
        if self.chance(0.1):
            return replace(phrase, companion=self.simple((*ANIMATE, *THINGS)))
        if depth < DEPTH and self.chance(0.25):
            return replace(phrase, relative=self.relative(phrase, nouns is THINGS, depth + 1))
        return phrase

    def simple(self, nouns: Sequence[Noun]) -> NounPhrase:
        plural = self.chance(0.4)
        kinds = [kind for kind, forms in DETERMINERS.items() if forms[plural] != "-"]
        adjectives = (self.one_of(ADJECTIVES),) if self.chance(0.45) else ()
        return NounPhrase(self.one_of(kinds), adjectives, self.one_of(nouns), plural)

    def relative(self, head: NounPhrase, thing: bool, depth: int) -> RelativeClause:
        """Draw a relative clause that is unambiguous in German; things are never its subject."""
        while True:
            if thing or self.chance(0.4):
                clause = RelativeClause(
                    Predicate(self.one_of(TRANSITIVE), self.tense()), self.noun_phrase(ANIMATE, depth)
                )
            elif self.chance(0.5):
                clause = RelativeClause(self.transitive(depth))
            else:
                clause = RelativeClause(Predicate(self.one_of(INTRANSITIVE), self.tense()))
            if not clause.ambiguous(head):
                return clause
