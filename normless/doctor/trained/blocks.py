"""Checks of what could go: branches and layers that do nothing, and the cost of constant divisors."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, isnan

from normless._internal.state import running
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding
from normless.doctor.trained.ablation import Branches, averaged, replaced
from normless.doctor.trained.limits import IDLE, REMOVABLE
from normless.doctor.trained.subject import UNFIT, Subject
from normless.residual.classify import kind_of

Changes = dict[str, tuple[float, float]]


@check("branches and layers")
def check_parts(subject: Subject) -> Steps:
    """Leave out one residual branch or weight layer at a time, and look for those that hardly change the output."""
    with running(subject.model, False):
        subject.reference  # noqa: B018
        branches, idle = _branches(subject)
        layers, equal = _layers(subject, idle)
    names = {name: subject.place(name) for name in branches}
    yield from _told("idle_branch", branches, names, subject, below=IDLE)
    yield from _told("removable_branch", branches, names, subject, above=IDLE, below=REMOVABLE)
    yield from _told("idle_layer", layers, {name: name for name in layers}, subject, below=IDLE)
    if equal:
        yield finding("identity_layer", equal, {"layers": len(equal), "limit": IDLE})
    if not branches and not layers:
        why = (
            f"the network has no residual map: {subject.unmapped}"
            if subject.unmapped
            else "nothing could be left out"
        )
        raise NotAsked(why if subject.unfit is None else UNFIT)
    least = min((changes := branches | layers), key=lambda name: changes[name][0])
    summary = f"{len(branches)} branches and {len(layers)} layers left out one at a time"
    return f"{summary}; the output changes least without {least}, by {changes[least][0]:.2g}"


def _branches(subject: Subject) -> tuple[Changes, set[str]]:
    """Return the changes of output and loss without each branch, and the layers on those that do nothing."""
    changes, idle = Changes(), set[str]()
    if subject.map is None:
        return changes, idle
    branches = Branches(subject.model, subject.map)
    with branches.removing():
        for block in branches.blocks():
            if not subject.judges(subject.place(block.name)):
                continue
            branches.removed = block.name
            change, loss = subject.change()
            if block.name not in branches.seen or block.name in branches.missed or isnan(change):
                continue
            changes[block.name] = change, loss
            subject.note(block.name, "block", removal=change, removal_loss=loss)
            if change < IDLE:
                idle |= {layer.path for layer in block.branch_layers}
    return changes, idle


def _layers(subject: Subject, idle: set[str]) -> tuple[Changes, list[str]]:
    """Return the changes with the mean of each weight layer's output in its place, and layers that are the identity.

    Layers on branches that do nothing are left out.
    """
    changes, equal = Changes(), list[str]()
    paths = [path for path, module in subject.model.named_modules() if kind_of(module) == "weight"]
    if subject.map is not None:
        paths = [layer.path for layer in subject.map.layers() if layer.kind == "weight" and layer.called]
    for path in dict.fromkeys(paths):
        if ":" in path or path in idle or not subject.judges(path):
            continue
        module = subject.model.get_submodule(path)
        with averaged(module) as seen:
            change, loss = subject.change()
        if not seen or isnan(change):
            continue
        changes[path] = change, loss
        subject.note(path, "weight", removal=change, removal_loss=loss)
        if max(seen) < IDLE:
            equal.append(path)
    return changes, equal


def _told(
    kind: str,
    changes: Changes,
    names: dict[str, str],
    subject: Subject,
    *,
    below: float,
    above: float = -1.0,
) -> Iterator[Finding]:
    """Yield a finding about the branches or layers with a change within these limits, the smallest first."""
    found = sorted((name for name in changes if above <= changes[name][0] < below), key=lambda name: changes[name][0])
    if not found:
        return
    change, loss = changes[found[0]]
    evidence = {"change": change, "limit": below, "parts": len(found), "of": len(changes)}
    evidence |= {"loss": loss} if isfinite(loss) else {}
    seen = subject.measured.sums.seen.get(found[0])
    evidence |= {"branch_to_skip": seen.ratio} if seen is not None and isfinite(seen.ratio) else {}
    yield finding(kind, list(dict.fromkeys(names[name] for name in found)), evidence)


@check("cost of removing norms")
def check_cost(subject: Subject) -> Steps:
    """Measure what the output and loss lose if one norm at a time divides by a constant; batch norms fold exactly."""
    for path in subject.norms:
        subject.note(path, "norm", cost=0.0, cost_loss=0.0)
    divisors, (_, refused, tokens) = subject.measured.divisors, subject.freezables
    if not divisors and not subject.norms:
        raise NotAsked(next(iter(refused.values()), "there is no norm"))
    costs: dict[str, float] = {}
    with running(subject.model, False), subject.model.register_forward_pre_hook(tokens.enter, with_kwargs=True):
        subject.reference  # noqa: B018
        for path, seen in divisors.items():
            with replaced(subject.model.get_submodule(path), seen.frozen()):
                costs[path], loss = subject.change()
            subject.note(path, "norm", cost=costs[path], cost_loss=loss)
    parts = [f"{len(subject.norms)} batch norms fold exactly"] if subject.norms else []
    if costs:
        top = max(costs, key=lambda path: costs[path])
        parts.append(
            f"a constant divisor in one of {len(costs)} norms changes the output by {costs[top]:.2g} at most"
        )
        parts[-1] += f", in {top}"
    parts += [f"{len(refused)} not measured"] if refused else []
    return "; ".join(parts)
    yield  # A check is a generator.
