"""Checks for values that are not finite, in the loss and its gradient, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from torch import Tensor, nn

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, tensors
from normless.doctor.facts.nonfinite import Broken, find_broken
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding

_EVALUATION = " in evaluation mode"


@check("finite values")
def check_finite(exam: Examination) -> Steps:
    """Look for a loss or a gradient that is not finite, and for the first such value in the pass."""
    passed = exam.passed
    if passed.error is not None:
        raise NotAsked("the loss could not be computed")
    gradients = [norm for norm in passed.gradients.values() if norm is not None]
    if not (isfinite(passed.loss) and all(map(isfinite, gradients))):
        what = "gradient" if isfinite(passed.loss) else "loss"
        broken = find_broken(exam.model, exam.inputs, exam.targets, exam.loss, training=True)
        yield _finding(exam, broken, what, training=True)
        return f"the {what} is not finite"
    if exam.evaluated_loss is not None and not isfinite(exam.evaluated_loss):
        broken = find_broken(exam.model, exam.inputs, exam.targets, exam.loss, training=False)
        yield _finding(exam, broken, "loss", training=False)
        return "the loss in evaluation mode is not finite"
    return f"the loss, {passed.loss:.3g}, and all gradients are finite"


def _finding(exam: Examination, broken: Broken | None, what: str, *, training: bool) -> Finding:
    """Report the cause of the first value that is not finite: the batch, the network's state, or a call."""
    mode = "" if training else _EVALUATION
    if broken is None:
        # The value arises where calls are not recorded: in a compiled function, or in a sum of two gradients.
        words = {"operation": "what was not seen", "does": "do so", "value": "unknown", "reads": "finite values"}
        return finding("first_not_finite", (), {"what": what}, grade=training, mode=mode, line="the loss", **words)
    call = broken.call
    if call.kind in ("parameter", "buffer"):
        return _of_state(exam.model, call.name, mode, training=training)
    if call.kind == "targets":
        return finding("not_finite_targets", (), count_not_finite(tensors(exam.targets)), grade=training)
    if (ignored := _ignored(exam.targets, broken)) is not None:
        return ignored
    evidence = {"what": broken.what, "operation": call.name, "value": broken.value, "line": broken.line}
    where = () if call.path == LOSS else (call.place,)
    words = {"mode": mode, "does": broken.does, "reads": broken.all_reads, "place": broken.place}
    return finding("first_not_finite", where, evidence, grade=training, **words)


def _of_state(model: nn.Module, name: str, mode: str, *, training: bool) -> Finding:
    """Report parameters or buffers that are not finite."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    bad = [key for key, value in state.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    count = int((~state[name].detach().isfinite()).sum())
    where = [name, *(key for key in bad if key != name)]
    return finding("not_finite_state", where, {"values": count, "more": len(bad) - 1}, grade=training, mode=mode)


def count_not_finite(values: list[Tensor]) -> Mapping[str, int]:
    """Count the values that are not finite, and find the first example with one."""
    for tensor in values:
        bad = ~tensor.detach().isfinite()
        if bad.any():
            example = int(bad.flatten(1).any(1).nonzero()[0]) if tensor.dim() > 1 else int(bad.nonzero()[0])
            return {"values": int(bad.sum()), "example": example}
    return {"values": 0, "example": 0}


def _ignored(targets: Any, broken: Broken) -> Finding | None:
    """Report labels that are all ignored by the mean of a loss."""
    if broken.call.name not in ("cross_entropy", "nll_loss") or broken.value != "NaN" or "NaN" in broken.reads:
        return None
    labels = [tensor for tensor in tensors(targets) if not tensor.is_floating_point() and tensor.numel()]
    for tensor in labels:
        if bool((tensor == tensor.flatten()[0]).all()):
            return finding("ignored_labels", (), {"labels": tensor.numel(), "index": int(tensor.flatten()[0])})
    return None
