"""Checks of the batch: values that no network can learn from, and labels that the loss does not take."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, Call, Flow, tensors
from normless.doctor.facts.held import held
from normless.doctor.facts.tape import KINDS
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding
from normless.errors import InputsError, MissingValuesError

IGNORED = -100
# If this many labels are all equal, it is not by chance.
SEVERAL = 8
# Functions that take class indices as targets, or combine arguments with different numbers of axes.
_OF_CLASSES = frozenset(
    ["cross_entropy", "nll_loss", "ctc_loss", "gather", "take_along_dim", "cdist", "matmul", "__matmul__", "einsum"]
)
Shape = tuple[int, ...]


@check("inputs", blocks=True)
def check_inputs(exam: Examination) -> Steps:
    """Look for inputs that are not finite, or the same for all examples."""
    read = tensors(exam.inputs)
    for tensor in read:
        if tensor.is_meta:
            raise MissingValuesError("Expected a batch with values, got a tensor on torch's device meta.")
        bad = ~(tensor.detach() if tensor.layout == torch.strided else _stored(tensor)).isfinite()
        if bad.any():
            example = int(bad.flatten(1).any(1).nonzero()[0]) if tensor.dim() > 1 else 0
            yield finding("not_finite_inputs", (), {"values": int(bad.sum()), "example": example})
            return "not finite"
    usual = [tensor for tensor in read if tensor.layout == torch.strided and not tensor.is_complex()]
    batched = [tensor for tensor in usual if tensor.dim() and tensor.numel()]
    if batched and all(len(tensor) > 1 and bool((tensor == tensor[:1]).all()) for tensor in batched):
        first = batched[0]
        evidence = {"examples": len(first), "smallest": float(first.min()), "largest": float(first.max())}
        yield finding("constant_inputs", (), evidence)
        return "all examples are the same"
    return ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in read)


def _stored(tensor: Tensor) -> Tensor:
    """Return the stored values of a sparse tensor."""
    coo = tensor.detach() if tensor.layout == torch.sparse_coo else tensor.detach().to_dense().to_sparse()
    return coo.coalesce().values()


@check("targets", blocks=True)
def check_targets(exam: Examination) -> Steps:
    """Check whether the loss takes the targets."""
    error, targets = exam.passed.error, exam.targets
    if error is not None and targets is None:
        raise ValueError(
            "Gradients of a loss are measured, so targets are needed: pass (inputs, targets)."
        ) from error
    if error is not None and not isinstance(targets, Tensor):
        raise InputsError(f"The loss does not take targets that are a {type(targets).__name__}: {error}") from error
    if error is not None:
        yield _refused(targets, exam.passed.logits, error)
        return "the loss refuses them"
    return "the loss takes them"


@check("values of the targets")
def check_values(exam: Examination) -> Steps:
    """Look for targets that the loss spreads over all pairs, or that are all the same."""
    pairs = _spread_over_pairs(exam.passed.flow)
    if pairs is not None:
        call, outputs, targets = pairs
        evidence = {"targets": str(targets), "outputs": str(outputs), "operation": call.name}
        evidence["line"] = str(call.line or "the loss")
        yield finding("broadcast_targets", (), evidence)
    targets = exam.targets
    if not isinstance(targets, Tensor):
        if pairs is None:
            raise NotAsked("they are not tensors")
        return "the loss compares all pairs"
    values = targets[targets != IGNORED]
    is_constant = values.numel() >= SEVERAL and bool((values == values.flatten()[0]).all())
    # A loss of the outputs alone, as of triplets, gets targets of any kind.
    in_loss = [call for call in exam.passed.flow.calls if call.path == LOSS]
    are_read = any(source.kind == "targets" for call in in_loss for source in call.sources())
    if is_constant and are_read and pairs is None and targets.dim() and not values.is_complex():
        same = {"label": float(values.flatten()[0]), "labels": values.numel()}
        yield replace(finding("one_label", (), same), advice=_is_one_on_purpose(exam, float(same["label"])))
    return f"{tuple(targets.shape)}, {len(set(values.flatten().tolist()))} of them different"


def _is_one_on_purpose(exam: Examination, label: float) -> bool:
    """Whether targets of one value may be meant: real ones for a generator, or residuals that are to be zero.

    A generator is trained through a network that is frozen, or whose parameters the optimizer does not hold.
    """
    logits, targets = exam.passed.logits, exam.targets
    if not targets.is_floating_point() and logits.dim() > 1 and logits.shape[1] > 1:
        return False
    known = {*map(id, held(exam.optimizer))}
    trained = [p.requires_grad and (not known or id(p) in known) for p in exam.model.parameters()]
    made = exam.passed.flow.of(logits)
    # A loss with layers of its own, such as a critic, judges what the network makes.
    if any(call.path == LOSS and KINDS.get(call.name) == "weight" for call in exam.passed.flow.calls):
        return True
    # A residual is computed from outputs of layers, and is none of them.
    is_residual = label == 0.0 and made is not None and made.origin().name not in KINDS
    return not all(trained) or is_residual


def _spread_over_pairs(flow: Flow) -> tuple[Call, Shape, Shape] | None:
    """Return the first call of the loss that compares every output with every target, and the shapes of both.

    Outputs and targets must have the shapes that the network and the batch gave them, with different numbers of axes.
    If the loss itself added an axis, it intends to compare all pairs.
    """
    own: dict[Call, str] = {}

    def side(read: Call | None) -> str | None:
        if read is None or read.path != LOSS:
            return None if read is None else "targets" if read.kind == "targets" else "outputs" * read.is_trained
        return own.get(read)

    for call in flow.calls:
        if call.path != LOSS:
            continue
        sides = [(name, shape) for read, shape in call.reads if (name := side(read))]
        outputs = next((shape for name, shape in sides if name == "outputs"), None)
        targets = next((shape for name, shape in sides if name == "targets"), None)
        if outputs and targets and call.name not in _OF_CLASSES and _are_pairs(outputs, targets):
            return call, outputs, targets
        kept = [name for name, shape in sides if shape == call.shape]
        if kept:
            own[call] = "outputs" if "outputs" in kept else "targets"
    return None


def _are_pairs(a: Shape, b: Shape) -> bool:
    """Whether two shapes with different numbers of axes broadcast to a shape with more elements than either."""
    if len(a) == len(b):
        return False
    try:
        count = prod(torch.broadcast_shapes(a, b))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return count > max(prod(a), prod(b))


def _refused(targets: Tensor, logits: Tensor, error: Exception) -> Finding:
    """Find out why the loss does not take the targets, from their type, shape and range."""
    evidence: dict[str, float | int | str] = {
        "targets": f"{tuple(targets.shape)} of {str(targets.dtype).removeprefix('torch.')}",
        "outputs": str(tuple(logits.shape)),
        "message": str(error).splitlines()[0],
    }
    if isinstance(error, (TypeError, KeyError, AttributeError)) or "unpack" in str(error):
        # The loss expects other outputs or targets; shapes are not the cause.
        return finding("loss_failed", (), evidence)
    classes = logits.shape[1] if logits.dim() > 1 else 1
    is_index = targets.dtype in (torch.int64, torch.uint8)
    if targets.shape[:1] != logits.shape[:1] or (targets.dim() == logits.dim() and targets.shape[1:] == (1,)):
        return finding("label_shape", (), evidence)
    if logits.dim() > 2 and targets.shape == logits.shape[:-1] != (len(logits), *logits.shape[2:]):
        # torch's message may name a label that exceeds the length of a text.
        evidence["message"] = "the classes are on the last axis of the outputs; the loss expects them on the second"
        return finding("label_shape", (), evidence)
    if not is_index and targets.dim() == logits.dim() - 1:
        return finding("label_type", (), evidence)
    kept = targets[targets != IGNORED]
    if is_index and kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        evidence |= {"smallest": int(kept.min()), "largest": int(kept.max()), "classes": classes}
        return finding("labels_out_of_range", (), evidence)
    return finding("loss_failed", (), evidence)
