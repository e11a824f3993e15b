"""The embedded grammar: what its sentences promise, and German by hand."""

from __future__ import annotations

import random

import pytest

from normless_lab.data import load_data
from normless_papers.text.grammar import LONGEST, sentence_pair
from normless_papers.text.grammar_sentences import (
    ANIMATE,
    COMPLEMENT,
    DITRANSITIVE,
    INTRANSITIVE,
    THINGS,
    TRANSITIVE,
    Clause,
    NounPhrase,
    Predicate,
    RelativeClause,
    written,
)
from normless_papers.text.text_sets import ParallelText

NOUNS = {noun.english: noun for noun in (*ANIMATE, *THINGS)}
VERBS = {verb.english: verb for verb in (*TRANSITIVE, *DITRANSITIVE, *INTRANSITIVE, *COMPLEMENT)}


def phrase(noun: str, determiner: str = "definite", *adjectives: tuple[str, str], plural: bool = False) -> NounPhrase:
    return NounPhrase(determiner, adjectives, NOUNS[noun], plural)


def does(verb: str, patient: NounPhrase | None = None, tense: str | int = "present", **more: NounPhrase) -> Predicate:
    return Predicate(VERBS[verb], tense, patient=patient, **more)  # type: ignore[arg-type]


OLD, RED = ("old", "alt"), ("red", "rot")


def hand_made() -> list[tuple[Clause, str, str]]:
    seen_dog = NounPhrase("definite", (), NOUNS["dog"], False, relative=RelativeClause(does("see"), phrase("woman")))
    sleeper = NounPhrase("indefinite", (OLD,), NOUNS["child"], False, relative=RelativeClause(does("sleep", tense=0)))
    friend = NounPhrase("many", (RED,), NOUNS["bird"], True, companion=phrase("mouse", "two", OLD, plural=True))
    gives = does("give", phrase("apple", "indefinite"), 1, recipient=phrase("girl", plural=True))
    reason = Clause(seen_dog, does("sing", tense="perfect"))
    return [
        (
            Clause(phrase("king"), does("find", sleeper, "perfect"), adverb=("today", "heute")),
            "Today the king has found an old child that can sleep.",
            "Heute hat der König ein altes Kind, das schlafen kann, gefunden.",
        ),
        (
            Clause(friend, gives),
            "Many red birds with two old mice must give the girls an apple.",
            "Viele rote Vögel mit zwei alten Mäusen müssen den Mädchen einen Apfel geben.",
        ),
        (
            Clause(phrase("teacher", plural=True), does("work"), reason=reason),
            "The teachers work because the dog that the woman sees has sung.",
            "Die Lehrer arbeiten, weil der Hund, den die Frau sieht, gesungen hat.",
        ),
    ]


@pytest.mark.parametrize(("clause", "english", "german"), hand_made())
def test_sentences_by_hand(clause: Clause, english: str, german: str) -> None:
    assert written(clause.english()) == english
    assert written(clause.german(main=True)) == german


def test_no_sentence_has_two_translations() -> None:
    generator = random.Random(1)
    german_of: dict[str, str] = {}
    english_of: dict[str, str] = {}
    for _ in range(1_000):
        english, german = sentence_pair(generator)
        assert german_of.setdefault(english, german) == german
        assert english_of.setdefault(german, english) == english
        assert max(len(english.split()), len(german.split())) <= LONGEST


def test_held_out_sentences_are_new_and_their_words_are_not() -> None:
    text = load_data("grammar", kind=ParallelText)
    sets = (text.train, text.validation, text.test)
    assert [len(pairs.source) for pairs in sets] == [6000, 300, 300]
    for side in ("source", "target"):
        sentences = [sentence for pairs in sets for sentence in getattr(pairs, side)]
        assert len(set(sentences)) == len(sentences)
        words = {word for sentence in getattr(text.train, side) for word in sentence.split()}
        assert words.issuperset(word for pairs in sets[1:] for s in getattr(pairs, side) for word in s.split())
