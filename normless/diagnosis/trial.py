"""Does the optimizer get anywhere? A few of its steps on copies of network and optimizer."""

from __future__ import annotations

from copy import deepcopy
from itertools import repeat

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding
from normless.divergence import first_diverged, has_diverged
from normless.probes.forward.signal import Signal
from normless.probes.hooks.observe import observe
from normless.probes.hooks.preserve_state import preserve_state
from normless.probes.updates.divergence import descend

NAME = "first steps"

_DIVERGED = (
    "Along a large update the activations of the upper layers grow exponentially with depth, which the gradient at "
    "its start does not show: the loss explodes at its far end (Bjorck et al., section 3.4, figures 5 and 6)."
)
_SHUT = (
    "A branch that starts at zero opens with the first step of its multiplier or last layer; one that does not is "
    "out of the optimizer's reach, or gets no gradient."
)


def check_first_steps(examination: Examination, steps: int) -> Check:
    """Take `steps` steps of the optimizer on the one batch, with copies: the network and it stay as they are."""
    if examination.optimizer is None or steps < 1:
        reason = "no optimizer was given" if examination.optimizer is None else "no steps were asked for"
        return Check(NAME, f"not tried: {reason}", asked=False)
    losses, shut = _tried(examination, steps)
    rate = max(group["lr"] for group in examination.optimizer.param_groups)
    summary = f"{steps} steps at rate {rate:.3g} take the loss from {losses[0]:.3g} to {losses[-1]:.3g}"
    found = []
    if first_diverged(losses) is not None:
        found.append(_diverged(examination, losses, rate))
    elif shut:
        found.append(_shut(examination, shut, steps, rate))
    return Check(NAME, summary, tuple(found))


def _tried(examination: Examination, steps: int) -> tuple[list[float], tuple[str, ...]]:
    """The losses before each step and behind the last, and the blocks whose branches are zero at the end."""
    e = examination
    # Copied together, so that the copied optimizer holds the copied parameters.
    model, optimizer = deepcopy((e.model, e.optimizer))
    assert optimizer is not None
    signal = Signal()
    with preserve_state(model, training=True):
        losses = list(descend(model, repeat((e.inputs, e.targets), steps), optimizer, loss=e.loss))
        if has_diverged(losses[-1]):
            return losses, ()
        losses.append(observe(model, [signal], e.inputs, e.targets, loss=e.loss, residual_map=e.map))
    table = signal.table()
    return losses, () if has_diverged(losses[-1]) else tuple(table.loc[table["branch_variance"] == 0, "name"])


def _diverged(e: Examination, losses: list[float], rate: float) -> Finding:
    return Finding(
        "diverging",
        0.95,
        f"Training diverges: the loss goes from {losses[0]:.3g} to {losses[-1]:.3g} in {len(losses) - 1} "
        f"step{'s' * (len(losses) > 2)} at rate {rate:.3g}.",
        {"rate": rate, "steps": len(losses) - 1, "loss_before": losses[0], "loss_behind": losses[-1]},
        (),
        _DIVERGED,
        Cure(
            "a smaller learning rate, or a network that bears this one: nl.convert(model, 'skipinit', inputs)",
            e.possible(("skipinit", "fixup")),
        ),
    )


def _shut(e: Examination, shut: tuple[str, ...], steps: int, rate: float) -> Finding:
    return Finding(
        "branch_never_grows",
        0.3 + 0.5 * len(shut) / e.map.depth,
        f"{len(shut)} of {e.map.depth} branches are still zero after {steps} steps at rate {rate:.3g}, as that of "
        f"{shut[0]}.",
        {"shut": len(shut), "blocks": e.map.depth, "steps": steps, "rate": rate},
        shut,
        _SHUT,
        Cure("hand the optimizer every parameter: nl.param_groups(model, lr=…, weight_decay=…)"),
    )
