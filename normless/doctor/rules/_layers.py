"""Checks of all layers, not only blocks: signal and gradient from first to last, and units that do not learn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import dropwhile
from math import isfinite, nan, sqrt

import torch
from torch import Tensor, nn

from normless.doctor._findings import FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._tape import LayerEvent
from normless.doctor.facts._tracer import reals
from normless.errors import InputsError
from normless.probes.dependence._mixing import without_zeros
from normless.state import preserve_random_state

# Without residual blocks, a single learning rate does not suit layers that differ by this factor.
FACTOR = 1e4
# Without skip paths, more layers than this train badly, also with norms.
DEEP = 25
SOME = 10
# The number of pairs of examples that is tried first.
ENOUGH = 2
# About forty ReLUs leave this share of the difference between two uncorrelated examples.
LEFT = 0.02
# Shares above which units are dead, values are flat, and rows of attention are certain.
DEAD, FLAT, CERTAIN = 0.9, 0.8, 0.5
# The least share of the variance at the first layer that is between examples.
BETWEEN = 0.01
_RECTIFIERS = ("relu", "relu6", "clamp_min", "threshold")


@check("signal of the layers", needs="pass")
def check_layers(exam: Examination) -> Steps:
    """Compare the differences between examples, and the sizes, at the first layer and at the last."""
    layers = exam.events("weight")
    if len(layers) < 2:
        raise NotAsked("there are fewer than two weight layers")
    first, last = layers[0], layers[-1]
    sizes = [sqrt(event.made.second) for event in layers]
    summary = f"√E[y²] from {sizes[0]:.3g} at {first.place} to {sizes[-1]:.3g} at {last.place}"
    wrong = next((event for event in layers if not isfinite(event.made.second)), None)
    grown = max(filter(isfinite, sizes), default=nan)
    # A signal that is not finite without growth is for the check of finite values.
    if exam.depth or (wrong is not None and not grown > FACTOR * sizes[0]):
        return summary
    evidence: dict[str, float] = {"layers": len(layers), "first": sizes[0], "last": sizes[-1]}
    # The outputs of a regression have the size of its targets.
    targets = [float(tensor.detach().double().square().mean()) for tensor in reals(exam.targets)]
    limit = max([FACTOR / 10, *(SOME * sqrt(size) for size in targets)])
    if wrong is not None or (sizes[-1] > FACTOR * max(min(sizes), 1e-30) and sizes[-1] > limit):
        yield finding("exploding_weights", (first.place, (wrong or last).place), evidence)
        return summary
    read = max((float(tensor.detach().double().std()) for tensor in reals(exam.inputs)), default=nan)
    # Weights of zero are usual in classifiers.
    inner = (event.made.deviation for event in layers if any(bool(matrix.any()) for matrix in event.matrices))
    apart = [*filter(isfinite, (read, *inner))]
    # Without norms, the examples become alike.
    has_norms = exam.map is not None and bool(exam.events("norm"))
    if len(apart) > 1 and max(apart) > FACTOR * apart[-1] > 0:
        evidence |= {"first": apart[0], "last": apart[-1], "factor": max(apart) / apart[-1]}
        yield finding("vanishing_signal", (first.place, last.place), evidence)
    elif has_norms and len(layers) >= DEEP and not any(call.plain == "cat" for call in exam.flow.calls):
        norms = [*filter(None, map(_gradient_norm, layers))]
        evidence = {"layers": len(layers), "ratio": max(norms) / min(norms) if norms else nan}
        yield finding("missing_skip", (first.place, last.place), evidence)
    # Without skip paths, 1 - c of two examples falls.
    known = [event for event in layers if isfinite(event.correlation)]
    if len(known) >= SOME and 1 - known[-1].correlation < LEFT * (1 - known[0].correlation):
        evidence = {"correlation_before": known[0].correlation, "correlation_after": known[-1].correlation}
        yield finding("alike_examples", [known[-1].place], evidence | {"layers": len(known)})
    return summary


@check("gradient of the layers", needs="pass")
def check_layer_gradients(exam: Examination) -> Steps:
    """Compare the norm of the gradient at the first layer with the largest one."""
    layers = [event for event in exam.events("weight") if event.gradient]
    if len(layers) < 2:
        raise NotAsked("the gradient reaches fewer than two weight layers")
    norms = [*map(_gradient_norm, layers)]
    where = (layers[0].place, layers[-1].place)
    evidence = {"layers": len(layers), "first": norms[0], "last": norms[-1]}
    if not exam.depth and all(map(isfinite, norms)):
        if norms[0] * FACTOR < max(norms):
            yield finding("vanishing_layer_gradient", where, evidence | {"ratio": max(norms) / norms[0]})
        elif norms[0] > FACTOR * norms[-1]:
            yield finding("exploding_layer_gradient", where, evidence | {"ratio": norms[0] / norms[-1]})
    return f"‖∂L/∂y‖ from {norms[0]:.3g} at {where[0]} to {norms[-1]:.3g} at {where[1]}"


def _gradient_norm(event: LayerEvent) -> float:
    return (event.gradient or 0.0) * sqrt(event.output.numel())


@check("units", needs="pass")
def check_units(exam: Examination) -> Steps:
    """Look for units that are always off, activations that are flat, and attention on single positions."""
    if zeros := _stuck_zeros(exam):
        yield finding("zero_weights", tuple(zeros), {"parameters": len(zeros)})
    inner = [event for event in exam.passed.events if event.output is not exam.passed.logits]
    rectified = [(event, event.off) for event in inner if event.call.plain in _RECTIFIERS and isfinite(event.off)]
    for kind, limit, shares in (
        ("dead_units", DEAD, rectified),
        ("saturated_units", FLAT, [(event, event.saturated) for event in inner]),
        ("saturated_attention", CERTAIN, [(event, event.peaked) for event in inner]),
    ):
        if over := [(event, share) for event, share in shares if share >= limit]:
            yield finding(kind, (_source(exam, over[0][0]),), {"share": max(share for _, share in over)})
    most = max((share for _, share in rectified), default=0.0)
    return f"at most {most:.0%} of the units of an activation are off"


def _source(exam: Examination, event: LayerEvent) -> str:
    """Return the place of an activation; of the layer that it reads, if no module contains the activation alone."""
    if event.call.path and not any(exam.model.get_submodule(event.call.path).children()):
        return event.place
    return next(event.call.sources()).origin().path or event.place


@check("equal units", needs="pass")
def check_equal_units(exam: Examination) -> Steps:
    """Look for layers with units of equal weights and equal gradients."""
    if alike := exam.passed.alike:
        shape = exam.model.get_parameter(alike[0]).shape
        evidence: FindingEvidence = {"layers": len(alike), "units": shape[0], "parameter": alike[0]}
        yield finding("identical_units", [name.rpartition(".")[0] for name in alike], evidence)
    return f"{len(alike)} layers with equal units"


def _stuck_zeros(exam: Examination) -> list[str]:
    """Return the weights that are zero and get no gradient because another factor of a product is zero.

    A zero weight or multiplier that gets a gradient opens the others in its first step. In residual branches, two
    weights of a module must be zero while its other parameters get a gradient.
    """
    gradients, parameters = exam.passed.gradients, dict(exam.model.named_parameters())
    factors = _factors(exam)
    zero = [name for name, parameter in parameters.items() if not bool(parameter.any())]
    if any(gradients.get(name) for name in zero if name in factors):
        return []
    closed = [name for name in zero if name in factors and parameters[name].dim() > 1 and not gradients.get(name)]
    blocks = exam.map.walk() if exam.map else ()
    inside = {name for block in blocks for layer in block.layers for name in layer.parameters}
    # A token or position at zero may be the input that a single zero weight waits for.
    is_open = any(gradients.get(name) for name in zero if parameters[name].dim() > 1)

    def is_stuck(name: str) -> bool:
        near = {own: value for own, value in gradients.items() if _outer(own) == _outer(name)}
        closed_near = [own for own in near if own in closed]
        opens = any(value for own, value in near.items() if own not in closed)
        return (not is_open and name not in inside) or (len(closed_near) > 1 and opens)

    return [*filter(is_stuck, closed), *_zero_attention(exam)]


def _factors(exam: Examination) -> set[str]:
    """Return the parameters that multiply others' results: weights of layers, and factors of products.

    Added terms, such as tokens and positions, do not open a product by growing.
    """
    layers = {id(matrix) for event in exam.passed.events for matrix in event.matrices}
    layers |= {id(event.parameters[0]) for event in exam.events("norm") if event.parameters}
    products = (call for call in exam.flow.calls if call.plain in ("mul", "matmul", "mm", "bmm", "einsum"))
    origins = (source.origin() for call in products for source in call.sources())
    read = {origin.name for origin in origins if origin.kind == "parameter"}
    return read | {name for name, parameter in exam.model.named_parameters() if id(parameter) in layers}


def _outer(name: str) -> str:
    """Return the module around the layer of a parameter."""
    return name.rpartition(".")[0].rpartition(".")[0]


def _zero_attention(exam: Examination) -> Iterator[str]:
    """Return the packed weights of torch's attentions whose queries and keys are zero, with their biases."""
    for path, module in exam.model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and isinstance(module.in_proj_weight, nn.Parameter):
            packed = (module.in_proj_weight, module.in_proj_bias)
            name = f"{path}.in_proj_weight".lstrip(".")
            is_zero = not any(bool(part[: 2 * module.embed_dim].any()) for part in packed if part is not None)
            yield from [name] if is_zero and exam.passed.gradients.get(name) else []


