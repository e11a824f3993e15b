"""Checks of all layers, not only blocks: signal and gradient from the first to the last, and units that are off."""

from __future__ import annotations

from contextlib import suppress
from itertools import dropwhile
from math import isfinite, nan, sqrt

import torch
from torch import Tensor, nn

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import tensors
from normless.doctor.facts.tape import Event
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding
from normless.doctor.rules.units import stuck_zeros
from normless.errors import InputsError
from normless.probes import preserve_random_state, without_zeros

# Without residual blocks, a single learning rate does not suit layers that differ by this factor.
FACTOR = 1e4
# Without skip paths, more layers than this train badly, also with norms, if their gradients differ by this factor.
DEEP, UNEVEN = 25, 10.0
SOME = 10
# The number of pairs of examples that is tried first.
ENOUGH = 2
# About forty ReLUs leave this share of the difference between two uncorrelated examples.
LEFT = 0.02
# Shares above which units are dead, values are flat, and rows of attention are certain.
DEAD, FLAT, CERTAIN = 0.9, 0.8, 0.5
# The least share of the variance at the first layer that is between examples.
BETWEEN = 0.01
_RECTIFIERS = ("relu", "relu_", "relu6", "clamp_min", "threshold")


@check("signal of the layers")
def check_layers(exam: Examination) -> Steps:
    """Compare the differences between examples, and the sizes, at the first layer and at the last."""
    layers = _weights(exam)
    if len(layers) < 2:
        raise NotAsked("there are fewer than two weight layers")
    first, last = layers[0], layers[-1]
    sizes = [sqrt(event.second_moment) for event in layers]
    summary = f"√E[y²] from {sizes[0]:.3g} at {first.place} to {sizes[-1]:.3g} at {last.place}"
    if exam.depth:
        return summary
    wrong = next((event for event in layers if not isfinite(event.second_moment)), None)
    usual = [read for read in tensors(exam.inputs) if read.is_floating_point() and read.layout == torch.strided]
    read = [float(tensor.detach().double().std()) for tensor in usual]
    apart = [max(read, default=nan), *(event.deviation for event in layers if not _is_zero(event))]
    apart = [deviation for deviation in apart if isfinite(deviation)]
    evidence: dict[str, float] = {"layers": len(layers), "first": sizes[0], "last": sizes[-1]}
    grown = max(filter(isfinite, sizes), default=nan)
    if wrong is not None and not grown > FACTOR * sizes[0]:
        # The signal does not grow; the check of finite values finds the cause.
        return summary
    # The outputs of a regression have the size of its targets.
    targets = [
        float(tensor.detach().double().square().mean())
        for tensor in tensors(exam.targets)
        if tensor.is_floating_point()
    ]
    limit = max([FACTOR / 10, *(SOME * sqrt(size) for size in targets)])
    if wrong is not None or (sizes[-1] > FACTOR * max(min(sizes), 1e-30) and sizes[-1] > limit):
        yield finding("exploding_weights", (first.place, (wrong or last).place), evidence)
        return summary
    if len(apart) > 1 and max(apart) > FACTOR * apart[-1] > 0:
        evidence |= {"first": apart[0], "last": apart[-1], "factor": max(apart) / apart[-1]}
        yield finding("vanishing_signal", (first.place, last.place), evidence)
    else:
        yield from _missing_skips(exam, layers)
    yield from _alike(layers)
    return summary


def _missing_skips(exam: Examination, layers: list[Event]) -> list[Finding]:
    """Report many layers in a row with norms and without skip paths; `_alike` handles networks without norms."""
    has_norms = any(event.kind == "norm" for event in exam.passed.events)
    if exam.map is None or len(layers) < DEEP or exam.passed.joins or not has_norms:
        return []
    norms = [size for event in layers if (size := _gradient_norm(event))]
    ratio = max(norms) / min(norms) if norms else nan
    return [finding("missing_skip", (layers[0].place, layers[-1].place), {"layers": len(layers), "ratio": ratio})]


def _alike(layers: list[Event]) -> list[Finding]:
    """Report examples that become alike in a network without skip paths: 1 - c of two of them falls."""
    known = [event for event in layers if isfinite(event.correlation)]
    if len(known) < SOME or 1 - known[-1].correlation >= LEFT * (1 - known[0].correlation):
        return []
    evidence = {"correlation_before": known[0].correlation, "correlation_after": known[-1].correlation}
    return [finding("alike_examples", [known[-1].place], evidence | {"layers": len(known)})]


