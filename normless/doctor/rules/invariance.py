"""Checks of outputs that are invariant where the targets are not: norms that remove what is to be predicted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import isfinite, nan

import torch
from torch import Tensor
from torch.nn import functional as F

from normless.doctor.facts.changes import change_of
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.guessing import descend
from normless.doctor.facts.relations import explained
from normless.doctor.facts.tracer import REFUSED, with_leaf
from normless.doctor.findings import Evidence, Finding, Steps, check, finding

# The targets depend on a statistic of the inputs if it explains this share of their variance.
EXPLAINED = 0.5
# Fewer examples may agree by chance.
SEVERAL = 16
# Outputs are invariant if they change by less than this share of their differences between examples.
SAME = 1e-2
# Means and norms of outputs count as fixed if they differ by less than this share.
FIXED = 1e-2
# Fixed outputs count if they keep the loss above the lowest by more than this share of the loss of guessing.
OUT_OF_REACH = 0.1
MANY_CHANNELS = 16


@check("invariances")
def check_invariance(exam: Examination) -> Steps:
    """Look for outputs that do not depend on the level or the scale of inputs on which the targets depend."""
    for event in exam.events("norm"):
        if event.name not in ("batch_norm", "rms_norm") and event.normalized == 2:
            # It leaves one bit of the two values.
            yield finding("norm_of_two", (event.place,), {"norm": event.name, "shape": str(event.call.reads[0][1])})
            break
    yield from _fixed_outputs(exam)
    summary = "no level or scale of the inputs explains the targets"
    targets = next((y for y in exam.labels if y.dim() and y.numel() == len(y) >= SEVERAL), torch.zeros(0))
    if not targets.is_floating_point() and not 1 < len(torch.unique(targets)) <= len(targets) // 4:
        return summary
    for number, x in enumerate(exam.given):
        is_usual = x.is_floating_point() and x.layout == torch.strided and x.dim() > 1 and x[0].numel() > 2
        for kind, statistic in _statistics(x) if is_usual and len(x) == len(targets) else ():
            share = float(explained(statistic[:, None], targets.detach().reshape(-1)))
            if not share > EXPLAINED or _neighbors_agree(x, targets):
                continue
            change = _change(exam, number, x, kind)
            if change < SAME:
                norm = next(iter(exam.events("norm")), None)
                evidence: Evidence = {"statistic": kind, "explained": share, "change": change}
                at = f" (the first norm is {norm.name} at {norm.place})" if norm else ""
                yield finding("invariant_outputs", norm.call.where if norm else (), evidence, at=at)
                return f"the outputs do not depend on the {kind} of an example"
            summary = "the targets depend on a level or scale of the inputs, and so do the outputs"
    return summary


def _statistics(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Return the levels and the scale of each example."""
    flat = x.detach().double().flatten(1)
    yield "level", flat.mean(1)
    if x.dim() > 2 and 1 < x.shape[1] <= MANY_CHANNELS:
        for channel in x.detach().double().flatten(2).mean(2).T:
            yield "level", channel
    yield "scale", flat.std(1).clamp_min(1e-30).log()


def _neighbors_agree(x: Tensor, targets: Tensor) -> bool:
    """Whether nearest neighbors among the normalized examples have similar targets."""
    flat = x.detach().double().flatten(1)
    flat = F.layer_norm(flat, flat.shape[1:])
    y = targets.detach().reshape(-1)
    nearest = y[torch.cdist(flat, flat).fill_diagonal_(torch.inf).argmin(1)]
    if y.is_floating_point():
        return float(torch.stack([y.double(), nearest.double()]).corrcoef()[0, 1]) > EXPLAINED
    chance = float((y[:, None] == y).double().mean())
    return float((y == nearest).double().mean()) > (1 + chance) / 2


def _change(exam: Examination, number: int, x: Tensor, kind: str) -> float:
    """Return the change of the outputs if each example gets another level or scale, relative to their differences."""
    shape = (len(x), x.shape[1] if kind == "level" and x.dim() > 2 else 1, *(1 for _ in x.shape[2:]))
    draws = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(x)
    changed = x.detach() + x.detach().std() * draws if kind == "level" else x.detach() * draws.exp()
    change = float(change_of(exam, with_leaf(exam.inputs, number, changed)).max())
    return change / exam.apart if exam.apart > 0 else nan


def _fixed_outputs(exam: Examination) -> Iterator[Finding]:
    """Report outputs whose mean and deviation are the same for all examples, if the best such outputs fit badly."""
    outputs = exam.logits.double()
    if outputs.dim() != 2 or len(outputs) < 4 or outputs.shape[1] < 3 or exam.passed.error is not None:
        return
    means, deviations = outputs.mean(1), outputs.std(1)
    size = float(deviations.mean())
    if not size > 0 or max(float(means.std()), float(deviations.std())) > FIXED * size:
        return
    norm = next(reversed(exam.events("norm")), None)
    if norm is None or not isfinite(exam.guessing) or not isfinite(exam.lowest):
        return
    floor = _lowest_fixed(exam, trained=any(p.requires_grad for p in norm.parameters), size=size)
    if floor - max(exam.lowest, 0.0) > OUT_OF_REACH * exam.guessing > 0:
        evidence: Evidence = {"lowest_loss": floor, "guessing": exam.guessing, "outputs": outputs.shape[1]}
        yield finding("normalized_outputs", norm.call.where, {**evidence, "norm": norm.name})


def _lowest_fixed(exam: Examination, *, trained: bool, size: float) -> float:
    """Return the lowest loss of outputs that are normalized, with a trained factor and offset or without."""
    outputs = exam.logits.float()
    free = outputs.clone().requires_grad_()
    scale = torch.full_like(outputs[:1], size).requires_grad_()
    offset = torch.full_like(scale, float(outputs.mean())).requires_grad_()
    found: list[float] = []

    def loss() -> Tensor:
        normalized = F.layer_norm(free, free.shape[1:]) * scale + offset
        return exam.loss_at(normalized.to(exam.logits.dtype))

    with suppress(*REFUSED):
        descend(loss, [free, scale, offset] if trained else [free], found, steps=60)
    return min(filter(isfinite, found), default=nan)