@check("nonlinearity", needs="pass")
def check_nonlinearity(exam: Examination) -> Steps:
    """Check whether f(x + x') - f(x) - f(x') + f(0) is zero, so that several layers compute no more than one."""
    layers, x = len({event.place for event in exam.events("weight")}), exam.inputs
    if layers < 2 or not isinstance(x, Tensor) or not x.is_floating_point() or x.is_sparse or len(x) < 2:
        raise NotAsked("there are fewer than two layers, or the inputs cannot be added")
    # Of an example of zeros f(x + x') is f(x), whatever f is.
    x = x[x.flatten(1).any(1)] if x.dim() > 1 else x
    half = len(x) // 2
    if not half:
        raise NotAsked("fewer than two examples differ from zero")
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


@check("input of the first layer", needs="pass")
def check_first_layer(exam: Examination) -> Steps:
    """Measure how much of the input of the first layer after an embedding differs between examples."""
    after = dropwhile(lambda event: event.call.name != "embedding", exam.passed.events)
    event = next((event for event in after if isfinite(event.read.spread) and len(event.call.reads[0][1]) == 3), None)
    if event is None:
        raise NotAsked("there is no embedding of tokens")
    if event.read.spread < BETWEEN:
        yield finding("dominating_positions", (event.place,), {"share": event.read.spread})
    return f"{event.read.spread:.2%} of its variance is between examples at the same position"
