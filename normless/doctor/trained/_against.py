"""A trained network beside a reference: what each layer computes differently on the same batch."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from math import inf, isfinite, nan
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normless._internal.calling import in_place_of_forward
from normless.doctor._findings import NotAsked, Steps, check, finding
from normless.doctor.facts._tracer import REFUSED, tensors
from normless.doctor.trained._limits import IDLE
from normless.doctor.trained._loss import BatchLoss
from normless.doctor.trained._subject import TrainedSubject, apart
from normless.errors import NormlessError
from normless.probes.hooks._observe import compute_output
from normless.state import running


class _Run(NamedTuple):
    """The first call of a module: its arguments and what it returned."""

    inputs: tuple[Any, ...]
    named: dict[str, Any]
    output: Any


@check("reference")
def check_reference(subject: TrainedSubject) -> Steps:
    """Compare each layer with that of a reference, on what the reference's layer reads; and what both return.

    A layer that computes the same on the same inputs is not at fault, however much its inputs differ.
    """
    if subject.against is None:
        raise NotAsked("give a network that is right as against=")
    inputs, targets = subject.batches[0]
    with in_place_of_forward(subject.against, subject.call):
        right, output = _runs(subject.against, inputs)
    ran, own_output = _runs(subject.model, inputs)
    losses = [BatchLoss(subject.loss, result, inputs, targets).value() for result in (output, own_output)]
    own: dict[str, float] = {}
    with running(subject.model, False):
        for path in (path for path in right if path in ran):
            known = right[path]
            try:
                own[path] = _apart(known.output, subject.model.get_submodule(path)(*known.inputs, **known.named))
            except (*REFUSED, NormlessError):
                own[path] = nan
            kind = subject.rows.get(path, {}).get("kind", "module")
            subject.note(path, kind, own_apart=own[path], apart=_apart(known.output, ran[path].output))
    change = _apart(output, own_output)
    sizes = {path: size if isfinite(size) else inf for path, size in own.items() if not size < IDLE}
    differ = sorted(sizes, key=lambda path: -sizes[path])
    first = [path for path in right if path in ran and not _apart(right[path].output, ran[path].output) < IDLE][:1]
    evidence = {"change": change, "limit": IDLE, "layers": len(differ), "of": len(own)}
    evidence |= {"loss": losses[1], "reference_loss": losses[0]} if all(map(isfinite, losses)) else {}
    is_same = change < IDLE
    if differ:
        evidence |= {"own_change": own[differ[0]]}
        yield finding("differs_from_reference", differ, evidence, advice=is_same)
    elif not is_same:
        # Layers that agree read something else: the code between them differs.
        yield finding("forward_differs_from_reference", first, evidence)
    return f"{len(own)} layers beside those of the reference; the output differs by {change:.2g} of its deviation"


def _runs(model: nn.Module, inputs: Any) -> tuple[dict[str, _Run], Any]:
    """Return the first calls of modules that compute something themselves, by path, and the output."""
    found: dict[str, _Run] = {}

    def see(path: str, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        # In-place code after the call may write to any of them.
        kept = tree_map(_copied, (given, named, output))
        found.setdefault(path, _Run(*kept))

    with running(model, False), ExitStack() as stack:
        for path, module in model.named_modules():
            if path and (not any(module.children()) or module._parameters):
                hook = module.register_forward_hook(partial(see, path), with_kwargs=True)
                stack.callback(hook.remove)
        return found, compute_output(model, inputs)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _apart(right: Any, other: Any) -> float:
    """Return the change of the tensors in what a module or network returned."""
    pairs = [
        [tensor.double() for tensor in tensors(values) if tensor.is_floating_point()] for values in (right, other)
    ]
    return apart(*pairs)
