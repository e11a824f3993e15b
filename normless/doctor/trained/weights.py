"""Checks of a trained network's weights and buffers, without data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import inf

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless.doctor.findings import Evidence, Steps, check, finding
from normless.doctor.trained.graded import Share, graded, most
from normless.doctor.trained.limits import ABOUT, CLOSED, EQUAL, NEAR_EPSILON
from normless.doctor.trained.subject import Subject
from normless.residual.classify import NORMS

# γ is at zero below this share of the median of those that are not, and in norms below this number.
_ZERO, _TINY = 1e-3, 1e-6
# Rows with a larger cosine are equal; fewer inputs or more rows are not compared.
_COSINE, _INPUTS, _ROWS = 0.99999, 4, 8192


@check("values", blocks=True)
def check_values(subject: Subject) -> Steps:
    """Look for weights and buffers that are not finite, and negative variances."""
    parameters = dict(subject.model.named_parameters())
    named = dict(chain(subject.model.named_parameters(), subject.model.named_buffers()))
    wrong = {
        name: count
        for name, value in named.items()
        if value.is_floating_point()
        and (name in parameters or not _is_meant(value))
        and (count := int((~value.isfinite()).sum()))
    }
    places = list(dict.fromkeys(name.rpartition(".")[0] for name in wrong))
    if wrong:
        name = next(iter(wrong))
        evidence: Evidence = {"values": wrong[name], "of": named[name].numel(), "name": name, "tensors": len(wrong)}
        yield finding("trained_not_finite_state", places, evidence)
    for path, norm in subject.norms.items():
        variance = getattr(norm, "running_var", None)
        negative = int((variance < 0).sum()) if isinstance(variance, Tensor) else 0
        if negative:
            yield finding("negative_variance", (path,), {"channels": negative, "least": float(variance.min())})  # type: ignore[union-attr]
    return f"{len(named)} parameters and buffers"


def _is_meant(value: Tensor) -> bool:
    """Whether a buffer may be infinite on purpose: a mask of 0, 1 and -∞, or extremes before the first value."""
    return bool(value.isinf().all()) or bool(((value == 0) | (value == 1) | (value == -inf)).all())


@check("γ at zero")
def check_gamma(subject: Subject) -> Steps:
    """Look for channels that norms, and factors such as layer scale, multiply by zero."""
    shares: dict[str, Share] = {}
    for path, kind, gamma in _gammas(subject):
        values = gamma.detach().double().abs().flatten()
        if values.numel() < 2:
            continue
        least = _TINY if kind == "norm" else 0.0
        alive = values[values > least]
        size = float(alive.median()) if alive.numel() else 0.0
        closed = int((values <= max(_ZERO * size, least)).sum())
        shares[path] = Share(closed / values.numel(), closed, {"of": values.numel(), "median_of_others": size})
        subject.note(path, kind, gamma_zero=shares[path].share)
    yield from graded("closed_channels", shares, CLOSED)
    return f"{len(shares)} layers with γ, at most {most(shares)} of a layer at zero"


def _gammas(subject: Subject) -> Iterator[tuple[str, str, Tensor]]:
    """Return path, kind and γ, with the offset of its formula, of norms and factors."""
    seen, named = set[str](), dict(subject.model.named_parameters(remove_duplicate=False))
    for layer in subject.map.layers() if subject.map else ():
        if layer.gamma in named and layer.kind in ("norm", "scale") and layer.path not in seen:
            seen.add(layer.path)
            yield layer.path, layer.kind, named[layer.gamma] + layer.offset
    for path, module in subject.model.named_modules():
        gamma = getattr(module, "weight", None)
        if isinstance(module, NORMS) and isinstance(gamma, Tensor) and path not in seen:
            yield path, "norm", gamma


@check("equal units")
def check_equal(subject: Subject) -> Steps:
    """Look for units whose weights are those of another unit, up to a factor."""
    shares: dict[str, Share] = {}
    for path, rows in _rows(subject.model):
        if rows.shape[1] < _INPUTS or not 2 <= len(rows) <= _ROWS:
            continue
        count, sizes = len(rows), rows.norm(dim=1)
        rows = rows[sizes > 0] / sizes[sizes > 0, None]
        equal = int(((rows @ rows.T).triu(1) > _COSINE).any(0).sum()) if len(rows) else 0
        shares[path] = Share(equal / count, equal, {"of": count, "cosine": _COSINE})
        subject.note(path, "weight", equal=shares[path].share)
    yield from graded("equal_units", shares, EQUAL)
    return f"{len(shares)} weights, at most {most(shares)} of a layer's units equal to others"


def _rows(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return path and weights (units, inputs) of layers whose units read the same inputs."""
    for path, layer in model.named_modules():
        # The linear layer of transformers' GPT-2 has the transposed weight.
        is_turned = getattr(layer, "transposed", False) or type(layer).__name__ == "Conv1D"
        if (is_turned or isinstance(layer, nn.Linear | _ConvNd)) and getattr(layer, "groups", 1) == 1:
            weight = layer.weight.detach()
            yield path, (weight.movedim(1, 0) if is_turned else weight).flatten(1).float()
        elif isinstance(layer, nn.MultiheadAttention) and isinstance(layer.in_proj_weight, Tensor):
            yield path, layer.in_proj_weight.detach().float()


@check("divisors")
def check_divisors(subject: Subject) -> Steps:
    """Look for norms that divide by almost nothing: the variance of most of their statistics is comparable with ε."""
    shares: dict[str, Share] = {}
    for path, norm in subject.norms.items():
        variance, eps = getattr(norm, "running_var", None), float(getattr(norm, "eps", 0.0))
        if isinstance(variance, Tensor) and variance.numel():
            near = int((variance < ABOUT * eps).sum())
            shares[path] = Share(near / variance.numel(), near, {"of": variance.numel(), "epsilon": eps})
    for path, seen in subject.measured.divisors.items():
        shares[path] = Share(
            seen.near / max(seen.varied, 1), seen.near, {"of": seen.varied, "epsilon": seen.norm.eps}
        )
        subject.note(path, "norm", spread=seen.variation)
    for path, (near, count, eps) in subject.measured.meter.near.items():
        if path not in shares:
            shares[path] = Share(near / max(count, 1), near, {"of": count, "epsilon": eps})
    for path, share in shares.items():
        subject.note(path, "norm", near_eps=share.share)
    yield from graded("divides_by_epsilon", shares, NEAR_EPSILON)
    return f"{len(shares)} norms, variances near ε in at most {most(shares)} of a norm's statistics"
