"""Checks of the scales of the data: columns that the first layer reads, and targets beside outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.experiments._engine import is_fitted
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._tracer import reals, tensors
from normless.doctor.rules._trials import trial_with

# Inputs of this size are too large for weights that are initialized for inputs of variance 1.
LARGE = 10.0
# Inputs that are all below this are hidden by the biases of the first layer.
TINY = 0.02
# The share of the mean square that is variance, below which the mean hides the differences between examples.
HIDDEN = 1e-3
# One column outweighs the others if its deviation is this multiple of their median.
UNEQUAL = 100.0
# Integers with this many different values in a column may be categories.
CATEGORIES = 20
# The first four moments of standard normal values and the variances of their estimates from one value; values are
# standard normal if theirs differ by less than this many standard errors, of at most MOST values. SEVERAL are needed.
NORMAL, ERRORS, SEVERAL, MOST = ((0.0, 1.0), (1.0, 2.0), (0.0, 15.0), (3.0, 96.0)), 4.0, 1000, 10**4
# The share of the loss of guessing that trial steps with other data must reach. With several targets, steps must
# leave more than LEFT of the first loss, and those with standardized targets less than LEFT of that.
BETTER, LEFT = 0.9, 0.25
_OF_LAST_AXIS = {"linear", "lstm", "gru", "rnn_tanh", "rnn_relu", "addmm"}


@dataclass(frozen=True)
class Columns:
    """A tensor of the inputs, and the axis of its columns (or channels)."""

    given: Tensor
    axis: int

    @property
    def values(self) -> Tensor:
        """The values with the columns on the last axis, in float64."""
        return self.given.detach().double().movedim(self.axis, -1).flatten(0, -2)


def first_columns(exam: Examination) -> Columns | None:
    """Return the columns that the first weight layer reads, if it reads the inputs as they were given."""
    given = {exam.flow.of(tensor): tensor for tensor in exam.given}
    for event in exam.events("weight"):
        source, shape = event.call.reads[0]
        tensor = None if event.call.name.startswith("embedding") else given.get(source.origin())
        if tensor is not None and tensor.shape == shape and tensor.dim() > 1 and tensor.layout == torch.strided:
            return Columns(tensor, tensor.dim() - 1 if event.call.name in _OF_LAST_AXIS else 1)
    return None


@check("scale of the inputs", needs="pass")
def check_scale(exam: Examination) -> Steps:
    """Look for inputs far from the scale of weights, and for columns that outweigh or hide others."""
    columns = first_columns(exam)
    floats = [tensor for tensor in reals(exam.inputs) if tensor.numel()]
    if columns is not None and not columns.given.is_complex() and columns.given.numel():
        floats.append(columns.given)
    if not floats:
        raise NotAsked("the inputs are integers, or sparse")
    x = max(floats, key=Tensor.numel).detach().double()
    size, mean, deviation = float(x.square().mean()) ** 0.5, float(x.mean()), float(x.std(correction=0))
    # The map has norms that are written out in forward code too.
    layers = exam.map.layers() if exam.map else ()
    has_norms = bool(exam.events("norm")) or any(layer.kind == "norm" for layer in layers)
    evidence = {"mean": mean, "deviation": deviation, "largest": float(x.abs().max())}
    is_finite = isfinite(exam.passed.loss)
    found = None if columns is None else next(_of_columns(columns, size, has_norms), None)
    if found is not None and is_finite:
        yield found
    elif size > LARGE and not has_norms:
        # If the inputs overflow, the operation that overflows first is not the cause.
        yield finding("unscaled_inputs", (), evidence, grade=not is_finite)
    elif size > LARGE and (hidden := _beside_noise(exam)) > LARGE:
        yield finding("hidden_noise", (), evidence | {"beside": hidden})
    elif 0 < evidence["largest"] < TINY and not has_norms:
        yield finding("tiny_inputs", (), evidence)
    return f"mean {mean:.3g}, standard deviation {deviation:.3g}"


def _beside_noise(exam: Examination) -> float:
    """Return the largest deviation of an example's inputs without the noise in them that is the target; 0 if none is.

    A denoiser reads a · x + s · ε and returns ε. Where ε is large, as for s ≫ 1, its inputs are large too.
    """
    targets = exam.targets
    if not isinstance(targets, Tensor) or not targets.is_floating_point() or targets.numel() < SEVERAL:
        return 0.0
    t = targets.detach().double()
    for power, (moment, variance) in enumerate(NORMAL, 1):
        if abs(float(t.pow(power).mean()) - moment) > ERRORS * (variance / min(t.numel(), MOST)) ** 0.5:
            return 0.0
    largest = 0.0
    for x in reals(exam.inputs):
        if x.shape == t.shape:
            rows, noise = x.detach().double().flatten(1), t.flatten(1)
            share = (rows * noise).sum(1, keepdim=True) / noise.square().sum(1, keepdim=True)
            largest = max(largest, float((rows - share * noise).std(1).max()))
    return largest


def _of_columns(columns: Columns, size: float, has_norms: bool) -> Iterator[Finding]:
    """Report integers that may be categories, columns that outweigh others, and means that hide the differences."""
    values = columns.values
    deviations = values.std(0, correction=0)
    largest = int(deviations.argmax())
    deviation, column = float(deviations[largest]), values[:, largest]
    evidence: FindingEvidence = {"column": largest, "columns": values.shape[1], "deviation": deviation}
    distinct = torch.unique(column).numel()
    is_whole = bool(((column == column.round()) & (column >= 0)).all())
    if columns.given.dim() == 2 and is_whole and distinct >= CATEGORIES and size > LARGE and not has_norms:
        yield finding("integer_columns", (), {**evidence, "largest": float(column.max()), "values": distinct})
    others = deviations[(deviations > 0) & (deviations < deviations[largest])]
    if others.numel() and float(others.median()) < deviation / UNEQUAL:
        yield finding("unequal_columns", (), {**evidence, "median": float(others.median())})
    share = float(deviations.square().mean()) / max(size**2, 1e-300)
    if 0 < share < (HIDDEN if not has_norms else HIDDEN**2):
        means = float(values.mean(0).abs().max())
        yield finding("hidden_inputs", (), {"share": share, "mean": means, "deviation": deviation})


@check("scale of the targets", needs="steps")
def check_target_scale(exam: Examination) -> Steps:
    """Compare trial steps with the targets and with standardized ones, where their size is far from the outputs'."""
    targets = exam.targets
    is_one = isinstance(targets, Tensor)
    if is_one and (not targets.is_floating_point() or targets.numel() != exam.logits.numel()):
        raise NotAsked("they are not values of the outputs' shape")
    shown = [exam.logits] if is_one else tensors(exam.passed.output)
    made = max((_size(output) for output in shown if output.is_floating_point()), default=1.0)
    floats = {t: float(t.detach().double().std(correction=0)) for t in exam.labels if t.is_floating_point()}
    varied = {t: deviation for t, deviation in floats.items() if deviation > 0}
    # Targets that are the only ones may vary far less than the outputs.
    far = [t for t, own in varied.items() if _size(t) > LARGE * max(made, 1.0) or (is_one and own < made / UNEQUAL)]
    summary = f"{len(far)} of {len(exam.labels)} are far from the outputs, which have the size {made:.3g}"
    # Targets out of the range of the outputs are reported as such.
    if not far or not exam.trials or exam.knows("activation_after_classifier") or (not is_one and is_fitted(exam)):
        return summary

    def scaled(value: Any) -> Any:
        return _standardized(value) if any(value is target for target in far) else value

    other = exam.changed(targets=tree_map(scaled, targets))
    before, after = trial_with(exam), trial_with(other)
    widest = max(far, key=_size).detach().double()
    evidence = {"mean": float(widest.mean()), "deviation": float(widest.std(correction=0)), "outputs": made}
    evidence |= {"steps": before.steps, "loss": before.end}
    if is_one:
        is_better = before.end > BETTER * exam.guessing and after.end < BETTER * other.guessing
        if is_better and not is_fitted(exam, before):
            evidence |= {"loss_of_guessing": exam.guessing, "share": after.end / other.guessing}
            yield finding("unscaled_targets", (), evidence)
        return summary
    own_share, share = (trial.end / trial.losses[0] for trial in (before, after))
    if own_share > LEFT and share < LEFT * own_share:
        evidence |= {"first": before.losses[0], "share": share}
        yield finding("unscaled_targets_of_several", (), evidence)
    return summary


def _size(values: Tensor) -> float:
    return float(values.detach().double().square().mean().sqrt())


def _standardized(values: Tensor) -> Tensor:
    t = values.detach().double()
    scaled: Tensor = (t - t.mean(0)) / t.std(0, correction=0).clamp(min=1e-12)
    return scaled.to(values.dtype)