@check("gradient of the layers")
def check_layer_gradients(exam: Examination) -> Steps:
    """Compare the norm of the gradient at the first layer with the largest one."""
    layers = [event for event in _weights(exam) if event.gradient]
    if len(layers) < 2:
        raise NotAsked("the gradient reaches fewer than two weight layers")
    norms = [_gradient_norm(event) for event in layers]
    where = (layers[0].place, layers[-1].place)
    evidence = {"layers": len(layers), "first": norms[0], "last": norms[-1]}
    if not exam.depth and all(map(isfinite, norms)):
        if norms[0] * FACTOR < max(norms):
            yield finding("vanishing_layer_gradient", where, evidence | {"ratio": max(norms) / norms[0]})
        elif norms[0] > FACTOR * norms[-1]:
            yield finding("exploding_layer_gradient", where, evidence | {"ratio": norms[0] / norms[-1]})
    return f"‖∂L/∂y‖ from {norms[0]:.3g} at {where[0]} to {norms[-1]:.3g} at {where[1]}"


@check("units")
def check_units(exam: Examination) -> Steps:
    """Look for units that are always off, activations that are flat, and attention on single positions."""
    if zeros := stuck_zeros(exam):
        yield finding("zero_weights", tuple(zeros), {"parameters": len(zeros)})
    inner = [event for event in exam.passed.events if event.output is not exam.passed.logits]
    rectified = [(event, event.off) for event in inner if event.name in _RECTIFIERS and isfinite(event.off)]
    for kind, limit, shares in (
        ("dead_units", DEAD, rectified),
        ("saturated_units", FLAT, [(event, event.saturated) for event in inner]),
        ("saturated_attention", CERTAIN, [(event, event.peaked) for event in inner]),
    ):
        if over := [(event, share) for event, share in shares if share >= limit]:
            yield finding(kind, (_source(exam, over[0][0]),), {"share": max(share for _, share in over)})
    most = max((share for _, share in rectified), default=0.0)
    return f"at most {most:.0%} of the units of an activation are off"


def _source(exam: Examination, event: Event) -> str:
    """Return the place of an activation; of the layer that it reads, if no module contains the activation alone."""
    if event.path and not any(exam.model.get_submodule(event.path).children()):
        return event.place
    call = exam.passed.flow.of(event.output)
    read = next(call.sources(), None) if call is not None else None
    return event.place if read is None or not read.origin().path else read.origin().path


@check("nonlinearity")
def check_nonlinearity(exam: Examination) -> Steps:
    """Check whether f(x + x') - f(x) - f(x') + f(0) is zero, so that several layers compute no more than one."""
    layers, x = len({event.place for event in _weights(exam)}), exam.inputs
    if layers < 2 or not isinstance(x, Tensor) or not x.is_floating_point() or x.is_sparse or len(x) < 2:
        raise NotAsked("there are fewer than two layers, or the inputs cannot be added")
    half = len(x) // 2
    # Branches that start at zero will become part of the network.
    with preserve_random_state(exam.model), torch.no_grad():
        opened = without_zeros(exam.model)
    is_linear = True
    # A few examples show a nonlinearity of most networks.
    for count in sorted({min(ENOUGH, half), half}):
        first, second = x[:count], x[half : half + count]
        try:
            size, rest = _beyond_linear(exam, opened, first, second)
        except InputsError as error:
            if count < half:
                continue
            raise NotAsked("the network does not take half of the batch") from error
        is_linear = is_linear and isfinite(size) and size > 0 and rest <= 1e-5 * size
        if not is_linear:
            break
    if is_linear:
        # Branches that start small are linear to the precision of float32.
        with suppress(InputsError):
            size, rest = _beyond_linear(exam, opened.double(), first.double(), second.double())
            is_linear = rest <= 1e-11 * size
    if is_linear:
        yield finding("no_nonlinearity", (), {"layers": layers})
    return f"f(x + x') - f(x) - f(x') + f(0) is up to {rest:.3g}"


def _beyond_linear(exam: Examination, model: nn.Module, first: Tensor, second: Tensor) -> tuple[float, float]:
    """Return the sizes of f(x + x') - f(0) and of f(x + x') - f(x) - f(x') + f(0)."""
    both, left, right, zero = (exam.evaluate(x, model) for x in (first + second, first, second, first * 0))
    return float((both - zero).abs().max()), float((both - left - right + zero).abs().max())


@check("input of the first layer")
def check_first_layer(exam: Examination) -> Steps:
    """Measure how much of the input of the first layer after an embedding differs between examples."""
    after = dropwhile(lambda event: event.name != "embedding", exam.passed.events)
    event = next((event for event in after if isfinite(event.spread_in) and len(event.shape) == 3), None)
    if event is None:
        raise NotAsked("there is no embedding of tokens")
    if event.spread_in < BETWEEN:
        yield finding("dominating_positions", (event.place,), {"share": event.spread_in})
    return f"{event.spread_in:.2%} of its variance is between examples at the same position"


def _weights(exam: Examination) -> list[Event]:
    return [event for event in exam.passed.events if event.kind == "weight"]


def _gradient_norm(event: Event) -> float:
    return (event.gradient or 0.0) * sqrt(event.output.numel())


def _is_zero(event: Event) -> bool:
    """Whether a layer's weights are all zero, which is usual in classifiers."""
    return not any(bool(parameter.any()) for parameter in event.parameters if parameter.dim() > 1)
