"""Checks of values: of the batch, labels that the loss does not take, and what is not finite in a pass."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._held import held
from normless.doctor.facts._nonfinite import Broken, find_broken
from normless.doctor.facts._relations import IGNORED
from normless.errors import InputsError, MissingValuesError
from normless.probes.hooks._losses import LossValueError

# If this many labels are all equal, it is not by chance.
SEVERAL = 8
# Repetitions are counted among this many examples, of at least `SEVERAL` values each.
LEAST_EXAMPLES, MOST_EXAMPLES = 16, 256


@check("inputs", blocks=True)
def check_inputs(exam: Examination) -> Steps:
    """Look for inputs that are not finite, or the same for all examples."""
    if any(tensor.is_meta for tensor in exam.given):
        raise MissingValuesError("Expected a batch with values, got a tensor on torch's device meta.")
    if (counts := count_not_finite([*map(_stored, exam.given)]))["values"]:
        yield finding("not_finite_inputs", (), counts)
        return "not finite"
    usual = [t for t in exam.given if t.layout == torch.strided and not t.is_complex() and t.dim() and t.numel()]
    if usual and all(len(tensor) > 1 and bool((tensor == tensor[:1]).all()) for tensor in usual):
        evidence = {"examples": len(usual[0]), "smallest": float(usual[0].min()), "largest": float(usual[0].max())}
        yield finding("constant_inputs", (), evidence)
        return "all examples are the same"
    return ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in exam.given)


def _stored(x: Tensor) -> Tensor:
    """Return the values of a tensor; of a sparse one, those that it stores."""
    if x.layout == torch.strided:
        return x
    return (x.detach().coalesce() if x.layout == torch.sparse_coo else x.detach()).values()


def count_not_finite(values: list[Tensor]) -> Mapping[str, int]:
    """Count the values of the first tensor with some that are not finite, and find its first example with one."""
    for tensor in values:
        bad = ~tensor.detach().isfinite()
        if bad.any():
            example = int(bad.flatten(1).any(1).nonzero()[0]) if tensor.dim() > 1 else int(bad.nonzero()[0])
            return {"values": int(bad.sum()), "example": example}
    return {"values": 0, "example": 0}


@check("targets", blocks=True)
def check_targets(exam: Examination) -> Steps:
    """Check whether the loss takes the targets."""
    error, targets = exam.passed.error, exam.targets
    if error is None:
        return "the loss takes them"
    if isinstance(error, LossValueError):
        yield finding("loss_value", (), {"came": error.came}, way=error.way[0].lower() + error.way[1:])
        return "the loss is not one number"
    if targets is None:
        raise ValueError(
            "Gradients of a loss are measured, so targets are needed: pass (inputs, targets)."
        ) from error
    if not isinstance(targets, Tensor):
        raise InputsError(f"The loss does not take targets that are a {type(targets).__name__}: {error}") from error
    yield _refused(targets, exam.passed.logits, error)
    return "the loss refuses them"


def _refused(targets: Tensor, logits: Tensor, error: Exception) -> Finding:
    """Find out why the loss does not take the targets, from their type, shape and range."""
    evidence: dict[str, float | int | str] = {
        "targets": f"{tuple(targets.shape)} of {str(targets.dtype).removeprefix('torch.')}",
        "outputs": str(tuple(logits.shape)),
        "message": str(error).splitlines()[0],
    }
    classes = logits.shape[1] if logits.dim() > 1 else 1
    is_index = targets.dtype in (torch.int64, torch.uint8)
    kept = targets[targets != IGNORED]
    kind = "loss_failed"
    if isinstance(error, (TypeError, KeyError, AttributeError)) or "unpack" in str(error):
        # The loss expects other outputs or targets; shapes are not the cause.
        pass
    elif not logits.dim():
        evidence["message"] = "the network returns one number; if this is its loss, pass loss=lambda out, batch: out"
    elif targets.shape[:1] != logits.shape[:1] or (targets.dim() == logits.dim() and targets.shape[1:] == (1,)):
        kind = "label_shape"
    elif logits.dim() > 2 and targets.shape == logits.shape[:-1] != (len(logits), *logits.shape[2:]):
        # torch's message may name a label that exceeds the length of a text.
        evidence["message"] = "the classes are on the last axis of the outputs; the loss expects them on the second"
        kind = "label_shape"
    elif not is_index and targets.dim() == logits.dim() - 1:
        kind = "label_type"
    elif is_index and kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        evidence |= {"smallest": int(kept.min()), "largest": int(kept.max()), "classes": classes}
        kind = "labels_out_of_range"
    return finding(kind, (), evidence)


@check("values of the targets", needs="pass")
def check_values(exam: Examination) -> Steps:
    """Look for targets that are all the same."""
    targets = exam.targets
    if not isinstance(targets, Tensor):
        raise NotAsked("they are not tensors")
    values = targets[targets != IGNORED]
    is_constant = values.numel() >= SEVERAL and bool((values == values.flatten()[0]).all())
    # A loss of the outputs alone, as of triplets, gets targets of any kind.
    are_read = any(source.kind == "targets" for call in exam.in_loss for source in call.sources())
    if is_constant and are_read and targets.dim() and not values.is_complex():
        label = float(values.flatten()[0])
        same = {"label": label, "labels": values.numel()}
        yield finding("one_label", (), same, advice=_is_one_on_purpose(exam, label))
    return f"{tuple(targets.shape)}, {len(set(values.flatten().tolist()))} of them different"


def _is_one_on_purpose(exam: Examination, label: float) -> bool:
    """Whether targets of one value may be meant: real ones for a generator, or residuals that are to be zero.

    A generator is trained through a network that is frozen, or whose parameters the optimizer does not hold.
    """
    if not exam.targets.is_floating_point() and exam.logits.dim() > 1 and exam.logits.shape[1] > 1:
        return False
    known = {*map(id, held(exam.optimizer))}
    is_whole = all(p.requires_grad and (not known or id(p) in known) for p in exam.model.parameters())
    # A loss with layers of its own, such as a critic, judges what the network makes. A residual is computed from
    # outputs of layers, and is none of them.
    has_layers = any(call.layer == "weight" for call in exam.in_loss)
    return has_layers or not is_whole or (label == 0.0 and not exam.last.origin().layer)


@check("repetitions of examples", needs="pass")
def check_repetitions(exam: Examination) -> Steps:
    """Look for a batch of few examples with their targets, or one that most of the batch is."""
    inputs, targets = _rows(exam.given), _rows(exam.labels)
    if inputs is None or targets is None or len(inputs) != len(targets):
        raise NotAsked("the examples are not rows of tensors")
    # Rows of a single value fill a batch up.
    is_kept = (inputs != inputs[:, :1]).any(1)
    inputs, targets = inputs[is_kept], targets[is_kept]
    if len(inputs) < LEAST_EXAMPLES or inputs.shape[1] < SEVERAL:
        raise NotAsked("examples that are few, or of few values, may well be the same")
    distinct, counts = torch.unique(torch.cat([inputs, targets], 1), dim=0, return_counts=True)
    most = int(counts.max())
    is_repeated = 4 * len(distinct) < len(inputs) or 2 * most > len(inputs)
    if is_repeated and _are_varied(distinct[:, : inputs.shape[1]]):
        evidence = {"distinct": len(distinct), "examples": len(inputs), "most": most}
        yield finding("repeated_examples", (), evidence)
    return f"{len(distinct)} of {len(inputs)} examples are distinct"


def _rows(tensors: list[Tensor]) -> Tensor | None:
    """Return the values of the first examples, one row for each, if the first axis of all tensors is theirs."""
    lengths = {len(x) if x.dim() and x.layout == torch.strided and not x.is_complex() else 0 for x in tensors}
    if len(lengths) != 1 or 0 in lengths:
        return None
    first = [x[:MOST_EXAMPLES].detach().cpu() for x in tensors]
    return torch.cat([x.reshape(len(x), -1).double() for x in first], 1)


def _are_varied(distinct: Tensor) -> bool:
    """Whether a column has so many values that equal examples are not a matter of few categories."""
    values = int((distinct.sort(0)[0].diff(dim=0) != 0).sum(0).max()) + 1
    return values >= max(3, min(len(distinct), SEVERAL), len(distinct) / 2)


@check("finite values", needs="pass")
def check_finite(exam: Examination) -> Steps:
    """Look for a loss or a gradient that is not finite, and for the first such value in the pass."""
    passed = exam.passed
    if passed.error is not None:
        raise NotAsked("the loss could not be computed")
    is_trained = isfinite(passed.loss) and all(map(isfinite, passed.reached.values()))
    if is_trained and (exam.evaluated_loss is None or isfinite(exam.evaluated_loss)):
        return f"the loss, {passed.loss:.3g}, and all gradients are finite"
    broken = find_broken(exam.model, exam.inputs, exam.targets, exam.loss, training=not is_trained)
    what = "gradient" if isfinite(passed.loss) and not is_trained else "loss"
    mode = " in evaluation mode" if is_trained else ""
    yield _not_finite(exam, broken, what, mode)
    return f"the {what}{mode} is not finite"


def _not_finite(exam: Examination, broken: Broken | None, what: str, mode: str) -> Finding:
    """Report the cause of the first value that is not finite: the batch, the network's state, or a call."""
    if broken is None:
        # The value arises where calls are not recorded: in a compiled function, or in a sum of two gradients.
        words = {"operation": "what was not seen", "does": "do so", "value": "unknown", "reads": "finite values"}
        return finding("first_not_finite", (), {"what": what}, grade=not mode, mode=mode, line="the loss", **words)
    call = broken.call
    if call.kind in ("parameter", "buffer"):
        return _of_state(exam.model, call.name, mode)
    if call.kind == "targets":
        return finding("not_finite_targets", (), count_not_finite(exam.labels), grade=not mode)
    if call.name in ("cross_entropy", "nll_loss") and broken.value == "NaN" and "NaN" not in broken.all_reads:
        for labels in exam.labels:
            # The mean over none of the labels.
            if not labels.is_floating_point() and labels.numel() and bool((labels == labels.flatten()[0]).all()):
                evidence: FindingEvidence = {"labels": labels.numel(), "index": int(labels.flatten()[0])}
                return finding("ignored_labels", (), evidence)
    evidence = {"what": broken.what, "operation": call.name, "value": broken.value, "line": broken.line}
    words = {"mode": mode, "does": broken.does, "reads": broken.all_reads, "place": call.place}
    return finding("first_not_finite", call.where, evidence, grade=not mode, **words)


def _of_state(model: nn.Module, name: str, mode: str) -> Finding:
    """Report parameters or buffers that are not finite."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    counts = {key: int((~own.detach().isfinite()).sum()) for key, own in state.items() if own.is_floating_point()}
    others = [key for key, count in counts.items() if count and key != name]
    evidence: FindingEvidence = {"values": counts[name], "more": len(others)}
    return finding("not_finite_state", [name, *others], evidence, grade=not mode, mode=mode)
