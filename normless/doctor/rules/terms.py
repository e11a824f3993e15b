"""A check of losses that are sums: terms that get no gradient, and terms that outweigh others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.reach import reachable
from normless._internal.state import quiet
from normless.doctor.experiments.engine import Experiment, tried
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, Call, Seen, Tracer
from normless.doctor.facts.held import trained_parameters
from normless.doctor.findings import Evidence, Finding, NotAsked, Steps, check, finding
from normless.probes import loss_of, preserve_state

_SUMS = {"add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__sub__", "__rsub__", "__isub__", "sub_"}
# A term may outweigh another if its gradient is this many times larger.
FACTOR = 100.0
# The exponential of a loss outweighs the step sizes that suit the loss from this value.
LARGE = 50.0
# Trial steps; the share of its value by which the smaller term falls alone, and of this by which it falls beside.
STEPS, ALONE, BESIDE = 60, 0.3, 0.3


@dataclass
class Term:
    """A term of a loss: its position among the calls, its call and value, and the gradient norms of parameters."""

    index: int
    call: Call
    value: float
    gradients: list[float]


class _Scalars(Tracer):
    """Keep the numbers that a loss calculates."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Call, Tensor] = {}

    def on_call(self, seen: Seen) -> None:
        """Keep a result of one number."""
        if seen.in_loss and seen.made[0].numel() == 1:
            self.made[seen.call] = seen.made[0]


@check("terms of the loss")
def check_terms(exam: Examination) -> Steps:
    """Look for terms of the loss without gradient, and for data terms that another term keeps from falling."""
    if not isfinite(exam.passed.loss) or not exam.trials or exam.optimizer is None:
        raise NotAsked("no steps were made")
    terms = terms_of(exam, exam.model)
    if terms and terms[0].call.name == "exp" and terms[0].value > LARGE:
        # Its gradient is that of its argument times its value.
        yield finding("exponential_loss", (), {"loss": terms[0].value, "line": str(terms[0].call.line or "")})
    if len(terms) < 2:
        return "it is no sum of numbers"
    yield from _constant(terms)
    norms = [sqrt(sum(norm**2 for norm in term.gradients)) for term in terms]
    ranked = sorted(terms, key=lambda term: -max(term.gradients, default=0.0))
    for small in ranked[1:]:
        if found := _outweighed(exam, ranked[0], small):
            yield found
            break
    return f"{len(terms)}, with gradients of norms {', '.join(f'{norm:.3g}' for norm in norms)}"


def _constant(terms: list[Term]) -> Iterator[Finding]:
    """Report terms that depend on the network and have no history."""
    for term in terms:
        if term.call.is_trained and not term.gradients:
            line = str(term.call.line or "the loss")
            evidence: Evidence = {"value": term.value, "line": line, "operation": term.call.name}
            yield finding("constant_term", (), evidence)
            return


def _outweighed(exam: Examination, large: Term, small: Term) -> Finding | None:
    """Return a finding if a term that reads the data falls in trial steps alone, but not beside a larger one."""
    assert exam.optimizer is not None
    shared = [(a, b) for a, b in zip(large.gradients, small.gradients, strict=False) if a > 0 and b > 0]
    if not shared or not _reads_data(small.call) or small.value <= 0:
        return None
    ratio = sqrt(sum(a**2 for a, _ in shared) / sum(b**2 for _, b in shared))
    if ratio < FACTOR:
        return None

    def alone(outputs: Any, batch: Any) -> Tensor:
        scalars = _Scalars()
        with scalars, scalars.of_loss():
            loss_of(exam.loss, outputs, *batch)
        return [*scalars.made.values()][small.index]

    model, _ = tried(exam, exam.optimizer, STEPS)
    after = next((term.value for term in terms_of(exam, model) if term.index == small.index), small.value)
    _, trial = tried(exam, exam.optimizer, STEPS, Experiment(batch={"loss": alone}))
    if not trial.progress > ALONE or small.value - after > BESIDE * (small.value - trial.end):
        return None
    evidence: dict[str, Any] = {"ratio": ratio, "large": large.value, "small": small.value, "after": after}
    evidence |= {"alone": trial.end, "steps": STEPS, "share": 1 / ratio}
    of_large, of_small = _words(large.call), _words(small.call)
    return finding("unbalanced_terms", (), evidence, of_large=of_large, of_small=of_small)


def _words(call: Call) -> str:
    return f"{call.name.strip('_')} ({call.line})" if call.line else call.name.strip("_")


def _reads_data(call: Call) -> bool:
    """Whether a call depends on the batch other than through the network."""
    calls = reachable([call], lambda call: call.sources() if call.path == LOSS else ())
    return any(call.path != LOSS and call.kind in ("targets", "inputs") for call in calls)


def terms_of(exam: Examination, model: nn.Module) -> list[Term]:
    """Return the numbers that a network's loss adds up, with the norms of their gradients."""
    scalars = _Scalars()
    with preserve_state(model, training=True), torch.enable_grad(), quiet():
        value = scalars.run(model, exam.inputs, exam.targets, exam.loss)
        made, root = scalars.made, scalars.flow.of(value)
        root = None if root is None else root.origin()
        calls = [*_added(root, made)] if root in made else []
        order = {call: index for index, call in enumerate(made)}
        parameters = [*trained_parameters(model).values()]
        return [
            Term(order[call], call, float(made[call].detach()), _norms(value, call, calls, made, parameters))
            for call in dict.fromkeys(calls)
        ]


def _added(call: Call, made: dict[Call, Tensor]) -> Iterator[Call]:
    """Return the calls that made the numbers of a sum; a sum times a number is the sum of its terms."""
    sources = [source for source in call.sources() if source in made]
    if call.name in _SUMS and sources:
        for source in sources:
            yield from _added(source, made)
        return
    if (
        call.name in ("reshape", "__mul__", "__truediv__", "__rmul__", "mul", "div", "mean", "sum")
        and len(sources) == 1
    ):
        inner = [*_added(sources[0], made)] if len(call.reads) == 1 else []
        if len(inner) > 1:
            yield from inner
            return
    yield call


def _norms(
    value: Tensor, call: Call, calls: list[Call], made: dict[Call, Tensor], parameters: list[nn.Parameter]
) -> list[float]:
    """Return the norms of the gradients of one term of the loss; none if it has no history."""
    if made[call].grad_fn is None:
        return []
    nodes = {made[other].grad_fn for other in calls if other is not call} - {None, made[call].grad_fn}

    def without(given: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(None if gradient is None else gradient * 0 for gradient in given)

    with ExitStack() as stack:
        for node in filter(None, nodes):
            stack.enter_context(node.register_prehook(without))
        gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return [0.0 if g is None else float(g.detach().to_dense().double().norm()) for g in gradients]
