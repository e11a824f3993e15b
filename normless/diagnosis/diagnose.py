"""`nl.diagnose`: find what keeps a network from training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from normless._internal.arguments import require_network
from normless._internal.copying import is_sharded
from normless._internal.exclusive import exclusive
from normless._internal.html import html_table
from normless.diagnosis import (
    blocks,
    columns,
    construction,
    data,
    direction,
    examples,
    finite,
    information,
    invariance,
    investigation,
    layers,
    leaks,
    losses,
    modes,
    optimizer,
    outputs,
    reach,
    recurrence,
    reshapes,
    settings,
    stopped,
    targets,
    terms,
    trial,
    units,
    unread,
)
from normless.diagnosis.cures import with_tried_cures
from normless.diagnosis.examination import BackwardError, Examination, PassError
from normless.diagnosis.findings import Check, Cure, Evidence, Finding, finding
from normless.diagnosis.flow import tensors
from normless.errors import InputsError, NormlessError
from normless.probes import Loss, own_loss, split_batch
from normless.residual import ResidualMap, Unresolved
from normless.residual import residual_map as find_residual_map

# Checks of one recorded pass, and checks of the residual map.
OF_PASS = (
    *(modes.check_state, finite.check_finite, data.check_values, columns.check_scale, reach.check_reach),
    *(outputs.check_last_activation, losses.check_meaning, outputs.check_dependence, units.check_equal_units),
    *(modes.check_modes, modes.check_norms, modes.check_frozen_norms, modes.check_statistics),
    examples.check_examples,
    *(layers.check_layers, layers.check_layer_gradients, layers.check_units),
    *(layers.check_nonlinearity, layers.check_first_layer),
    *(construction.check_calls, construction.check_initial_scale),
    stopped.check_stops,
    leaks.check_leaks,
    reshapes.check_reshapes,
    unread.check_unread,
    invariance.check_invariance,
)
OF_MAP = (blocks.check_growth, blocks.check_backward, blocks.check_classes, blocks.check_branches)
# The name of what was not checked because something else forbids it.
REST = "everything else"
_WIDTH = 110


@dataclass(frozen=True)
class Diagnosis:
    """The checks of a network with their measurements and findings, and the blocks that could not be measured."""

    nothing: ClassVar[str] = "Nothing was found that keeps it from training"
    aside: ClassVar[str] = "advice (the network trains without it):"
    checks: tuple[Check, ...]
    missed: tuple[Unresolved, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings that keep the network from training, the most severe first."""
        return tuple(found for found in self._ranked() if not found.advice)

    @property
    def advice(self) -> tuple[Finding, ...]:
        """The findings that do not keep the network from training, such as which γ to decay."""
        return tuple(found for found in self._ranked() if found.advice)

    def _ranked(self) -> list[Finding]:
        return sorted((found for check in self.checks for found in check.findings), key=lambda found: -found.severity)

    @property
    def healthy(self) -> bool:
        """Whether there are no findings; advice is not counted."""
        return not self.findings

    @property
    def scheme(self) -> str | None:
        """The best scheme of the most severe finding that a scheme repairs, or None."""
        return next(iter(self.cure.schemes), None)

    @property
    def cure(self) -> Cure:
        """The cure of the most severe finding that a scheme repairs; an empty one if there is none."""
        return next((found.cure for found in self.findings if found.cure.schemes), Cure(""))

    @property
    def verdict(self) -> str:
        """One line: why the network does not train and what to try, or which checks found nothing."""
        if self.findings:
            first = self.findings[0]
            return f"{first.title} Try: {first.cure.words}."
        asked = sum(check.asked for check in self.checks)
        rest = [check.name for check in self.checks if not check.asked]
        return f"{self.nothing}: {asked} checks" + (f"; not checked: {', '.join(rest)}." if rest else ".")

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as data for JSON."""
        return {
            "healthy": self.healthy,
            "verdict": self.verdict,
            "checks": [
                {"name": check.name, "summary": check.summary, "asked": check.asked, "verdict": check.verdict}
                for check in self.checks
            ],
            "findings": [found.to_dict() for found in self.findings],
            "advice": [found.to_dict() for found in self.advice],
            "missed": [{"path": block.path, "reason": block.reason} for block in self.missed],
        }

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return f"Diagnosis({len(self.findings)} findings, {len(self.checks)} checks)"

    def _repr_html_(self) -> str:
        rows = [(found.title, found.cure.words) for found in (*self.findings, *self.advice)]
        return html_table(self.verdict, ("finding", "cure"), rows)

    def report(self, *, why: bool = True) -> str:
        """Return the verdict, the findings (with their theory if `why`), and the checks with their measurements."""
        parts = [fill(self.verdict, _WIDTH)]
        for number, found in enumerate(self.findings, 1):
            parts += ["", *_lines(f"{number}. ", found, why)]
        if self.advice:
            parts += ["", self.aside]
            parts += [line for found in self.advice for line in _lines("- ", found, why)]
        for title, asked in (("checked:", True), ("not checked:", False)):
            checks = [check for check in self.checks if check.asked is asked]
            parts += ["", title, *(f"  {check.name}: {check.summary}" for check in checks)] if checks else []
        if self.missed:
            parts += ["", f"not measured: {', '.join(map(str, self.missed[:3]))}{', …' * (len(self.missed) > 3)}"]
        return "\n".join(parts)


def _lines(mark: str, found: Finding, why: bool) -> Iterator[str]:
    """Format a finding as wrapped lines."""
    evidence = (
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in found.evidence.items()
    )
    schemes = f" [{', '.join(found.cure.schemes)}]" if found.cure.schemes else ""
    lines = [mark + found.title, f"   evidence: {', '.join(evidence)}"] if found.evidence else [mark + found.title]
    lines += [f"   theory: {found.theory}"] if why else []
    for line in (*lines, f"   cure: {found.cure.words}{schemes}"):
        yield fill(line, _WIDTH, subsequent_indent="   ")


@exclusive
def diagnose(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss = F.cross_entropy,
    optimizer: Optimizer | None = None,
    residual_map: ResidualMap | None = None,
    trial_steps: int = 20,
    investigate: bool | None = None,
) -> Diagnosis:
    """Find what keeps a network from training, on one batch in training mode.

    The network and the optimizer are not changed; trial steps are made on copies. A scheme is offered as a cure only
    if a converted copy lowers the loss in trial steps, with the optimizer's class or SGD, at one of several rates.

    A healthy network costs about 10 training steps and 25 to 40 with an optimizer. A
    rate that fails costs 5 more steps. A cure that is tried costs one conversion and 40 to 100 steps.

    Args:
        batch: (inputs, targets) of the size used in training; inputs are one tensor, a tuple or a dictionary of
            arguments, targets are whatever the loss takes. Inputs alone suffice for a network that returns its loss.
        loss: called as `loss(outputs, targets)` with what the network returns (a tensor, a tuple, a dictionary, an
            object), or with the logits in it if the loss does not take that; losses of torch get the logits. A loss
            that does not take the targets, or has a second argument named `batch`, is called as
            `loss(outputs, batch)` with the whole batch.
        optimizer: the optimizer of the training; if None, weight decay and learning rate are not checked.
        residual_map: the network's map; computed if None. A network that cannot be mapped is examined by its layers.
        trial_steps: the number of trial steps of the optimizer and of each cure. If 0, nothing is tried, and all
            schemes that fit are proposed.
        investigate: whether to make experiments if the batch cannot be fitted, or only slowly, and no cause is known:
            another optimizer or loss, other inputs and targets, layers initialized anew, and the forward pass without
            one of its operations, such as dropout, norms and masks. Each takes 60 steps on a copy. If None, they are
            made for small networks that cannot be fitted.

    Raises:
        ValueError: the batch is not a pair, or has no targets and the network returns no loss.
        InputsError: the network does not run on the inputs, or the loss fails on targets that are not tensors.
    """
    inputs, labels = split_batch(batch)
    require_network(model)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise InputsError(
            f"Expected a network with values, got lazy parameters ({lazy[0]}): call it on a batch first."
        )
    if labels is None and loss is F.cross_entropy:
        loss = own_loss
    if not any(parameter.requires_grad for parameter in model.parameters()):
        trial_steps = 0
    examination = Examination(model, inputs, labels, loss, optimizer, residual_map)
    checks = _run(examination, trial_steps, investigate)
    if checks[-1].name == REST:
        return Diagnosis(checks, ())
    cured = iter(with_tried_cures(examination, [found for check in checks for found in check.findings], trial_steps))
    checks = tuple(replace(check, findings=tuple(next(cured) for _ in check.findings)) for check in checks)
    return Diagnosis(checks, examination.passed.missed)


def _run(exam: Examination, steps: int, investigate: bool | None) -> tuple[Check, ...]:
    """Run the checks until one blocks the others; each knows what those before it found."""
    checks: list[Check] = []
    for check in _checks(exam, steps, investigate):
        checks.append(check)
        exam.found += check.findings
        if check.asked:
            (exam.faulty if check.verdict == "wrong" else exam.fine).add(check.name)
        if check.blocks:
            checks.append(Check(REST, f"repair the {check.name} first: no pass can be judged before", asked=False))
            break
    return tuple(checks)


def _checks(exam: Examination, steps: int, investigate: bool | None) -> Iterator[Check]:
    """Run all checks, ordered by what they need: the batch, a pass, a map, steps."""
    if is_sharded(exam.model):
        yield optimizer.check_optimizer(exam)
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
            evidence: Evidence = {"norms": 1, "message": said.splitlines()[0]}
            refused = finding("refused_single_element", 1.0, (error.place,), evidence)
            yield Check("norms", "one of them reads a single value", (refused,), blocks=True)
            return
        if "passed" in vars(exam) or not integers or "type" not in said:
            raise
        evidence = {"type": str(integers[0].dtype).removeprefix("torch."), "message": said.splitlines()[0]}
        yield Check("types", "the network takes floats", (finding("integer_inputs", 1.0, (), evidence),), blocks=True)
        return
    for check in OF_PASS:
        yield check(exam)
    if exam.map is None:
        yield Check("residual blocks", f"the network has no residual map: {exam.unmapped}", asked=False)
    elif any(gradient is not None for gradient in exam.passed.gradients.values()):
        for on_map in OF_MAP:
            yield on_map(exam)
    else:
        yield Check("residual blocks", "there is no gradient to measure", asked=False)
    yield optimizer.check_optimizer(exam)
    yield direction.check_direction(exam)
    yield trial.check_trial(exam, steps)
    yield columns.check_target_scale(exam)
    yield terms.check_terms(exam)
    yield targets.check_relation(exam)
    yield settings.check_settings(exam, steps)
    yield information.check_information(exam)
    yield recurrence.check_time(exam)
    yield investigation.check_experiments(exam, steps, investigate)


def _failed_backward(error: BackwardError) -> Check:
    evidence: Evidence = {"message": error.message}
    where: tuple[str, ...] = ()
    words = ""
    if (call := error.call) is not None:
        where, words = (call.place,), f", after {call.name} at {call.place}" + (f", {call.line}" if call.line else "")
    failed = finding("backward_failed", 1.0, where, evidence, words=words)
    return Check("backward pass", "it raises an error", (failed,), blocks=True)
