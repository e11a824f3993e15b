"""Checks of what could go: residual branches that do nothing, and the cost of constant divisors."""

from __future__ import annotations

from math import isfinite, isnan

from normless._internal.state import running
from normless.diagnosis.findings import NotAsked, Steps, check, finding
from normless.health.ablation import Branches, replaced
from normless.health.limits import IDLE, REMOVABLE
from normless.health.subject import Subject


@check("branches")
def check_branches(subject: Subject) -> Steps:
    """Remove one residual branch at a time, and look for those without which the output hardly changes."""
    if subject.map is None:
        raise NotAsked(f"the network has no residual map: {subject.unmapped}")
    if not subject.map.blocks:
        raise NotAsked("there is no residual block")
    changes: dict[str, tuple[float, float]] = {}
    branches = Branches(subject.model, subject.map)
    with running(subject.model, False), branches.removing():
        subject.reference  # noqa: B018
        for block in branches.blocks():
            branches.removed = block.name
            change, loss = subject.change()
            if block.name not in branches.seen or block.name in branches.missed or isnan(change):
                continue
            changes[block.name] = change, loss
            subject.note(block.name, "block", removal=change, removal_loss=loss)
        branches.removed = None
    if not changes:
        raise NotAsked("no branch could be removed: " + next(iter(branches.missed.values()), "no sum was seen"))
    order = sorted(changes, key=lambda name: changes[name][0])
    idle = [name for name in order if changes[name][0] < IDLE]
    spare = [name for name in order if IDLE <= changes[name][0] < REMOVABLE]
    for kind, severity, names, limit in (
        ("idle_branch", 0.68, idle, IDLE),
        ("removable_branch", 0.3, spare, REMOVABLE),
    ):
        if names:
            change, loss = changes[names[0]]
            evidence = {"change": change, "limit": limit, "blocks": len(names), "of": len(changes)}
            evidence |= {"loss": loss} if isfinite(loss) else {}
            seen = subject.measured.sums.seen.get(names[0])
            evidence |= {"branch_to_skip": seen.ratio} if seen is not None and isfinite(seen.ratio) else {}
            yield finding(kind, severity, names, evidence)
    least = order[0]
    return f"{len(changes)} removed one at a time; the output changes least without that of {least}, by {changes[least][0]:.2g}"


@check("cost of removing norms")
def check_cost(subject: Subject) -> Steps:
    """Measure what the output and loss lose if one norm at a time divides by a constant; batch norms fold exactly."""
    for path in subject.norms:
        subject.note(path, "norm", cost=0.0, cost_loss=0.0)
    divisors, (_, refused, tokens) = subject.measured.divisors, subject.freezables
    if not divisors and not subject.norms:
        raise NotAsked(next(iter(refused.values()), "there is no norm"))
    costs: dict[str, float] = {}
    with running(subject.model, False):
        handle = subject.model.register_forward_pre_hook(tokens.enter, with_kwargs=True)
        try:
            subject.reference  # noqa: B018
            for path, seen in divisors.items():
                with replaced(subject.model.get_submodule(path), seen.frozen()):
                    costs[path], loss = subject.change()
                subject.note(path, "norm", cost=costs[path], cost_loss=loss)
        finally:
            handle.remove()
    parts = [f"{len(subject.norms)} batch norms fold exactly"] if subject.norms else []
    if costs:
        most = max(costs, key=lambda path: costs[path])
        parts.append(
            f"a constant divisor in one of {len(costs)} norms changes the output by at most {costs[most]:.2g} ({most})"
        )
    parts += [f"{len(refused)} not measured"] if refused else []
    return "; ".join(parts)
    yield  # A check is a generator.
