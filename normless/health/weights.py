"""Checks of a trained network's weights and buffers, without data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless.diagnosis.findings import Steps, check, finding
from normless.health.limits import ABOUT, CLOSED, EQUAL, NEAR_EPSILON
from normless.health.subject import Subject
from normless.residual.classify import NORMS

# γ is at zero below this share of the layer's RMS, and below this number.
_ZERO, _TINY = 1e-3, 1e-6
# Rows with a larger cosine are equal; fewer inputs or more rows are not compared.
_COSINE, _INPUTS, _ROWS = 0.9999, 4, 8192


@check("values", blocks=True)
def check_values(subject: Subject) -> Steps:
    """Look for weights and buffers that are not finite, and negative variances."""
    named = dict(chain(subject.model.named_parameters(), subject.model.named_buffers()))
    wrong = {name: int((~value.isfinite()).sum()) for name, value in named.items() if value.is_floating_point()}
    wrong = {name: count for name, count in wrong.items() if count}
    places = list(dict.fromkeys(name.rpartition(".")[0] for name in wrong))
    if wrong:
        name = next(iter(wrong))
        evidence = {"values": wrong[name], "of": named[name].numel(), "name": name, "tensors": len(wrong)}
        yield finding("trained_not_finite_state", 1.0, places, evidence)
    for path, norm in subject.norms.items():
        variance = getattr(norm, "running_var", None)
        negative = int((variance < 0).sum()) if isinstance(variance, Tensor) else 0
        if negative:
            yield finding("negative_variance", 0.99, (path,), {"channels": negative, "least": float(variance.min())})  # type: ignore[union-attr]
    return f"{len(named)} parameters and buffers"


@check("γ at zero")
def check_gamma(subject: Subject) -> Steps:
    """Look for channels that norms, and factors such as layer scale, multiply by zero."""
    shares: dict[str, tuple[float, int, float]] = {}
    for path, kind, gamma in _gammas(subject):
        values = gamma.detach().double().abs().flatten()
        if values.numel() < 2:
            continue
        size = float(values.square().mean().sqrt())
        least = max(_ZERO * size, _TINY if kind == "norm" else 0.0)
        closed = int((values <= least).sum())
        shares[path] = closed / values.numel(), closed, size
        subject.note(path, kind, gamma_zero=shares[path][0])
    found = sorted((path for path in shares if shares[path][0] >= CLOSED), key=lambda path: -shares[path][0])
    if found:
        share, channels, size = shares[found[0]]
        evidence = {
            "share": share,
            "limit": CLOSED,
            "channels": channels,
            "root_mean_square": size,
            "layers": len(found),
        }
        yield finding("closed_channels", 0.8 + 0.1 * share, found, evidence)
    worst = max((share for share, *_ in shares.values()), default=0.0)
    return f"{len(shares)} layers with γ, at most {worst:.1%} of a layer at zero"


def _gammas(subject: Subject) -> Iterator[tuple[str, str, Tensor]]:
    """Return path, kind and γ, with the offset of its formula, of norms and factors."""
    seen = set[str]()
    for layer in subject.map.layers() if subject.map else ():
        if layer.gamma is not None and layer.kind in ("norm", "scale") and layer.path not in seen:
            seen.add(layer.path)
            yield layer.path, layer.kind, subject.model.get_parameter(layer.gamma) + layer.offset
    for path, module in subject.model.named_modules():
        gamma = getattr(module, "weight", None)
        if isinstance(module, NORMS) and isinstance(gamma, Tensor) and path not in seen:
            yield path, "norm", gamma


@check("equal units")
def check_equal(subject: Subject) -> Steps:
    """Look for units whose weights are those of another unit, up to a factor."""
    shares: dict[str, tuple[float, int]] = {}
    for path, layer in subject.model.named_modules():
        if not isinstance(layer, nn.Linear | _ConvNd) or getattr(layer, "groups", 1) > 1:
            continue
        weight = layer.weight.detach()
        rows = weight.movedim(1, 0) if getattr(layer, "transposed", False) else weight
        rows = rows.flatten(1).float()
        if rows.shape[1] < _INPUTS or not 2 <= len(rows) <= _ROWS:
            continue
        sizes = rows.norm(dim=1)
        rows = rows[sizes > 0] / sizes[sizes > 0, None]
        equal = int(((rows @ rows.T).triu(1) > _COSINE).any(0).sum()) if len(rows) else 0
        shares[path] = equal / len(sizes), equal
        subject.note(path, "weight", equal=shares[path][0])
    found = sorted((path for path in shares if shares[path][0] >= EQUAL), key=lambda path: -shares[path][0])
    if found:
        share, units = shares[found[0]]
        evidence = {"share": share, "limit": EQUAL, "units": units, "cosine": _COSINE, "layers": len(found)}
        yield finding("equal_units", 0.5 + 0.1 * share, found, evidence)
    return f"{len(shares)} weights, at most {max((share for share, _ in shares.values()), default=0.0):.1%} equal"


def near_epsilon(subject: Subject) -> dict[str, float]:
    """Return for each norm with running statistics the share of variances that are comparable with ε."""
    shares = {}
    for path, norm in subject.norms.items():
        variance, eps = getattr(norm, "running_var", None), getattr(norm, "eps", 0.0)
        if isinstance(variance, Tensor) and variance.numel() and eps:
            shares[path] = float((variance < ABOUT * eps).double().mean())
    return shares


@check("divisors")
def check_divisors(subject: Subject) -> Steps:
    """Look for norms that divide by almost nothing: the variance of most of their statistics is comparable with ε."""
    divisors = subject.measured.divisors
    shares = near_epsilon(subject) | {path: seen.near / max(seen.count, 1) for path, seen in divisors.items()}
    for path, share in shares.items():
        subject.note(path, "norm", near_eps=share)
        if path in divisors:
            subject.note(path, "norm", spread=divisors[path].variation)
    found = sorted((path for path in shares if shares[path] >= NEAR_EPSILON), key=lambda path: -shares[path])
    if found:
        norm = subject.model.get_submodule(found[0])
        eps = divisors[found[0]].norm.eps if found[0] in divisors else float(getattr(norm, "eps", 0.0))
        evidence = {"share": shares[found[0]], "limit": NEAR_EPSILON, "epsilon": eps, "layers": len(found)}
        what = "tokens" if found[0] in divisors else "channels"
        yield finding("divides_by_epsilon", 0.72, found, evidence, what=what)
    return f"{len(shares)} norms, variances near ε in at most {max(shares.values(), default=0.0):.1%} of a norm's"
