"""The embedded labelled text: opinions about films, drawn of a small grammar, whose words alone do not tell them."""

from __future__ import annotations

import random
from pathlib import Path

from normless.data.text.labelled_text import LabelledSentences, LabelledText
from normless.data.seeded_choice import Dice

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
# Each turns what follows it round.
DENIALS = ("not", "never", "hardly", "anything but", "far from", "by no means")
SPEAKERS = ("critics", "friends", "some viewers", "many people", "the papers")

_PATIENCE = 1000


def sentiment(*, root: Path, download: bool, train: int = 4000, test: int = 500, seed: int = 0) -> LabelledText:
    """Draw opinions with negations, concessions and reports of what others wrongly say, half of them positive.

    "although the music is wonderful , the story hardly delights" is negative: an opinion is that of its main clause,
    and turned round by every denial about it. No sentence comes twice, and all words of the test set come in
    training. Neither ``root`` nor ``download`` has a use.

    Args:
        root: without meaning here.
        download: without meaning here.
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
    learned = _distinct(opinions, train, taken)
    words = {word for sentence in learned.sentences for word in sentence.split()}
    held_out = _distinct(opinions, test, taken, words)
    return LabelledText("sentiment", CLASSES, f"opinions of the embedded grammar, seed {seed}", learned, held_out)


def _distinct(opinions: _Opinions, size: int, taken: set[str], words: set[str] | None = None) -> LabelledSentences:
    """Sentences not taken yet, of both classes by turns and of these words only if there are such; now taken."""
    sentences: list[str] = []
    refused = 0
    while len(sentences) < size:
        sentence = opinions.sentence(positive=len(sentences) % 2 == 1)
        if sentence not in taken and (words is None or words.issuperset(sentence.split())):
            sentences.append(sentence)
            taken.add(sentence)
            refused = 0
        else:
            refused += 1
        if refused > _PATIENCE:
            raise ValueError(
                "The training sentences have too few words to make others of; ask for more of them by train=…."
            )
    return LabelledSentences(tuple(sentences), tuple(number % 2 for number in range(size)))


class _Opinions(Dice):
    """Draws sentences of an opinion."""

    def sentence(self, positive: bool) -> str:
        """An opinion, perhaps with another one that it grants."""
        main = self.opinion(positive)
        if self.chance(0.4):
            return main
        # What is granted is of the other opinion, so that the words of both come in either class.
        granted = self.opinion(not positive)
        if self.chance(0.2):
            return f"{main} , and {self.opinion(positive)}"
        return self.one_of(
            (f"although {granted} , {main}", f"{main} , although {granted}", f"{granted} , but {main}")
        )

    def opinion(self, positive: bool) -> str:
        """A clause of an opinion, perhaps as what others wrongly say."""
        if self.chance(0.1):
            speakers = self.one_of(SPEAKERS)
            return f"{speakers} {self.one_of(('wrongly', 'falsely'))} say that {self.clause(not positive)}"
        return self.clause(positive)

    def clause(self, positive: bool) -> str:
        """A subject and what it is or does, perhaps denied."""
        subject = f"{self.one_of(OWNERS)} {self.one_of(PARTS)}"
        denied = self.chance(0.3)
        side = int(positive != denied)
        if self.chance(0.3):
            verb = self.one_of(VERBS)[side]
            return f"{subject} {self.one_of(('hardly', 'never'))} {verb}" if denied else f"{subject} {verb}"
        adjective = self.one_of(ADJECTIVES)[side]
        before = self.one_of(DENIALS) if denied else self.one_of(DEGREES) if self.chance(0.5) else ""
        return f"{subject} {self.one_of(('is', 'was'))} {before} {adjective}".replace("  ", " ")
