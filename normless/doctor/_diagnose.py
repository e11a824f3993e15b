"""`nl.diagnose`: find what keeps a network from training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from normless._internal.arguments import require_network
from normless._internal.calling import Call, with_call
from normless._internal.copying import is_sharded
from normless.doctor import rules
from normless.doctor._findings import STAGES, Check, ExperimentBudget, Finding, FindingEvidence, finding, rules_of
from normless.doctor._report import Diagnosis
from normless.doctor.experiments import (
    _batches as batches,
    _investigation as investigation,
    _rates as rates,
    _settings as settings,
)
from normless.doctor.experiments._cures import with_tried_cures
from normless.doctor.facts._batches import are_several, read_batches
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._held import one_optimizer, trained_parameters
from normless.doctor.facts._passed import BackwardError, PassError
from normless.doctor.facts._tables import tables_of
from normless.doctor.facts._tracer import tensors
from normless.doctor.rules import _construction as construction, _data as data
from normless.doctor.watch import _own_step as own_step
from normless.errors import InputsError, NormlessError
from normless.exclusive import exclusive
from normless.probes import Loss
from normless.probes._measure import split_batch
from normless.probes.hooks._losses import own_loss
from normless.residual import ResidualMap, residual_map as find_residual_map
from normless.state import untouched

# Modules beside the rules whose checks are registered as they are imported.
HOUSES = (rules, batches, investigation, rates, settings, own_step)
# The name of what was not checked because something else forbids it.
REST = "everything else"
# Diagnoses of networks with so many parameters have a budget if none is given.
LARGE = 5 * 10**6


@exclusive
@with_call
def diagnose(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss = F.cross_entropy,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    residual_map: ResidualMap | None = None,
    trial_steps: int = 20,
    investigate: bool | None = None,
    step: own_step.OwnStep | None = None,
    budget: float | None = None,
    call: Call | None = None,
) -> Diagnosis:
    """Find what keeps a network from training, on one batch in training mode, or on several.

    The network and the optimizer are not changed; trial steps are made on copies. A scheme is offered as a cure only
    if a converted copy lowers the loss in trial steps, with the optimizer's class or SGD, at one of several rates.

    A healthy network costs about 10 training steps and 25 to 40 with an optimizer. A rate that fails costs 5 more
    steps. A cure that is tried costs one conversion and 40 to 100 steps.

    Args:
        batch: (inputs, targets) of the size used in training; inputs are one tensor, a tuple or a dictionary of
            arguments, targets are whatever the loss takes. Inputs alone suffice for a network that returns its loss.
            Of several, a list or a DataLoader, the first is examined; a copy takes 100 steps on others, and held ones
            are compared with the best constant outputs. At most 64 are read.
        loss: called as `loss(outputs, targets)` with what the network returns (a tensor, a tuple, a dictionary, an
            object), or with the logits in it if the loss does not take that; losses of torch get the logits. A loss
            that does not take the targets, or has a second argument named `batch`, is called as
            `loss(outputs, batch)` with the whole batch.
        optimizer: the optimizer of the training, or several in a list; if None, decay and rate are not checked.
        residual_map: the network's map; computed if None. A network that cannot be mapped is examined by its layers.
        trial_steps: the number of trial steps of the optimizer and of each cure. If 0, nothing is tried, and all
            schemes that fit are proposed.
        investigate: whether to make experiments if the batch cannot be fitted, or only slowly, and no cause is known:
            another optimizer or loss, other inputs and targets, layers initialized anew, and the forward pass without
            one of its operations, such as dropout, norms and masks. Each takes 60 steps on a copy. If None, they are
            made for small networks that cannot be fitted.
        step: the training step, called as `step(model, batch, optimizer)` with copies, 40 times under the rules of
            `nl.watch`: the order of calls, modes, cleared and scaled gradients, states and rates.
        budget: the number of training steps that may be made on copies; what it leaves out is listed, and an
            experiment that has begun is finished. By default 80, or 40 without an optimizer, for networks of 5·10⁶
            parameters or more, and no limit for smaller ones.
        call: as in `residual_map`.

    Raises:
        ValueError: the batch is not a pair, or has no targets and the network returns no loss.
        InputsError: the network does not run on the inputs, the loss fails on targets that are not tensors, the
            optimizer is a class, or the step raises an error.
    """
    optimizer = one_optimizer(optimizer)
    require_network(model)
    given, loss = _batches_and_loss(model, batch, loss)
    steps = trial_steps if trained_parameters(model) else 0
    limit = ExperimentBudget(_steps_allowed(model, optimizer) if budget is None else budget)
    exam = Examination(model, *given[0], loss, optimizer, residual_map, budget=limit, steps=steps, batches=given)
    exam.investigate, exam.step = investigate, step
    with untouched(model, given, values=False):
        return _examined(exam)


def _examined(exam: Examination) -> Diagnosis:
    """Run the checks, and try the cures of what they found if a pass can be judged."""
    checks = _run(exam)
    if checks[-1].name == REST:
        return Diagnosis(checks, (), len(exam.batches), tables_of(exam))
    return Diagnosis(_with_cures(exam, checks), exam.passed.missed, len(exam.batches), tables_of(exam))


def _batches_and_loss(model: nn.Module, batch: Any, loss: Loss) -> tuple[list[tuple[Any, Any]], Loss]:
    """Return the batches, the one to examine first, and the loss, for batches without targets the network's own."""
    several = read_batches(model, batch, batches.MOST, batches.LEAST, batches.VALUES) if are_several(batch) else []
    given = several or [split_batch(batch)]
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise InputsError(
            f"Expected a network with values, got lazy parameters ({lazy[0]}): call it on a batch first."
        )
    return given, own_loss if given[0][1] is None and loss is F.cross_entropy else loss


