"""A check of losses that are sums: terms that get no gradient, and terms that outweigh others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.reach import reachable
from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.experiments._engine import MANY, Experiment, tried
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import TensorCall
from normless.doctor.facts._held import trained_parameters
from normless.doctor.facts._tape import norm_of
from normless.doctor.facts._tracer import Seen, Tracer
from normless.doctor.rules._trials import trial_with
from normless.probes.hooks._losses import loss_of

# A term may outweigh another if its gradient is this many times larger.
FACTOR = 100.0
# The exponential of a loss outweighs the step sizes that suit the loss from this value.
LARGE = 50.0
# Of trial steps: the share of its value by which the smaller term falls alone, and of this by which it falls beside.
ALONE, BESIDE = 0.3, 0.3


@dataclass
class LossTerm:
    """A term of a loss: its position among the numbers, its call and value, and the gradient norms of parameters."""

    index: int
    call: TensorCall
    value: float
    gradients: list[float]


class _Scalars(Tracer):
    """Keeps the numbers that a loss calculates."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[TensorCall, Tensor] = {}

    def on_call(self, seen: Seen) -> None:
        """Keep a result of one number."""
        if seen.in_loss and seen.made[0].numel() == 1:
            self.made[seen.call] = seen.made[0]


@check("terms of the loss", needs="steps")
def check_terms(exam: Examination) -> Steps:
    """Look for terms of the loss without gradient, and for data terms that another term keeps from falling."""
    if not isfinite(exam.passed.loss) or not exam.trials or exam.optimizer is None:
        raise NotAsked("no steps were made")
    terms = terms_of(exam, exam.model)
    if terms and terms[0].call.name == "exp" and terms[0].value > LARGE:
        # Its gradient is that of its argument times its value.
        yield finding("exponential_loss", (), {"loss": terms[0].value, "line": terms[0].call.words["line"]})
    if len(terms) < 2:
        return "it is no sum of numbers"
    for term in terms:
        if term.call.is_trained and not term.gradients:
            known: FindingEvidence = {
                "value": term.value,
                "line": term.call.words["line"],
                "operation": term.call.name,
            }
            yield finding("constant_term", (), known)
            break
    ranked = sorted(terms, key=lambda term: -max(term.gradients, default=0.0))
    if found := next(filter(None, (_outweighed(exam, ranked[0], term) for term in ranked[1:])), None):
        yield found
    norms = (f"{hypot(*term.gradients):.3g}" for term in terms)
    return f"{len(terms)}, with gradients of norms {', '.join(norms)}"


def _outweighed(exam: Examination, large: LossTerm, small: LossTerm) -> Finding | None:
    """Return a finding if a term that reads the data falls in trial steps alone, but not beside a larger one."""
    assert exam.optimizer is not None
    shared = [(a, b) for a, b in zip(large.gradients, small.gradients, strict=False) if a > 0 and b > 0]
    if not shared or not _reads_data(small.call) or small.value <= 0:
        return None
    ratio = hypot(*(a for a, _ in shared)) / hypot(*(b for _, b in shared))
    if ratio < FACTOR:
        return None

    def alone(outputs: Any, batch: Any) -> Tensor:
        scalars = _Scalars()
        with scalars, scalars.of_loss():
            loss_of(exam.loss, outputs, *batch)
        return [*scalars.made.values()][small.index]

    model, _ = tried(exam, exam.optimizer, MANY)
    after = next((term.value for term in terms_of(exam, model) if term.index == small.index), small.value)
    trial = trial_with(exam, Experiment(batch={"loss": alone}))
    if not trial.progress > ALONE or small.value - after > BESIDE * (small.value - trial.end):
        return None
    evidence: FindingEvidence = {"ratio": ratio, "large": large.value, "small": small.value, "after": after}
    evidence = {**evidence, "alone": trial.end, "steps": MANY, "share": 1 / ratio}
    return finding("unbalanced_terms", (), evidence, of_large=_words(large.call), of_small=_words(small.call))


def _words(call: TensorCall) -> str:
    return f"{call.name.strip('_')} ({call.line})" if call.line else call.name.strip("_")


def _reads_data(call: TensorCall) -> bool:
    """Whether a call depends on the batch other than through the network."""
    calls = reachable([call], lambda call: call.sources() if call.in_loss else ())
    return any(not call.in_loss and call.kind in ("targets", "inputs") for call in calls)


def terms_of(exam: Examination, model: nn.Module) -> list[LossTerm]:
    """Return the numbers that a network's loss adds up, with the norms of their gradients."""
    scalars = _Scalars()
    with exam.repeated(scalars, model=model) as value:
        made, root = scalars.made, scalars.flow.maker(value).origin()
        calls = [*_added(root, made)] if root in made else []
        order = {call: index for index, call in enumerate(made)}
        parameters = [*trained_parameters(model).values()]
        return [
            LossTerm(order[call], call, float(made[call].detach()), _norms(value, made[call], parameters))
            for call in dict.fromkeys(calls)
        ]


def _added(call: TensorCall, made: dict[TensorCall, Tensor]) -> Iterator[TensorCall]:
    """Return the calls that made the numbers of a sum; a sum times a number is the sum of its terms."""
    sources = [source for source in call.sources() if source in made]
    if call.plain in ("add", "sub", "rsub") and sources:
        for source in sources:
            yield from _added(source, made)
        return
    if call.plain in ("reshape", "mul", "div", "mean", "sum") and len(sources) == len(call.reads) == 1:
        inner = [*_added(sources[0], made)]
        if len(inner) > 1:
            yield from inner
            return
    yield call


def _norms(value: Tensor, term: Tensor, parameters: list[nn.Parameter]) -> list[float]:
    """Return the norms of the gradients of one term of the loss; none if it has no history."""
    if term.grad_fn is None:
        return []
    factor = torch.autograd.grad(value, term, retain_graph=True)[0].abs()
    gradients = torch.autograd.grad(factor * term, parameters, retain_graph=True, allow_unused=True)
    return [0.0 if g is None else norm_of(g.to_dense()) for g in gradients]
