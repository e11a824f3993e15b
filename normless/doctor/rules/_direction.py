"""A check of the direction of the optimization: a loss that is maximized, or has the wrong sign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite

import torch
from torch import Tensor
from torch.func import functional_call

from normless.doctor._findings import FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._tracer import REFUSED, Seen, Tracer
from normless.probes.hooks._losses import loss_of, own_loss
from normless.probes.hooks._observe import compute_output
from normless.state import preserve_state

# Distances along the gradient, in units of the size of what is moved. A loss without a bound grows at least in
# proportion to the last two of them; this share of the growth is required.
DISTANCES = (1e2, 1e3, 1e4)
SHARE = 0.5
# A loss is against the targets if it is worse for them by this share.
MARGIN = 0.1
# Functions that measure agreement, and the sign of the gradient of a loss that is to be minimized against it.
AGREEMENT = {"cosine_similarity": 1, "mse_loss": -1, "l1_loss": -1, "smooth_l1_loss": -1, "huber_loss": -1}
# Losses that differ by less than this share of that of the network differ by rounding.
ROUNDED = 1e-6
Bounds = tuple[bool, bool] | None


@check("direction of the steps", needs="optimizer")
def check_direction(exam: Examination) -> Steps:
    """Look for steps in the direction in which the loss has no bound, while it has one in the other direction.

    A Gaussian likelihood, a policy gradient and a Wasserstein critic have no bound in either direction.
    """
    groups = exam.optimizer.param_groups if exam.optimizer else [{}]
    maximized = {bool(group.get("maximize", False)) for group in groups}
    if len(maximized) > 1:
        raise NotAsked("some groups of the optimizer are maximized and others minimized")
    if not isfinite(exam.passed.loss):
        raise NotAsked("the loss is not finite")
    (is_maximized,) = maximized
    bounds = _bounds_along_weights(exam) if exam.loss is own_loss else _bounds_along_outputs(exam)
    rises, falls = bounds or (False, False)
    if (rises and not falls) if is_maximized else (falls and not rises):
        yield finding("ascent" if is_maximized else "wrong_sign", (), {"loss": exam.passed.loss})
    elif not (rises or falls) and exam.loss is not own_loss:
        against = _against_targets(exam, is_maximized) or _against_agreement(exam, is_maximized)
        if against is not None:
            how = "maximizes" if is_maximized else "minimizes"
            yield finding("wrong_way", (), {"loss": exam.passed.loss, **against[1]}, how=how, why=against[0])
    if bounds is None:
        return "the loss was not computed for other outputs"
    words = f"{'un' * rises}bounded above and {'un' * falls}bounded below"
    return f"the loss is {words} along its gradient, and it is {'maximized' if is_maximized else 'minimized'}"


def _bounds_along_outputs(exam: Examination) -> Bounds:
    """Return the bounds of a loss along the gradient of the outputs; None if it does not read batch and outputs."""
    if any(call.layer == "weight" for call in exam.in_loss):
        raise NotAsked("the loss contains layers")
    origins = {source.kind for call in exam.in_loss for source in call.sources()}
    if origins.isdisjoint(("unknown", "targets", "inputs")):
        raise NotAsked("the loss does not read the batch")
    if not exam.logits.is_floating_point() or not bool(exam.logits.isfinite().all()):
        return None
    return _bounds([exam.logits], lambda moved: exam.loss_at(moved[0]))


def _bounds_along_weights(exam: Examination) -> Bounds:
    """Return the bounds of a loss that the network computes, along the gradient of the weights of its last layer."""
    layers, calls = [event for event in exam.events("weight") if event.parameters], exam.flow.calls
    if not layers:
        return None
    later = calls[calls.index(layers[-1].call) + 1 :]
    # Labels are among the inputs; a loss that does not read them may be that of a critic.
    if not any(source.origin().kind == "inputs" for call in later for source in call.sources()):
        return None
    known = {name: one for name, one in exam.model.named_parameters() if one.requires_grad}
    own = {name: one.detach() for name, one in known.items() if any(one is read for read in layers[-1].parameters)}

    def loss_at(moved: Sequence[Tensor]) -> Tensor:
        model = partial(functional_call, exam.model, dict(zip(own, moved, strict=True)))
        output = compute_output(lambda *args, **named: model(args, named), exam.inputs)
        return loss_of(exam.loss, output, exam.inputs, exam.targets)

    with preserve_state(exam.model, training=True):
        return _bounds([*own.values()], loss_at)


def _bounds(values: Sequence[Tensor], loss_at: Callable[[Sequence[Tensor]], Tensor]) -> Bounds:
    """Return whether a loss rises and falls without a bound along its gradient; None if unknown."""
    with suppress(*REFUSED):
        leaves = [value.clone().requires_grad_() for value in values]
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss_at(leaves), leaves)
        largest = max(float(gradient.abs().max()) for gradient in gradients)
        if not isfinite(largest) or largest == 0.0:
            return None
        scale = max(1.0, *(float(value.abs().max()) for value in values)) / largest

        def at(distance: float) -> Tensor:
            pairs = zip(values, gradients, strict=True)
            return loss_at([value + distance * scale * gradient for value, gradient in pairs])

        return _is_unbounded(at, 1), _is_unbounded(at, -1)
    return None


def _is_unbounded(loss_at: Callable[[float], Tensor], sign: int) -> bool:
    """Whether the loss goes on changing in the direction `sign` in proportion to the distance, or faster."""
    with torch.no_grad():
        values = [sign * float(loss_at(sign * distance)) for distance in (0.0, *DISTANCES)]
    growth = [value - values[0] for value in values[1:]]
    return all(
        later > SHARE * before * far / near > 0
        for before, later, near, far in zip(growth, growth[1:], DISTANCES, DISTANCES[1:], strict=False)
    )


def _against_targets(exam: Examination, is_maximized: bool) -> tuple[str, FindingEvidence] | None:
    """Return words and losses if outputs that equal the targets are worse than those that equal other targets."""
    found: FindingEvidence = {}
    for encoded in _as_outputs(exam.passed.logits, exam.targets):
        with suppress(*REFUSED), torch.no_grad():
            right, wrong = (float(exam.loss_at(outputs)) for outputs in (encoded, encoded.roll(1, 0)))
            least = max(MARGIN * max(abs(right), abs(wrong)), ROUNDED * abs(exam.passed.loss))
            if not (wrong - right if is_maximized else right - wrong) > least:
                return None
            found = {"loss_of_right": right, "loss_of_wrong": wrong}
    words = (
        "it is {loss_of_right:.3g} for outputs that equal the targets, and {loss_of_wrong:.3g} for those of others"
    )
    return (words.format_map(found), found) if found else None


def _as_outputs(outputs: Tensor, targets: object) -> list[Tensor]:
    """Return outputs that equal the targets, as far as targets of this type and shape are understood."""
    if not isinstance(targets, Tensor) or outputs.dim() < 1 or len(outputs) < 2:
        return []
    if targets.is_floating_point():
        if targets.shape != outputs.shape or not bool((targets != targets.roll(1, 0)).any()):
            return []
        is_binary = bool(((targets == 0) | (targets == 1)).all())
        return [own.to(outputs.dtype) for own in (targets, 10 * targets - 5)[: 1 + is_binary]]
    is_classes = outputs.dim() == 2 and targets.shape == outputs.shape[:1] and targets.dtype != torch.bool
    if not is_classes or int(targets.min()) < 0 or int(targets.max()) >= outputs.shape[1]:
        return []
    classes = torch.nn.functional.one_hot(targets.long(), outputs.shape[1]).to(outputs.dtype)
    return [classes, 10 * classes]


def _against_agreement(exam: Examination, is_maximized: bool) -> tuple[str, FindingEvidence] | None:
    """Return words if every similarity in the loss is to fall, or every distance is to grow."""
    # The results of functions that measure how well trained values agree with others.
    results: list[tuple[str, Tensor]] = []

    def note(seen: Seen) -> None:
        if seen.in_loss and seen.call.name in AGREEMENT and seen.made[0].requires_grad:
            results.append((seen.call.name, seen.made[0]))

    with suppress(RuntimeError), exam.repeated(Tracer(note)) as value:
        made = [result for _, result in results]
        gradients = torch.autograd.grad(value, made, allow_unused=True) if made else ()
        known = [(name, one) for (name, _), one in zip(results, gradients, strict=True) if one is not None]
        signs = [one.sign() * AGREEMENT[name] * (-1 if is_maximized else 1) for name, one in known]
        if signs and all(bool((sign > 0).all()) for sign in signs):
            name = known[0][0]
            ways = ("lowers", "similarity") if AGREEMENT[name] > 0 else ("raises", "distance")
            return f"every step {ways[0]} the {ways[1]}, {name}, of all pairs", {"function": name}
    return None
