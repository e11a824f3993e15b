"""Checks of the reach of the gradient: parameters that are frozen, unregistered, or cut off from the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn
from torch.utils._pytree import tree_leaves

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import KINDS, PRODUCTS, TensorCall
from normless.doctor.facts._held import held
from normless.doctor.facts._ranges import range_of
from normless.doctor.facts._tape import LayerEvent
from normless.doctor.facts._tracer import BackwardTracer, Gradients, Seen, parameters_behind, tensors

# A line that detaches its own results this many times in a pass cuts the gradient at every step of a recurrence.
STEPS = 3
# Calls that return indices or truth values.
CHOICES = {
    "argmax", "argmin", "argsort", "multinomial", "searchsorted", "bucketize", "nonzero", "long", "int", "bool",
    "gt", "ge", "lt", "le", "eq",
}  # fmt: skip
# A network with more than this share of its parameters frozen is adapted, not trained.
MOST = 0.5
# The gradient of a product is zero if the other factor is: weights, masks and multipliers, which other checks judge.
_FACTORS = {*PRODUCTS, "mul", "div"} | {
    name for name, kind in KINDS.items() if kind in ("weight", "attention", "dropout")
}
# Operations that pass no gradient for a reason that a finding of this kind has given. Rectifiers have a slope of zero
# on one side only.
_EXPLAINED = {"dead_units": ("relu", "relu6"), "softmax_over_one": ("softmax", "log_softmax")}


@check("reach of the gradient", needs="pass")
def check_reach(exam: Examination) -> Steps:
    """Look for parameters that no gradient reaches, and name the first place that cuts them off."""
    parameters = dict(exam.model.named_parameters())
    trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if not trainable:
        yield finding("frozen", (), {"parameters": len(parameters)})
        return "nothing is trainable"
    own = {*map(id, parameters.values())}
    # Parameters that the optimizer does not hold are not to be trained, as those of a generator in a critic's step.
    asked = own & {*map(id, held(exam.optimizer))} or own
    without = [
        name for name, known in trainable.items() if id(known) in asked and exam.passed.gradients.get(name) is None
    ]
    for rule in (
        _unregistered(exam, own),
        _head(exam),
        _lost(exam, without),
        _copied(exam, without),
        _unused(exam, without),
        _detached_steps(exam),
    ):
        if (found := next(rule, None)) is not None:
            yield found
            break
    return f"{len(trainable) - len(without)} of {len(trainable)} trainable parameters"


def _unregistered(exam: Examination, own: set[int]) -> Iterator[Finding]:
    """Report parameters that the pass read but that are not registered in the network."""
    read = ((event, parameter) for event in exam.passed.events for parameter in event.parameters)
    foreign = [(event, parameter) for event, parameter in read if id(parameter) not in own]
    if foreign:
        count = len({id(parameter) for _, parameter in foreign})
        # An attribute of the network, such as a list of layers, may hold it.
        kept = tree_leaves([[*vars(module).values()] for module in exam.model.modules()])
        inside = (parameter for known in kept if isinstance(known, nn.Module) for parameter in known.parameters())
        is_kept = any(known is foreign[0][1] for known in (*kept, *inside))
        kind = "unregistered_modules" if is_kept else "created_in_forward"
        yield finding(kind, (), {"parameters": count}, place=foreign[0][0].place)


def _head(exam: Examination) -> Iterator[Finding]:
    """Report a last layer that does not train after layers that do."""
    layers = [event for event in exam.events("weight") if event.parameters]
    trains = [any(parameter.requires_grad for parameter in event.parameters) for event in layers]
    if len(layers) < 2 or trains[-1]:
        return
    head = layers[-1].call
    around = exam.last.reached(lambda call: call is head)
    is_beside = any(call.kind == "parameter" and call.is_trained for call in around)
    if not any(read.is_trained for read in head.sources()) or is_beside:
        # It reads no trained layer, as that of a teacher, or adapters beside it train.
        return
    sizes = Counter[bool]()
    for parameter in exam.model.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    share = sizes[False] / sizes.total()
    # Several frozen layers that the optimizer does not hold are another network, as the critic of a generator.
    known = {*map(id, held(exam.optimizer))}
    is_other = not trains[-2] and bool(known) and known.isdisjoint(map(id, layers[-1].parameters))
    # Adapters train a few parameters of a network that is frozen as a whole.
    yield finding("frozen_head", head.where, {"share_frozen": share}, advice=is_other or share > MOST)


def _lost(exam: Examination, without: list[str]) -> Iterator[Finding]:
    """Report the first call on the way to the loss that keeps no history of what parameters without a gradient made.

    It may run without gradients, read the values only (`.data`, `detach()`), or choose, as an argmax does.
    """
    reached = {call for end in (exam.last, *exam.flow.calls[-1:]) for call in end.reached()}
    asked = {*without}
    # The parameters without a gradient on which results depend that have a history.
    behind: dict[TensorCall, list[str]] = {}
    for call in exam.flow.calls if asked else ():
        sources = [*call.sources()]
        own = [source.name for source in sources if source.kind == "parameter" and source.name in asked]
        names = [*dict.fromkeys([*own, *(name for source in sources for name in behind.get(source, ()))])]
        if names and call.has_history:
            behind[call] = names
        elif names and call in reached:
            kind = "cut_by_choice" if call.plain in CHOICES else "detached_weights" if own else "detached_result"
            names = sorted(names, key=without.index)
            kind, where = (kind, names) if call.is_recorded else ("no_grad", [call.place])
            yield finding(kind, where, {"parameters": len(names), "operation": call.plain}, **call.words)


def _copied(exam: Examination, without: list[str]) -> Iterator[Finding]:
    """Report a layer that reads values without a history, or an output that has none itself."""
    ids = {id(exam.model.get_parameter(name)) for name in without}
    trained: LayerEvent | None = None
    for event in exam.passed.events:
        if event.detached and trained is not None:
            yield finding("detached", event.call.where, {"after": trained.place})
        elif not ids.isdisjoint(map(id, event.parameters)):
            trained = event
    if without and not exam.passed.reached:
        yield finding("detached", (), {"parameters": len(exam.trained)}, place="the network's output")


def _unused(exam: Examination, without: list[str]) -> Iterator[Finding]:
    """Report layers that run with a result that nothing uses; parameters that are never read do not count."""
    read = {id(parameter): event.place for event in exam.passed.events for parameter in event.parameters}
    ids = [id(exam.model.get_parameter(name)) for name in without]
    if places := [*dict.fromkeys(read[own] for own in ids if own in read)]:
        # The loss may leave out a result that the network returns.
        ends = map(exam.flow.maker, tensors(exam.passed.output))
        returned = {known.name for end in ends for known in end.reached()}
        yield finding("unused_result", places, {"parameters": len(without)}, advice={*without} <= returned)


def _detached_steps(exam: Examination) -> Iterator[Finding]:
    """Report a line that detaches what it has detached before, so that steps learn nothing from later ones."""
    # For each call, how often each line has detached what it depends on.
    depth: dict[TensorCall, Counter[str]] = {}
    most: dict[str, tuple[int, TensorCall]] = {}
    for call in exam.flow.calls:
        longest = Counter[str]()
        for source in call.sources():
            longest |= depth.get(source, Counter())
        if call.name == "detach" and call.line is not None and any(one.is_trained for one in call.sources()):
            line = str(call.line)
            longest[line] += 1
            first = most.get(line, (0, call))
            most[line] = max(first[0], longest[line]), first[1]
        if longest:
            depth[call] = longest
    steps, call = max(most.values(), key=lambda pair: pair[0], default=(0, exam.last))
    if steps >= STEPS:
        yield finding("detached_steps", call.where, {"steps": steps}, **call.words)


@check("operations that pass no gradient", needs="pass", after=("units", "the last activation"))
def check_stops(exam: Examination) -> Steps:
    """Find the operation closest to the loss that reads a gradient and passes on zeros."""
    norms = exam.passed.reached
    if not norms:
        raise NotAsked("there is no gradient")
    zeros = [name for name, norm in norms.items() if norm == 0.0]
    if not zeros or exam.passed.loss == 0.0:
        return f"{len(norms)} parameters have a gradient"
    known = {name for found in exam.found for name in _EXPLAINED.get(found.kind, ())}
    stops = [(call, names) for call, names in _stops(exam, zeros) if call.plain not in known]
    if not stops:
        if not known and len(zeros) == len(norms):
            yield finding("cancelled_gradient", (), {"parameters": len(norms), "loss": exam.passed.loss})
        return f"{len(zeros)} of {len(norms)} parameters have a gradient of zero"
    call, names = stops[0]
    if call.range.is_one_value:
        yield finding("softmax_over_one", call.where, {"activation": call.name, "value": call.range.low})
        return f"{call.name} at {call.place} is over one value"
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    evidence: FindingEvidence = {"operation": call.plain, "parameters": len(names), "all_parameters": len(norms)}
    yield finding("zero_gradient", layers, evidence, grade=len(names) == len(norms), **call.words)
    return f"{call.plain} at {call.place} passes none to {len(names)} of {len(norms)}"


class _Softmaxes(BackwardTracer):
    """Follows the backward pass, and measures the ranges of softmaxes, of the loss too."""

    def on_call(self, seen: Seen) -> None:
        """Record a call."""
        super().on_call(seen)
        if seen.call.name == "softmax":
            seen.call.range = range_of(seen)


def _stops(exam: Examination, zeros: list[str]) -> list[tuple[TensorCall, list[str]]]:
    """Return the calls that stop the gradient, in the order of the backward pass, with the parameters behind them."""
    stopped: list[tuple[TensorCall, set[int]]] = []

    def passed(call: TensorCall, node: object, before: Gradients, after: Gradients) -> None:
        passes = tuple(gradient for gradient in before if gradient is not None)
        is_factor = call.plain in _FACTORS or call.name in _FACTORS
        if _any_nonzero(after) and passes and not _any_nonzero(passes) and not is_factor:
            stopped.append((call, parameters_behind(node)))

    tracer = _Softmaxes()
    with exam.repeated(tracer) as value, tracer.hooked(passed):
        value.backward()  # type: ignore[no-untyped-call]
    ids = {name: id(exam.model.get_parameter(name)) for name in zeros}
    named = [(call, [name for name, own in ids.items() if own in behind]) for call, behind in stopped]
    return [(call, names) for call, names in named if names]


def _any_nonzero(gradients: Gradients) -> bool:
    return any(gradient is not None and bool(gradient.to_dense().any()) for gradient in gradients)
