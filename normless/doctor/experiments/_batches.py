"""Train a copy on some batches, and compare the loss of held ones with that of the best constant outputs."""

from __future__ import annotations

from contextlib import suppress
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from normless.doctor._findings import FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.experiments._engine import CLEARLY, Experiment, RunningExperiment
from normless.doctor.experiments._rates import NEAR
from normless.doctor.facts._batches import Batches
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._guessing import lowest_of_constants
from normless.doctor.facts._tracer import tensors
from normless.probes.hooks._losses import loss_of
from normless.probes.hooks._observe import compute_output
from normless.state import preserve_state, quiet

# The number of batches that are read, of those that are held back, and of the steps on the others.
MOST, HELD, STEPS = 64, 8, 100
# Fewer batches say nothing; of more, no further ones are read beyond so many values.
LEAST, VALUES = 8, 2**27
# A gain counts beyond so many standard errors over the held batches.
ERRORS = 2.0
# The loss in evaluation is far above that in training mode if the gain there is below this share.
LOST = 0.25
# How targets may be misaligned: by examples within a batch, and by batches.
_MISALIGNED = {
    "the targets of the next example in the batch": (-1, 0),
    "the targets of the example before in the batch": (1, 0),
    "the targets of the next batch": (0, 1),
    "the targets of the batch before": (0, -1),
}
Losses = tuple[float, ...]


@check("other batches", needs="steps")
def check_batches(exam: Examination) -> Steps:
    """Look for a training that fits the batches it sees, and learns nothing that holds for others."""
    batches = exam.batches
    if (
        not exam.steps
        or len(batches) < LEAST
        or not any(exam.passed.gradients.values())
        or not isfinite(exam.passed.loss)
    ):
        raise NotAsked(f"not tried: give {LEAST} batches or more, a list or a DataLoader")
    held = batches[: min(HELD, len(batches) // 2)]
    constant = _constant(exam, held)
    seen, training, evaluation = _trained(exam, batches, len(held))
    if constant is None or not all(map(isfinite, (*training, *evaluation, seen))):
        raise NotAsked("the loss of constant outputs is not known, or the loss is not finite")
    evidence: FindingEvidence = {"steps": STEPS, "seen": seen, "held": fmean(training), "constant": constant}
    evidence = {**evidence, "held_in_evaluation": fmean(evaluation)}
    in_training, in_evaluation = (constant - fmean(losses) for losses in (training, evaluation))
    if _learns(training, constant):
        if in_evaluation < LOST * in_training and not _learns(evaluation, constant):
            yield finding("held_in_training_alone", (), evidence)
    elif not _learns(evaluation, constant) and _fits_one(exam):
        for words, shift in _MISALIGNED.items():
            other = _shifted(batches, *shift)
            if other is not None and _learns(_trained(exam, other, len(held))[1], constant):
                yield finding("misaligned_targets", (), evidence, change=words)
                break
        else:
            yield finding("nothing_holds", (), evidence)
    return (
        f"after {STEPS} steps on {len(batches) - len(held)} batches {len(held)} others have a loss of "
        f"{fmean(training):.3g} in training mode and {fmean(evaluation):.3g} in evaluation, "
        f"constant outputs {constant:.3g}"
    )


def _learns(losses: Losses, constant: float) -> bool:
    """Whether held batches have a lower loss than constant outputs, by more than their deviation explains."""
    gain = constant - fmean(losses)
    error = stdev(losses) / sqrt(len(losses)) if len(losses) > 1 else inf
    return gain > NEAR * abs(constant) or gain > ERRORS * error


def _fits_one(exam: Examination) -> bool:
    """Whether as many steps on a single batch take its loss clearly below that of constant outputs."""
    return isfinite(exam.guessing) and RunningExperiment(exam).to(STEPS).fell_below(exam.guessing) > CLEARLY


def _trained(exam: Examination, batches: Batches, held: int) -> tuple[float, Losses, Losses]:
    """Train a copy on all but the first batches; return its loss, and those of the first ones in both modes."""
    run = RunningExperiment(exam, Experiment(stream=batches[held:]))
    seen = fmean(run.to(STEPS).losses[held - len(batches) :])
    found: list[Losses] = []
    for mode in (True, False):
        losses = list[float]()
        for inputs, targets in batches[:held]:
            with preserve_state(run.network, training=mode), torch.no_grad(), quiet():
                losses.append(float(loss_of(exam.loss, compute_output(run.network, inputs), inputs, targets)))
        found.append(tuple(losses))
    return seen, *found  # type: ignore[return-value]


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


def _shifted(batches: Batches, examples: int, places: int) -> Batches | None:
    """Return batches with the targets of other examples or of another batch; None if shapes do not allow it."""
    if places and len({tuple(tensor.shape for tensor in tensors(targets)) for _, targets in batches}) > 1:
        return None

    def rolled(value: Any) -> Any:
        return value.roll(examples, 0) if examples and isinstance(value, Tensor) else value

    with suppress(RuntimeError, IndexError):
        return [
            (inputs, tree_map(rolled, batches[(number + places) % len(batches)][1]))
            for number, (inputs, _) in enumerate(batches)
        ]
    return None
