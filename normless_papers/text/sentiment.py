"""The embedded labelled text: opinions about films from a small grammar, not classifiable by bag of words."""

from __future__ import annotations

import random
from pathlib import Path

import yaml

from normless_papers.text.seeded_choice import SeededChoice, distinct_sets
from normless_papers.text.text_sets import LabelledSentences, LabelledText

CLASSES = ("negative", "positive")

_WORDS = yaml.safe_load(Path(__file__).with_name("sentiment_words.yaml").read_text("utf-8"))
ADJECTIVES, VERBS = (
    tuple(tuple(line.split()) for line in _WORDS[kind].splitlines()) for kind in ("adjectives", "verbs")
)
PARTS, OWNERS, DEGREES, DENIALS, SPEAKERS = (
    _WORDS[kind] for kind in ("parts", "owners", "degrees", "denials", "speakers")
)


def sentiment(*, train: int = 4000, test: int = 500, seed: int = 0) -> LabelledText:
    """Opinions about films from an embedded grammar, half of them positive; not classifiable by bag of words.

    They contain negations, concessions and false reports: "although the music is wonderful , the story hardly
    delights" is negative. The opinion is that of the main clause, inverted by each negation of it. No
    sentence occurs twice, and all words of the test set occur in training.

    Raises:
        ValueError: a size is below 2, or training is too small for its words to make sentences.
    """
    if min(train, test) < 2:
        raise ValueError(f"Expected two sentences or more in each set, got {train=}, {test=}.")
    opinions = _Opinions(random.Random(seed))
    # Both classes in turn.
    drawn = distinct_sets(lambda number: (opinions.sentence(positive=number % 2 == 1),), (train, test))
    parts = (
        LabelledSentences(tuple(sentence for (sentence,) in part), tuple(number % 2 for number in range(len(part))))
        for part in drawn
    )
    return LabelledText("sentiment", f"opinions of the embedded grammar, seed {seed}", CLASSES, *parts)


class _Opinions(SeededChoice):
    """Draws sentences of an opinion."""

    def sentence(self, positive: bool) -> str:
        """Draw an opinion, perhaps with a concession."""
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
        """Draw a clause of an opinion, perhaps as the negation of a false report."""
        if self.chance(0.1):
            speakers = self.one_of(SPEAKERS)
            return f"{speakers} {self.one_of(('wrongly', 'falsely'))} say that {self.clause(not positive)}"
        return self.clause(positive)

    def clause(self, positive: bool) -> str:
        """Draw a subject and what it is or does, perhaps negated."""
        subject = f"{self.one_of(OWNERS)} {self.one_of(PARTS)}"
        denied = self.chance(0.3)
        side = int(positive != denied)
        if self.chance(0.3):
            verb = self.one_of(VERBS)[side]
            return f"{subject} {self.one_of(('hardly', 'never'))} {verb}" if denied else f"{subject} {verb}"
        adjective = self.one_of(ADJECTIVES)[side]
        before = self.one_of(DENIALS) if denied else self.one_of(DEGREES) if self.chance(0.5) else ""
        return f"{subject} {self.one_of(('is', 'was'))} {before} {adjective}".replace("  ", " ")
