"""The embedded labelled text: opinions about films from a small grammar, not classifiable by bag of words."""

from __future__ import annotations

import random

from normless.data.seeded_choice import SeededChoice, distinct
from normless.data.text_sets import LabelledSentences, LabelledText

CLASSES = ("negative", "positive")


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    words = text.split()
    return tuple(zip(words[::2], words[1::2], strict=True))


# Negative, positive.
ADJECTIVES = _pairs("""
    dull lively
    bad good
    awful wonderful
    tedious gripping
    clumsy elegant
    shallow profound
    stale fresh
    predictable surprising
    boring thrilling
    ugly beautiful
    silly clever
    lifeless moving
""")
VERBS = _pairs("""
    bores delights
    disappoints impresses
    annoys amuses
    tires moves
    fails succeeds
""")
PARTS = ("film", "story", "plot", "cast", "ending", "music", "script", "dialogue", "hero", "comedy", "drama")
OWNERS = ("the", "its", "this", "his", "her")
DEGREES = ("very", "quite", "rather", "truly", "really", "surprisingly")
# Each inverts what follows it.
DENIALS = ("not", "never", "hardly", "anything but", "far from", "by no means")
SPEAKERS = ("critics", "friends", "some viewers", "many people", "the papers")


def sentiment(*, train: int = 4000, test: int = 500, seed: int = 0) -> LabelledText:
    """Opinions about films from an embedded grammar, half of them positive; not classifiable by bag of words.

    They contain negations, concessions and false reports: "although the music is wonderful , the story hardly
    delights" is negative. The opinion is that of the main clause, inverted by each negation of it. No
    sentence occurs twice, and all words of the test set occur in training.

    Args:
        train: number of training sentences.
        test: number of test sentences.
        seed: of the sentences.

    Raises:
        ValueError: a size is below 2, or training is too small for its words to make sentences.
    """
    if min(train, test) < 2:
        raise ValueError(f"Expected two sentences or more in each set, got {train=}, {test=}.")
    opinions = _Opinions(random.Random(seed))
    taken: set[str] = set()

    def draw(number: int) -> tuple[str, ...]:
        # Both classes in turn.
        return (opinions.sentence(positive=number % 2 == 1),)

    learned = distinct(draw, train, taken)
    words = {word for (sentence,) in learned for word in sentence.split()}
    parts = (
        LabelledSentences(tuple(one for (one,) in part), tuple(number % 2 for number in range(len(part))))
        for part in (learned, distinct(draw, test, taken, words))
    )
    return LabelledText("sentiment", CLASSES, f"opinions of the embedded grammar, seed {seed}", *parts)


class _Opinions(SeededChoice):
    """Draws sentences of an opinion."""

    def sentence(self, positive: bool) -> str:
        """An opinion, perhaps with a concession."""
        main = self.opinion(positive)
        if self.chance(0.4):
            return main
        # A concession is of the other opinion, so that words of both occur in each class.
        conceded = self.opinion(not positive)
        if self.chance(0.2):
            return f"{main} , and {self.opinion(positive)}"
        return self.one_of(
            (f"although {conceded} , {main}", f"{main} , although {conceded}", f"{conceded} , but {main}")
        )

    def opinion(self, positive: bool) -> str:
        """A clause of an opinion, perhaps as the negation of a false report."""
        if self.chance(0.1):
            speakers = self.one_of(SPEAKERS)
            return f"{speakers} {self.one_of(('wrongly', 'falsely'))} say that {self.clause(not positive)}"
        return self.clause(positive)

    def clause(self, positive: bool) -> str:
        """A subject and what it is or does, perhaps negated."""
        subject = f"{self.one_of(OWNERS)} {self.one_of(PARTS)}"
        denied = self.chance(0.3)
        side = int(positive != denied)
        if self.chance(0.3):
            verb = self.one_of(VERBS)[side]
            return f"{subject} {self.one_of(('hardly', 'never'))} {verb}" if denied else f"{subject} {verb}"
        adjective = self.one_of(ADJECTIVES)[side]
        before = self.one_of(DENIALS) if denied else self.one_of(DEGREES) if self.chance(0.5) else ""
        return f"{subject} {self.one_of(('is', 'was'))} {before} {adjective}".replace("  ", " ")
