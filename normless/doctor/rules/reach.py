"""Checks of the reach of the gradient: parameters that are frozen, unregistered, or cut off from the loss."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, Call, tensors
from normless.doctor.facts.held import held
from normless.doctor.facts.tape import Event
from normless.doctor.findings import Evidence, Finding, Steps, check, finding

# A line that detaches its own results this many times in a pass cuts the gradient at every step of a recurrence.
STEPS = 3
# Calls that return indices or truth values.
CHOICES = {
    "argmax", "argmin", "argsort", "multinomial", "searchsorted", "bucketize", "nonzero", "long", "int", "bool",
    "__gt", "__ge", "__lt", "__le", "__eq", "gt", "ge", "lt", "le", "eq",
}  # fmt: skip
# A network with more than this share of its parameters frozen is adapted, not trained.
MOST = 0.5


@check("reach of the gradient")
def check_reach(exam: Examination) -> Steps:
    """Look for parameters that no gradient reaches, and name the first place that cuts them off."""
    trainable = {name: parameter for name, parameter in exam.model.named_parameters() if parameter.requires_grad}
    if not trainable:
        yield finding("frozen", (), {"parameters": sum(1 for _ in exam.model.parameters())})
        return "nothing is trainable"
    own = {*map(id, exam.model.parameters())}
    # Parameters that the optimizer does not hold are not to be trained, as those of a generator in a critic's step.
    asked = own & {*map(id, held(exam.optimizer))} or own
    without = [
        name for name, known in trainable.items() if id(known) in asked and exam.passed.gradients.get(name) is None
    ]
    found = [*_unregistered(exam, own), *_head(exam), *_cut(exam, asked), *_read_detached(exam, without)]
    found = found or _chosen(exam, without)
    if not found and without and all(norm is None for norm in exam.passed.gradients.values()):
        # No operation was seen to cut the gradient: the output itself has none.
        found = [finding("detached", (), {"parameters": len(trainable)}, place="the network's output")]
    found = found or (_unused(exam, without) if without else []) or _detached_steps(exam)
    yield from found[:1]
    return f"{len(trainable) - len(without)} of {len(trainable)} trainable parameters"


def _unregistered(exam: Examination, own: set[int]) -> list[Finding]:
    """Report parameters that the pass read but that are not registered in the network."""
    foreign = [
        (event, parameter)
        for event in exam.passed.events
        for parameter in event.parameters
        if id(parameter) not in own
    ]
    if not foreign:
        return []
    count = len({id(parameter) for _, parameter in foreign})
    kind = "unregistered_modules" if _is_kept(exam.model, foreign[0][1]) else "created_in_forward"
    return [finding(kind, (), {"parameters": count}, place=foreign[0][0].place)]


def _is_kept(model: nn.Module, parameter: Tensor) -> bool:
    """Whether an attribute of the network, such as a list of layers, holds a parameter that is not registered."""
    kept = tree_leaves([[*vars(module).values()] for module in model.modules()])
    layers = (known for known in kept if isinstance(known, nn.Module))
    return any(known is parameter for known in kept) or any(
        known is parameter for layer in layers for known in layer.parameters()
    )


def _head(exam: Examination) -> list[Finding]:
    """Report a last layer that does not train after layers that do."""
    layers = [event for event in exam.passed.events if event.kind == "weight" and event.parameters]
    trains = [any(parameter.requires_grad for parameter in event.parameters) for event in layers]
    if len(layers) < 2 or trains[-1] or not any(parameter.requires_grad for parameter in exam.model.parameters()):
        return []
    head, made = exam.passed.flow.of(layers[-1].output), exam.passed.flow.of(exam.passed.logits)
    if head is None or made is None or not any(read.is_trained for read in head.sources()) or _is_beside(made, head):
        # It reads no trained layer, as that of a teacher, or adapters beside it train.
        return []
    frozen = sum(parameter.numel() for parameter in exam.model.parameters() if not parameter.requires_grad)
    share = frozen / sum(parameter.numel() for parameter in exam.model.parameters())
    found = finding("frozen_head", (layers[-1].place,), {"share_frozen": share})
    # Several frozen layers that the optimizer does not hold are another network, as the critic of a generator.
    known = {*map(id, held(exam.optimizer))}
    is_other = not trains[-2] and bool(known) and known.isdisjoint(map(id, layers[-1].parameters))
    # Adapters train a few parameters of a network that is frozen as a whole.
    return [replace(found, advice=is_other or share > MOST)]


def _is_beside(made: Call, head: Call) -> bool:
    """Whether trained parameters reach a result by a way around a layer."""
    calls = made.reached(lambda call: call is head)
    return any(call.kind == "parameter" and call.is_trained for call in calls)


def _cut(exam: Examination, own: set[int]) -> list[Finding]:
    """Report the first place after trained layers that records no gradient or reads a detached tensor."""
    trained: Event | None = None
    reached = {id(exam.model.get_parameter(name)) for name, norm in exam.passed.gradients.items() if norm is not None}
    for event in exam.passed.events:
        trains = any(parameter.requires_grad and id(parameter) in own for parameter in event.parameters)
        is_reached = any(id(parameter) in reached for parameter in event.parameters)
        if trains and not event.recording and not is_reached:
            return [finding("no_grad", (event.place,), {}, place=event.place)]
        if event.detached and trained is not None:
            return [finding("detached", (event.place,), {"after": trained.place}, place=event.place)]
        # The gradient of the output is not asked for: an in-place operation may hide it.
        if trains and not is_reached:
            trained = event
    return []


def _read_detached(exam: Examination, without: list[str]) -> list[Finding]:
    """Report weights of which the pass reads the values only, through `.data` or `detach()`."""
    reads = [
        (call, source.name)
        for call in exam.passed.flow.calls
        if call.name in ("data", "detach") and call.line is not None
        for source in call.sources()
        if source.kind == "parameter" and source.name in without
    ]
    if not reads:
        return []
    call, where = reads[0][0], (*dict.fromkeys(name for _, name in reads),)
    evidence: Evidence = {"parameters": len(where), "operation": call.name}
    return [finding("detached_weights", where, evidence, place=call.place, line=call.line)]


def _chosen(exam: Examination, without: list[str]) -> list[Finding]:
    """Report a choice, such as an argmax, or a detach, through which layers without a gradient reach the loss."""
    flow = exam.passed.flow
    ends = [call for call in (flow.of(exam.passed.logits), *flow.calls[-1:]) if call is not None] if without else []
    reached = {call for end in ends for call in end.reached(lambda call: False)}
    for call in flow.calls:
        name = call.name.rstrip("_")
        if name not in CHOICES | {"detach"} or call not in reached:
            continue
        names = [known for known in without if known in _behind(call)]
        if names:
            place = "the loss" if call.path == LOSS else call.place
            evidence: Evidence = {"parameters": len(names), "operation": name.strip("_")}
            kind = "detached_result" if name == "detach" else "cut_by_choice"
            return [finding(kind, names, evidence, place=place, line=call.line or place)]
    return []


def _behind(*calls: Call) -> set[str]:
    """Return the names of the parameters on which the results of calls depend."""
    reached = (known for call in calls for known in call.reached(lambda call: False))
    return {known.name for known in reached if known.kind == "parameter"}


def _unused(exam: Examination, without: list[str]) -> list[Finding]:
    """Report layers that run with a result that nothing uses; parameters that are never read do not count."""
    read: dict[int, str] = {
        id(parameter): event.place for event in exam.passed.events for parameter in event.parameters
    }
    places = dict.fromkeys(
        read[id(parameter)] for name in without if id(parameter := exam.model.get_parameter(name)) in read
    )
    if not places:
        return []
    # The loss may leave out a result that the network returns.
    returned = filter(None, map(exam.passed.flow.of, tensors(exam.passed.output)))
    found = finding("unused_result", tuple(places), {"parameters": len(without)})
    return [replace(found, advice={*without} <= _behind(*returned))]


def _detached_steps(exam: Examination) -> list[Finding]:
    """Report a line that detaches what it has detached before, so that steps learn nothing from later ones."""
    steps: dict[tuple[str, int], int] = {}
    calls = exam.passed.flow.calls
    depth: dict[Call, dict[tuple[str, int], int]] = {}
    for call in calls:
        longest: dict[tuple[str, int], int] = {}
        for source in call.sources():
            for key, number in depth.get(source, {}).items():
                longest[key] = max(number, longest.get(key, 0))
        if call.name == "detach" and call.line is not None and any(one.is_trained for one in call.sources()):
            line = (call.line.file, call.line.number)
            longest = longest | {line: longest.get(line, 0) + 1}
            steps[line] = max(steps.get(line, 0), longest[line])
        if longest:
            depth[call] = longest
    longest_at = max(steps, key=steps.__getitem__, default=None)
    if longest_at is None or steps[longest_at] < STEPS:
        return []
    file, number = longest_at
    found = next(
        (call.place, call.line)
        for call in calls
        if call.name == "detach" and call.line is not None and (call.line.file, call.line.number) == (file, number)
    )
    return [finding("detached_steps", (found[0],), {"steps": steps[longest_at]}, line=str(found[1]))]