def _steps_allowed(model: nn.Module, optimizer: Optimizer | None) -> float | None:
    size = sum(parameter.numel() for parameter in model.parameters())
    return None if size < LARGE else 40 if optimizer is None else 80


def _with_cures(exam: Examination, checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the checks with the cures of their findings tried, and the line of each finding."""
    cured = iter(with_tried_cures(exam, [found for check in checks for found in check.findings], exam.steps))
    return tuple(
        replace(check, findings=tuple(_located(exam, next(cured)) for _ in check.findings)) for check in checks
    )


def _located(exam: Examination, found: Finding) -> Finding:
    """Return a finding with the line of the person's code that calls the first of its modules."""
    place = found.where[0] if found.where else ""
    for path in (place, place.rpartition(".")[0]):
        calls = (call for call in exam.passed.flow.calls if path and f"{call.path}.".startswith(f"{path}."))
        line = next((call.line for call in calls if call.line is not None), None)
        if line is not None:
            return replace(found, line=str(line))
    return found


def _run(exam: Examination) -> tuple[Check, ...]:
    """Run the checks until one blocks the others; each knows what those before it found."""
    checks: list[Check] = []
    for check in _checks(exam):
        checks.append(check)
        exam.found += check.findings
        if check.asked:
            (exam.faulty if check.verdict == "wrong" else exam.fine).add(check.name)
        if check.blocks:
            checks.append(Check(REST, f"repair the {check.name} first: no pass can be judged before", asked=False))
            break
    return tuple(checks)


def _checks(exam: Examination) -> Iterator[Check]:
    """Make the checks of the batch, and then those of all stages."""
    if is_sharded(exam.model):
        yield construction.check_optimizer(exam)
        why = "the weights are sharded, and a pass of one process waits for the others: diagnose before fully_shard"
        yield Check(REST, why, asked=False)
        return
    yield data.check_inputs(exam)
    try:
        exam.map = exam.map or find_residual_map(exam.model, example_inputs=exam.inputs)
    except NormlessError as error:
        exam.unmapped = str(error)
    try:
        yield data.check_targets(exam)
    except BackwardError as error:
        yield _failed_backward(error)
        return
    except RuntimeError as error:
        integers = [tensor for tensor in tensors(exam.inputs) if not tensor.is_floating_point()]
        # After the pass, only the loss raises errors.
        said = str(error.__cause__ or error)
        if "more than 1 value per channel" in said and isinstance(error, PassError):
            evidence: FindingEvidence = {"norms": 1, "message": said.splitlines()[0]}
            refused = finding("refused_single_element", (error.place,), evidence)
            yield Check("norms", "one of them reads a single value", (refused,), blocks=True)
            return
        if "passed" in vars(exam) or not integers or "type" not in said:
            raise
        evidence = {"type": str(integers[0].dtype).removeprefix("torch."), "message": said.splitlines()[0]}
        yield Check("types", "the network takes floats", (finding("integer_inputs", (), evidence),), blocks=True)
        return
    has_gradients = any(gradient is not None for gradient in exam.passed.gradients.values())
    for stage in STAGES:
        if stage == "map" and (exam.map is None or not has_gradients):
            why = f"the network has no residual map: {exam.unmapped}" if exam.map is None else "there is no gradient"
            yield Check("residual blocks", why, asked=False)
            continue
        for rule in rules_of(stage):
            yield rule(exam)


def _failed_backward(error: BackwardError) -> Check:
    call, evidence = error.call, {"message": error.message}
    words = "" if call is None else f", after {call.name} at {call.place}{call.words['at']}"
    failed = finding("backward_failed", () if call is None else (call.place,), evidence, words=words)
    return Check("backward pass", "it raises an error", (failed,), blocks=True)
