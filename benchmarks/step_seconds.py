"""What a training step takes on this machine, measured with few examples and carried on to as many as a step has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from normless.models import build_model
from normless_lab.bench import seconds_in_turns

# Examples of the measured steps, and how often each is taken; the fastest counts.
FEW, MANY, TIMES = 2, 8, 2
# Tokens of a sentence.
LENGTH = 25


@dataclass(frozen=True)
class StepSeconds:
    """Of a pass forward and back: seconds whatever the batch size, and seconds per example."""

    fixed: float
    each: float

    def of(self, examples: float) -> float:
        """Of a step with so many examples."""
        return self.fixed + self.each * examples


@cache
def image_step(model: str, channels: int, side: int, classes: int) -> StepSeconds:
    """Of the network before its scheme's edits, on square images."""
    network = build_model(model, classes=classes, image_shape=(channels, side, side)).train()

    def loss(examples: int) -> Tensor:
        images, labels = torch.randn(examples, channels, side, side), torch.randint(classes, (examples,))
        return F.cross_entropy(network(images), labels)

    return _measured(loss)


@cache
def translation_step(model: str, vocabulary: int) -> StepSeconds:
    """Of an encoder-decoder; an example is a token on either side."""
    network = build_model(f"{model.removesuffix(')')}, vocabulary={vocabulary})").train()

    def loss(examples: int) -> Tensor:
        source, target, labels = torch.randint(4, vocabulary, (3, examples, LENGTH))
        return F.cross_entropy(network(source, target).flatten(0, 1), labels.flatten())

    return _per_token(_measured(loss))


@cache
def bert_step() -> StepSeconds:
    """Of BERT base as it is, the classifier of sentences in two classes; an example is a token."""
    network = build_model("transformers:bert()", classes=2).train()

    def loss(examples: int) -> Tensor:
        tokens, labels = torch.randint(1000, 30_000, (examples, LENGTH)), torch.randint(2, (examples,))
        return F.cross_entropy(network(tokens), labels)

    return _per_token(_measured(loss))


def _measured(loss: Callable[[int], Tensor]) -> StepSeconds:
    """From the fastest steps with few and with many examples; the first of either is not counted."""

    def step(examples: int) -> None:
        loss(examples).backward()  # type: ignore[no-untyped-call]

    actions = {"few": partial(step, FEW), "many": partial(step, MANY)}
    few, many = map(float, seconds_in_turns(actions, TIMES).min())
    each = max((many - few) / (MANY - FEW), 0.0)
    return StepSeconds(max(few - FEW * each, 0.0), each)


def _per_token(step: StepSeconds) -> StepSeconds:
    return StepSeconds(step.fixed, step.each / LENGTH)
