"""The embedded grammar: what its sentences promise, and German by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from normless_lab.data import load_parallel_text
from normless_lab.data.parallel.grammar import LONGEST, sentence_pair
from normless_lab.data.parallel.grammar_sentences import (
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
from normless_lab.data.text_sets import Pairs, ParallelText

NOUNS = {noun.english: noun for noun in (*ANIMATE, *THINGS)}
VERBS = {verb.english: verb for verb in (*TRANSITIVE, *DITRANSITIVE, *INTRANSITIVE, *COMPLEMENT)}


@pytest.fixture(scope="module")
def text() -> ParallelText:
    return load_parallel_text("grammar")


def phrase(noun: str, determiner: str = "definite", *adjectives: tuple[str, str], plural: bool = False) -> NounPhrase:
    return NounPhrase(determiner, adjectives, NOUNS[noun], plural)


def does(verb: str, patient: NounPhrase | None = None, tense: str | int = "present", **more: NounPhrase) -> Predicate:
    return Predicate(VERBS[verb], tense, patient=patient, **more)  # type: ignore[arg-type]


OLD, RED = ("old", "alt"), ("red", "rot")


def hand_made() -> list[tuple[Clause, str, str]]:
    seen_dog = NounPhrase("definite", (), NOUNS["dog"], False, relative=RelativeClause(does("see"), phrase("woman")))
    sleeper = NounPhrase("indefinite", (OLD,), NOUNS["child"], False, relative=RelativeClause(does("sleep", tense=0)))
    friend = NounPhrase("many", (RED,), NOUNS["bird"], True, companion=phrase("mouse", "two", OLD, plural=True))
    return [
        (
            Clause(seen_dog, does("love", phrase("cat", "indefinite"))),
            "The dog that the woman sees loves a cat.",
            "Der Hund, den die Frau sieht, liebt eine Katze.",
        ),
        (
            Clause(phrase("king"), does("find", sleeper, "perfect"), adverb=("today", "heute")),
            "Today the king has found an old child that can sleep.",
            "Heute hat der König ein altes Kind, das schlafen kann, gefunden.",
        ),
        (
            Clause(friend, does("give", phrase("apple", "indefinite"), 1, recipient=phrase("girl", plural=True))),
            "Many red birds with two old mice must give the girls an apple.",
            "Viele rote Vögel mit zwei alten Mäusen müssen den Mädchen einen Apfel geben.",
        ),
        (
            Clause(
                phrase("queen", "demonstrative"),
                does("say"),
                complement=Clause(phrase("man", "indefinite", RED), does("see", phrase("dog", "definite", OLD))),
            ),
            "This queen says that a red man sees the old dog.",
            "Diese Königin sagt, dass ein roter Mann den alten Hund sieht.",
        ),
        (
            Clause(
                phrase("teacher", plural=True), does("work"), reason=Clause(seen_dog, does("sing", tense="perfect"))
            ),
            "The teachers work because the dog that the woman sees has sung.",
            "Die Lehrer arbeiten, weil der Hund, den die Frau sieht, gesungen hat.",
        ),
    ]


@pytest.mark.parametrize(("clause", "english", "german"), hand_made())
def test_sentences_by_hand(clause: Clause, english: str, german: str) -> None:
    assert written(clause.english()) == english
    assert written(clause.german(main=True)) == german


# Singular masculine, feminine, neuter and the plural, as grammars of German print them.
DECLENSION = {
    ("definite", "nominative"): "der alte Hund, die alte Katze, das alte Kind, die alten Hunde",
    ("definite", "accusative"): "den alten Hund, die alte Katze, das alte Kind, die alten Hunde",
    ("definite", "dative"): "dem alten Hund, der alten Katze, dem alten Kind, den alten Hunden",
    ("indefinite", "nominative"): "ein alter Hund, eine alte Katze, ein altes Kind",
    ("indefinite", "accusative"): "einen alten Hund, eine alte Katze, ein altes Kind",
    ("indefinite", "dative"): "einem alten Hund, einer alten Katze, einem alten Kind",
    ("demonstrative", "nominative"): "dieser alte Hund, diese alte Katze, dieses alte Kind, diese alten Hunde",
    ("demonstrative", "accusative"): "diesen alten Hund, diese alte Katze, dieses alte Kind, diese alten Hunde",
    ("demonstrative", "dative"): "diesem alten Hund, dieser alten Katze, diesem alten Kind, diesen alten Hunden",
}


@pytest.mark.parametrize(("determiner", "case"), DECLENSION)
def test_declension(determiner: str, case: str) -> None:
    expected = DECLENSION[determiner, case].split(", ")
    nouns = [("dog", False), ("cat", False), ("child", False), ("dog", True)][: len(expected)]
    phrases = [phrase(noun, determiner, OLD, plural=plural) for noun, plural in nouns]
    assert [" ".join(one.german(case)) for one in phrases] == expected  # type: ignore[arg-type]


def test_ambiguous_relative_clauses_are_known() -> None:
    frau, kind, mann = phrase("woman"), phrase("child"), phrase("man")
    seen = does("see")
    assert RelativeClause(does("see", kind)).ambiguous(frau)  # die Frau, die das Kind sieht
    assert RelativeClause(seen, kind).ambiguous(frau)
    assert not RelativeClause(does("see", kind)).ambiguous(mann)  # der Mann, der / den das Kind sieht
    assert not RelativeClause(seen, mann).ambiguous(frau)  # die Frau, die den / der Mann sieht
    assert not RelativeClause(seen, phrase("child", plural=True)).ambiguous(frau)  # … die Kinder sieht / sehen
    assert not RelativeClause(does("sleep")).ambiguous(frau)


def test_no_sentence_has_two_translations() -> None:
    generator = random.Random(1)
    german_of: dict[str, str] = {}
    english_of: dict[str, str] = {}
    for _ in range(15_000):
        english, german = sentence_pair(generator)
        assert german_of.setdefault(english, german) == german
        assert english_of.setdefault(german, english) == english
        assert max(len(english.split()), len(german.split())) <= LONGEST


def test_held_out_sentences_are_new_and_their_words_are_not(text: ParallelText) -> None:
    sets = (text.train, text.validation, text.test)
    assert [pairs.size for pairs in sets] == [6000, 300, 300]
    for side in ("source", "target"):
        sentences = [sentence for pairs in sets for sentence in getattr(pairs, side)]
        assert len(set(sentences)) == len(sentences)
        words = {word for sentence in getattr(text.train, side) for word in sentence.split()}
        assert words.issuperset(word for pairs in sets[1:] for s in getattr(pairs, side) for word in s.split())


def test_the_corpus_never_changes(text: ParallelText) -> None:
    assert text.languages == ("en", "de")
    assert text.train.source[0] == "A king can draw this strange book."
    assert text.train.target[0] == "Ein König kann dieses seltsame Buch zeichnen."
    assert text.checksum.startswith("d69330c61675310f")


def test_word_order_differs_and_recursion_occurs(text: ParallelText) -> None:
    assert any(sentence.count(" that ") >= 2 for sentence in text.test.source)
    assert any(sentence.endswith((" gesehen.", " sehen.")) for sentence in text.test.target)
    assert any(", dass " in sentence for sentence in text.test.target)
    assert any(", weil " in sentence for sentence in text.test.target)


def test_other_directions_sizes_and_seeds(text: ParallelText) -> None:
    small = load_parallel_text("grammar(train=500, validation=5, test=6)")
    assert small.train == text.subset(train=500).train
    back = load_parallel_text(
        "grammar(source='de', target='en', train=500, validation=5, test=6)", root=Path("nowhere")
    )
    assert (back.train, back.test) == (Pairs(*reversed(small.train)), Pairs(*reversed(small.test)))
    assert load_parallel_text("grammar(train=500, seed=1)").train != small.train
    with pytest.raises(ValueError, match="languages are en and de, one to the other; got 'fr' to 'de'"):
        load_parallel_text("grammar(source='fr')")
    with pytest.raises(ValueError, match="at least one pair in each set, got train=0"):
        load_parallel_text("grammar(train=0)")
    with pytest.raises(ValueError, match="too few words"):
        load_parallel_text("grammar(train=1)")
