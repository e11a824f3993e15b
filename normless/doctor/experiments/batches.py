"""Train a copy on some batches, and compare the loss of held ones with that of the best constant outputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from math import inf, isfinite, sqrt
from statistics import fmean, stdev

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils._pytree import tree_map

from normless._internal.state import quiet
from normless.doctor.experiments.rates import CLEARLY, NEAR
from normless.doctor.experiments.steps import copies, stepped
from normless.doctor.experiments.trial import RATE
from normless.doctor.facts.batches import Batches
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.guessing import lowest_of_constants
from normless.doctor.facts.tracer import tensors
from normless.doctor.findings import Evidence, NotAsked, Steps, check, finding
from normless.probes import compute_output, descend, loss_of, preserve_state

# The number of batches that are read, of those that are held back, and of the steps on the others.
MOST, HELD, STEPS = 64, 8, 100
# Fewer batches say nothing; of more, no further ones are read beyond so many values.
LEAST, VALUES = 8, 2**27
# A gain counts beyond so many standard errors over the held batches.
ERRORS = 2.0
# The loss in evaluation is far above that in training mode if the gain there is below this share.
LOST = 0.25


@dataclass(frozen=True)
class Held:
    """The losses of held batches after training on others, in training mode and in evaluation."""

    training: tuple[float, ...]
    evaluation: tuple[float, ...]
    seen: float


@check("other batches")
def check_batches(exam: Examination, batches: Batches) -> Steps:
    """Look for a training that fits the batches it sees, and learns nothing that holds for others."""
    if len(batches) < LEAST or not any(exam.passed.gradients.values()) or not isfinite(exam.passed.loss):
        raise NotAsked(f"not tried: give {LEAST} batches or more, a list or a DataLoader")
    held = batches[: min(HELD, len(batches) // 2)]
    seen = batches[len(held) :]
    constant = _constant(exam, held)
    result = _trained(exam, seen, held)
    if constant is None or not all(map(isfinite, (*result.training, *result.evaluation, result.seen))):
        raise NotAsked("the loss of constant outputs is not known, or the loss is not finite")
    summary = (
        f"after {STEPS} steps on {len(seen)} batches {len(held)} others have a loss of {fmean(result.training):.3g} "
        f"in training mode and {fmean(result.evaluation):.3g} in evaluation, constant outputs {constant:.3g}"
    )
    evidence: Evidence = {
        "steps": STEPS,
        "seen": result.seen,
        "held": fmean(result.training),
        "held_in_evaluation": fmean(result.evaluation),
        "constant": constant,
    }
    if _learns(result.training, constant):
        gains = (constant - fmean(losses) for losses in (result.training, result.evaluation))
        in_training, in_evaluation = gains
        if in_evaluation < LOST * in_training and not _learns(result.evaluation, constant):
            yield finding("held_in_training_alone", (), evidence)
        return summary
    if _learns(result.evaluation, constant) or not _fits_one(exam):
        return summary
    aligned = next(
        (
            (words, other)
            for words, change in _ALIGNMENTS.items()
            if (other := change(batches)) is not None
            if _learns(_trained(exam, other[len(held) :], other[: len(held)]).training, constant)
        ),
        None,
    )
    if aligned is not None:
        yield finding("misaligned_targets", (), evidence, change=aligned[0])
    else:
        yield finding("nothing_holds", (), evidence)
    return summary


def _learns(losses: tuple[float, ...], constant: float) -> bool:
    """Whether held batches have a lower loss than constant outputs, by more than their deviation explains."""
    gain = constant - fmean(losses)
    error = stdev(losses) / sqrt(len(losses)) if len(losses) > 1 else inf
    return gain > NEAR * abs(constant) or gain > ERRORS * error


def _fits_one(exam: Examination) -> bool:
    """Whether as many steps on a single batch take its loss clearly below that of constant outputs."""
    model, optimizer = copies(exam, exam.optimizer or AdamW(exam.trained, RATE))
    trial = stepped(exam, model, optimizer, STEPS)
    return isfinite(exam.guessing) and trial.end < exam.guessing - CLEARLY * abs(exam.guessing)


def _trained(exam: Examination, seen: Batches, held: Batches) -> Held:
    """Train a copy on batches in turn, and return the losses of held ones."""
    exam.budget.spend(STEPS)
    model, optimizer = copies(exam, exam.optimizer or AdamW(exam.trained, RATE))
    with preserve_state(model, training=True), quiet():
        losses = [*descend(model, islice(cycle(seen), STEPS), optimizer, loss=exam.loss, limit=inf)]
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        # Running statistics are part of what was learned.
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    training, evaluation = (_losses(exam, model, held, training=mode) for mode in (True, False))
    return Held(training, evaluation, fmean(losses[-min(len(seen), len(losses)) :]))


def _losses(exam: Examination, model: nn.Module, batches: Batches, *, training: bool) -> tuple[float, ...]:
    losses: list[float] = []
    for inputs, targets in batches:
        with preserve_state(model, training=training), torch.no_grad(), quiet():
            losses.append(float(loss_of(exam.loss, compute_output(model, inputs), inputs, targets)))
    return tuple(losses)


def _constant(exam: Examination, held: Batches) -> float | None:
    """Return the lowest mean loss over batches of outputs that are the same for all examples; None if unknown."""
    parts: list[Examination] = []
    for inputs, targets in held:
        with preserve_state(exam.model, training=True), torch.no_grad(), quiet():
            output = compute_output(exam.model, inputs)
        part = exam.of_batch(inputs, targets, output)
        if part is None or part.passed.logits.shape != exam.passed.logits.shape:
            return None
        parts.append(part)

    def loss_at(outputs: Tensor) -> Tensor:
        return torch.stack([part.loss_at(outputs) for part in parts]).mean()

    lowest = lowest_of_constants(loss_at, parts[0].passed.logits)
    return lowest if isfinite(lowest) else None


def _rolled(batches: Batches, shift: int) -> Batches | None:
    """Return batches whose targets are those of the example before or after in the same batch."""
    with suppress(RuntimeError, IndexError):
        return [
            (inputs, tree_map(lambda value: value.roll(shift, 0) if isinstance(value, Tensor) else value, targets))
            for inputs, targets in batches
        ]
    return None


def _exchanged(batches: Batches, shift: int) -> Batches | None:
    """Return batches with the targets of the next or the last batch."""
    shapes = {tuple(tensor.shape for tensor in tensors(targets)) for _, targets in batches}
    if len(shapes) > 1:
        return None
    return [(inputs, batches[(number + shift) % len(batches)][1]) for number, (inputs, _) in enumerate(batches)]


_ALIGNMENTS: dict[str, Callable[[Batches], Batches | None]] = {
    "the targets of the next example in the batch": lambda batches: _rolled(batches, -1),
    "the targets of the example before in the batch": lambda batches: _rolled(batches, 1),
    "the targets of the next batch": lambda batches: _exchanged(batches, 1),
    "the targets of the batch before": lambda batches: _exchanged(batches, -1),
}
