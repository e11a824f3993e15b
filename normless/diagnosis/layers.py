"""Every layer, not only blocks: how signal and gradient change from the first to the last, and units that are off."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, nan, sqrt

from torch import Tensor

from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import Check, Finding, finding
from normless.diagnosis.tape import Event, tensors

SIGNAL, GRADIENT = "signal of the layers", "gradient of the layers"
UNITS, NONLINEAR, POSITIONS = "units", "nonlinearity", "what the first layer reads"
# Over a whole network without residual blocks, this much is no scale that one learning rate suits.
FACTOR = 1e4
# Without skip paths, more layers than these whose gradients differ more than this train badly, also with norms.
DEEP, UNEVEN = 25, 10.0
SOME = 10
# Of ReLUs alone about forty leave this share of the difference between two uncorrelated examples.
LEFT = 0.02
# A layer's units, and an activation's values, of which at least so many are useless.
DEAD, FLAT, CERTAIN = 0.9, 0.8, 0.5
# Of the variance that the first layer reads, the share between examples.
BETWEEN = 0.01
_RECTIFIERS = ("relu", "relu_", "relu6", "clamp_min", "threshold")


def check_layers(e: Examination) -> Check:
    """Compare the differences between examples, and the sizes, at the first layer and at the last."""
    layers = _weights(e)
    if len(layers) < 2:
        return Check(SIGNAL, "there are fewer than two weight layers", asked=False)
    first, last = layers[0], layers[-1]
    sizes = [sqrt(event.second_moment) for event in layers]
    summary = f"√E[y²] from {sizes[0]:.3g} at {first.place} to {sizes[-1]:.3g} at {last.place}"
    wrong = next((event for event in layers if not isfinite(event.second_moment)), None)
    if e.depth:
        return Check(SIGNAL, summary)
    read = max(
        (float(one.detach().double().std()) for one in tensors(e.inputs) if one.is_floating_point()), default=nan
    )
    if wrong is not None or (sizes[-1] > FACTOR * max(min(sizes), 1e-30) and sizes[-1] > FACTOR / 10):
        evidence = {"layers": len(layers), "first": sizes[0], "last": sizes[-1]}
        place = (wrong or last).place
        return Check(SIGNAL, summary, (finding("exploding_weights", 0.91, (first.place, place), evidence),))
    apart = [read, *(event.deviation for event in layers if not _is_zero(event))]
    apart = [one for one in apart if isfinite(one)]
    if len(apart) > 1 and max(apart) > FACTOR * apart[-1] > 0:
        evidence = {"layers": len(layers), "first": apart[0], "last": apart[-1], "factor": max(apart) / apart[-1]}
        vanishing = finding("vanishing_signal", 0.91, (first.place, last.place), evidence)
        return Check(SIGNAL, summary, (vanishing, *_alike(layers)))
    return Check(SIGNAL, summary, (*_missing_skips(e, layers), *_alike(layers)))


def _missing_skips(e: Examination, layers: list[Event]) -> list[Finding]:
    """Many layers in a row with norms and without skip paths; `_alike` is for those without norms."""
    has_norms = any(event.kind == "norm" for event in e.passed.events)
    if e.map is None or len(layers) < DEEP or e.passed.joins or not has_norms:
        return []
    norms = [size for event in layers if (size := _gradient_norm(event))]
    ratio = max(norms) / min(norms) if norms else nan
    return [
        finding("missing_skip", 0.7, (layers[0].place, layers[-1].place), {"layers": len(layers), "ratio": ratio})
    ]


def _alike(layers: list[Event]) -> list[Finding]:
    """Examples that a network without skip paths makes alike: 1 - c of two of them falls."""
    known = [one for one in layers if isfinite(one.correlation)]
    if len(known) < SOME or 1 - known[-1].correlation >= LEFT * (1 - known[0].correlation):
        return []
    evidence = {"correlation_before": known[0].correlation, "correlation_behind": known[-1].correlation}
    return [finding("alike_examples", 0.72, [known[-1].place], evidence | {"layers": len(known)})]


def check_layer_gradients(e: Examination) -> Check:
    """Compare the norm of the gradient at the first layer with the largest one."""
    layers = [event for event in _weights(e) if event.gradient]
    if len(layers) < 2:
        return Check(GRADIENT, "it reaches fewer than two weight layers", asked=False)
    norms = [_gradient_norm(event) for event in layers]
    summary = f"‖∂L/∂y‖ from {norms[0]:.3g} at {layers[0].place} to {norms[-1]:.3g} at {layers[-1].place}"
    where = (layers[0].place, layers[-1].place)
    evidence = {"layers": len(layers), "first": norms[0], "last": norms[-1]}
    if e.depth or not all(map(isfinite, norms)):
        return Check(GRADIENT, summary)
    if norms[0] * FACTOR < max(norms):
        evidence["ratio"] = max(norms) / norms[0]
        return Check(GRADIENT, summary, (finding("vanishing_layer_gradient", 0.88, where, evidence),))
    if norms[0] > FACTOR * norms[-1]:
        evidence["ratio"] = norms[0] / norms[-1]
        return Check(GRADIENT, summary, (finding("exploding_layer_gradient", 0.86, where, evidence),))
    return Check(GRADIENT, summary)


def check_units(e: Examination) -> Check:
    """Look for units that are always off, activations that are flat, and attention on single positions."""
    inner = [event for event in e.passed.events if event.output is not e.passed.logits]
    worst: dict[str, tuple[Event, float]] = {}
    kinds: dict[str, tuple[float, Callable[[Event], float]]] = {
        "dead_units": (DEAD, lambda event: event.off if event.name in _RECTIFIERS else nan),
        "saturated_units": (FLAT, lambda event: event.saturated),
        "saturated_attention": (CERTAIN, lambda event: event.peaked),
    }
    for kind, (limit, share) in kinds.items():
        shares = [(event, share(event)) for event in inner]
        over = [(event, value) for event, value in shares if value >= limit]
        if over:
            worst[kind] = over[0][0], max(value for _, value in over)
    zeros = _zeros(e)
    found = [
        finding(kind, 0.91 if kind == "dead_units" else 0.87, (event.place,), {"share": share})
        for kind, (event, share) in worst.items()
    ]
    if zeros:
        found.insert(0, finding("zero_weights", 0.94, tuple(zeros), {"parameters": len(zeros)}))
    off = [event.off for event in inner if event.name in _RECTIFIERS and isfinite(event.off)]
    return Check(UNITS, f"at most {max(off, default=0.0):.0%} of the units of an activation are off", tuple(found))


def _zeros(e: Examination) -> list[str]:
    """Weights of zeros that get no gradient, outside the branches of residual blocks."""
    inside = {
        name for block in (e.map.walk() if e.map else ()) for layer in block.layers for name in layer.parameters
    }
    return [
        name
        for name, one in e.model.named_parameters()
        if one.dim() > 1 and name not in inside and not e.passed.gradients.get(name) and not bool(one.any())
    ]


def check_nonlinearity(e: Examination) -> Check:
    """Whether f(x + x') - f(x) - f(x') + f(0) is zero: several layers that are no more than one."""
    layers = len({event.place for event in e.passed.events if event.kind == "weight"})
    x = e.inputs
    if layers < 2 or not isinstance(x, Tensor) or not x.is_floating_point() or len(x) < 2:
        return Check(NONLINEAR, "fewer than two layers, or inputs that cannot be added", asked=False)
    half = len(x) // 2
    first, second = x[:half], x[half : 2 * half]
    both, one, other, zero = (e.evaluate(one) for one in (first + second, first, second, first * 0))
    size, rest = float((both - zero).abs().max()), float((both - one - other + zero).abs().max())
    if not isfinite(size) or size == 0 or rest > 1e-5 * size:
        return Check(NONLINEAR, f"f(x + x') - f(x) - f(x') + f(0) is up to {rest:.3g}")
    return Check(NONLINEAR, "the network is linear", (finding("no_nonlinearity", 0.9, (), {"layers": layers}),))


def check_first_layer(e: Examination) -> Check:
    """How much of what the first layer after an embedding reads differs between examples."""
    events = e.passed.events
    start = next((at for at, event in enumerate(events) if event.name == "embedding"), None)
    event = None
    if start is not None:
        event = next((one for one in events[start:] if isfinite(one.spread_in) and len(one.shape) == 3), None)
    if event is None:
        return Check(POSITIONS, "there is no embedding of tokens", asked=False)
    summary = f"{event.spread_in:.2%} of its variance is between examples at the same position"
    if event.spread_in >= BETWEEN:
        return Check(POSITIONS, summary)
    evidence = {"share": event.spread_in}
    return Check(POSITIONS, summary, (finding("dominating_positions", 0.85, (event.place,), evidence),))


def _weights(e: Examination) -> list[Event]:
    return [event for event in e.passed.events if event.kind == "weight"]


def _gradient_norm(event: Event) -> float:
    return (event.gradient or 0.0) * sqrt(event.output.numel())


def _is_zero(event: Event) -> bool:
    """Whether a layer's weights are all zero, as those of a classifier may be."""
    return not any(bool(one.any()) for one in event.parameters if one.dim() > 1)
