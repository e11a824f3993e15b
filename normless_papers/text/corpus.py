"""The embedded corpus: English sentences with their German translations, and opinions about films with their class.

It was drawn from two small grammars, which no part of a network knows. The English and German sentences have
relative clauses, agreement and two orders of words, and correspond one to one, so BLEU 100 can be reached. The
opinions have negations, concessions and false reports, and are not classifiable by bag of words: "although the music
is wonderful , the story hardly delights" is negative. The opinion is that of the main clause, inverted by each
negation of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from normless_papers.text.labelled_tables import read_lines
from normless_papers.text.text_sets import LabelledSentences, LabelledText, Pairs, ParallelText

CLASSES = ("negative", "positive")


def grammar(
    *, source: str = "en", target: str = "de", train: int = 6000, validation: int = 300, test: int = 300
) -> ParallelText:
    """Return English and German sentences of the embedded corpus.

    Sentences do not repeat within or between the sets, and all words of validation and test occur in training.
    The languages are "en" and "de"; the sizes count pairs.

    Raises:
        ValueError: the languages are not these two, a size is below 1, or the corpus has too few sentences.
    """
    if {source, target} != {"en", "de"}:
        raise ValueError(f"The corpus' languages are en and de, one to the other; got {source!r} to {target!r}.")
    if min(train, validation, test) < 1:
        raise ValueError(f"Expected at least one pair in each set, got {train=}, {validation=}, {test=}.")
    pairs = iter([line for line in _lines() if line[0] not in CLASSES])
    drawn = _distinct_sets(lambda _: next(pairs, None), (train, validation, test))
    sets = (Pairs(*(tuple(side) for side in zip(*own, strict=True))) for own in drawn)
    if source == "de":
        sets = (Pairs(*reversed(own)) for own in sets)
    return ParallelText("grammar", "sentences of the embedded corpus", (source, target), *sets)


def sentiment(*, train: int = 4000, test: int = 500) -> LabelledText:
    """Return opinions about films of the embedded corpus, half of them positive.

    No sentence occurs twice, and all words of the test set occur in training.

    Raises:
        ValueError: a size is below 2, or the corpus has too few sentences.
    """
    if min(train, test) < 2:
        raise ValueError(f"Expected two sentences or more in each set, got {train=}, {test=}.")
    both = [iter([(text,) for label, text in _lines() if label == own]) for own in CLASSES]
    # Both classes in turn.
    parts = (
        LabelledSentences(tuple(sentence for (sentence,) in own), tuple(number % 2 for number in range(len(own))))
        for own in _distinct_sets(lambda number: next(both[number % 2], None), (train, test))
    )
    return LabelledText("sentiment", "opinions of the embedded corpus", CLASSES, *parts)


@cache
def _lines() -> tuple[tuple[str, str], ...]:
    """Return both columns of every line: a sentence and its translation, or a class and an opinion."""
    lines = read_lines(Path(__file__).with_suffix(".tsv.gz"))
    return tuple((first, second) for first, _, second in (line.partition("\t") for line in lines))


def _distinct_sets(
    next_example: Callable[[int], tuple[str, ...] | None], sizes: Iterable[int]
) -> Iterator[list[tuple[str, ...]]]:
    """Yield sets of distinct examples; later sets contain only words of the first set.

    `next_example` is called with the number of examples that the set has.
    """
    taken, words = set[str](), set[str]()
    for size in sizes:
        own: list[tuple[str, ...]] = []
        while len(own) < size:
            example = next_example(len(own))
            if example is None:
                raise ValueError(
                    "The embedded corpus has too few sentences of words that occur in training; ask for fewer, or "
                    "increase their number by train=…."
                )
            known = not words or all(words.issuperset(sentence.split()) for sentence in example)
            if known and taken.isdisjoint(example):
                own.append(example)
                taken.update(example)
        words = words or {word for example in own for sentence in example for word in sentence.split()}
        yield own
