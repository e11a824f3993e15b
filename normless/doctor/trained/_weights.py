"""Checks of a trained network's parameters by themselves: of zero, equal, as they were drawn, or far too large."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import sqrt
from statistics import median

import torch
from torch import Tensor, nn

from normless.doctor._findings import NotAsked, Steps, check, finding
from normless.doctor.trained._subject import TrainedSubject
from normless.residual._classify import NORMS

# Fewer weights have no statistics; what is drawn lies within so many standard errors of its law.
_LEAST, _ERRORS = 100, 4.0
# So many weights are compared with other bounds than that of torch's layers.
_MANY = 1000
# An embedding with more rows is not that of token types.
_TYPES = 2
# Weights so many times as large as those of the median layer, for their number of inputs, are a finding.
_LARGE = 100.0


@check("parameters")
def check_parameters(subject: TrainedSubject) -> Steps:
    """Look for weights that loading or training left as no training leaves them, in modules that run."""
    weights = dict(_weights(subject))
    if not weights:
        raise NotAsked("the network has no weights")
    equal = {path: weight for path, weight in weights.items() if bool((weight == weight.flatten()[0]).all())}
    zero = [path for path, weight in equal.items() if not bool(weight.any())]
    adapters, modules = _adapters(zero, weights), {path: subject.model.get_submodule(path) for path in weights}
    frozen = _frozen(modules)
    # The embedding of token types adds nothing where all tokens are of one type, as in RoBERTa.
    types = {path for path in zero if isinstance(modules[path], nn.Embedding) and len(weights[path]) <= _TYPES}
    advised = [path for path in zero if path in adapters or path in frozen or path in types]
    for paths, is_advice in ((advised, True), ([path for path in zero if path not in advised], False)):
        if paths:
            yield finding("trained_zero_weights", paths, {"layers": len(paths), "of": len(weights)}, advice=is_advice)
    if same := [path for path in equal if path not in zero and path not in frozen]:
        value = float(weights[same[0]].flatten()[0])
        yield finding("constant_weights", same, {"value": value, "layers": len(same), "of": len(weights)})
    apart = {*equal, *adapters.values()}
    judged = {path: weight for path, weight in weights.items() if path not in apart and len(weight) > 1}
    candidates = [path for path in judged if path not in frozen]
    fresh = {path: law for path in candidates if (law := _law(modules[path], judged[path]))}
    # A network that was not trained at all is not one with fresh layers.
    found = [*fresh] if 2 * len(fresh) < sum(weight.numel() >= _LEAST for weight in judged.values()) else []
    where = found + _fresh_norms(subject)
    if where:
        law = fresh.get(where[0], "factors of 1 and shifts of 0")
        yield finding("fresh_weights", where, {"layers": len(where), "of": len(weights)}, law=law)
    sizes = {path: float(weight.square().mean() * weight[0].numel()) ** 0.5 for path, weight in judged.items()}
    typical = median(sizes.values()) if sizes else 0.0
    divided = {layer.input for layer in subject.map.layers() if layer.kind == "norm"} if subject.map else set()
    if large := [path for path in sizes if sizes[path] > _LARGE * typical > 0 and path not in divided]:
        ratio = sizes[large[0]] / typical
        yield finding("outlying_weights", large, {"ratio": ratio, "limit": _LARGE, "layers": len(large)})
    return f"{len(weights)} weights, {len(zero)} of zero, {len(fresh)} as they were drawn"


def _frozen(modules: dict[str, nn.Module]) -> set[str]:
    """Return the layers that are frozen beside others that are not: they were left as they are on purpose."""
    frozen = {path for path, module in modules.items() if not _is_trained(module)}
    return frozen if len(frozen) < len(modules) else set()


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def _weights(subject: TrainedSubject) -> Iterator[tuple[str, Tensor]]:
    """Return path and weight of the modules that run and have a weight of two axes or more; not of norms."""
    for path, module in subject.model.named_modules():
        parameters = {name: value for name, value in module._parameters.items() if value is not None}
        weight = parameters.get("weight", parameters.get("in_proj_weight"))
        has_axes = weight is not None and weight.dim() > 1 and weight.numel() > 1
        if weight is not None and has_axes and not isinstance(module, NORMS) and subject.runs(path):
            yield path, weight.detach().float()


def _adapters(zero: list[str], weights: dict[str, Tensor]) -> dict[str, str]:
    """Return the layers of zeros that expand what the layer before compressed, as LoRA's at the start, with that."""
    found: dict[str, str] = {}
    for before, path in pairwise(weights):
        rank, first = weights[path][0].numel(), weights[before]
        if path in zero and rank == len(first) and 2 * rank <= min(len(weights[path]), first[0].numel()):
            found[path] = before
    return found


def _law(module: nn.Module, weight: Tensor) -> str:
    """Return the law by which a layer's weights and biases were drawn, or an empty text.

    Weights that were trained leave the bounds of a uniform law. Those of a normal law are told by biases of exactly
    zero, and by singular values without one beyond the edge of random matrices.
    """
    own = module._parameters
    bias = own.get("bias", own.get("in_proj_bias"))
    if weight.numel() < _LEAST:
        return ""
    count, fan_in, fan_out = weight.numel(), weight[0].numel(), len(weight) * weight[0, 0].numel()
    top, deviation = float(weight.abs().max()), float(weight.square().mean().sqrt())
    bounds = [sqrt(1 / fan_in), sqrt(6 / (fan_in + fan_out)), sqrt(6 / fan_in), sqrt(3 / fan_in)]
    # Few weights that were trained may end within a larger bound by chance.
    for bound in bounds if count >= _MANY else bounds[:1]:
        near = bound * (1 - 10 / count) <= top <= bound * (1 + 1e-5)
        if near and abs(deviation * sqrt(3) / bound - 1) < _ERRORS * sqrt(0.2 / count):
            is_drawn = (
                bias is None or not bool(bias.any()) or float(bias.detach().abs().max()) <= bounds[0] * (1 + 1e-5)
            )
            return f"uniform within ±{bound:.3g}" if is_drawn else ""
    deviations = [sqrt(2 / fan_in), sqrt(2 / fan_out), sqrt(1 / fan_in), sqrt(2 / (fan_in + fan_out)), 0.02, 0.01]
    if bias is None or bool(bias.any()) or top > 6 * deviation:
        return ""
    for law in deviations:
        if abs(deviation / law - 1) < _ERRORS / sqrt(2 * count) and _is_random(weight.flatten(1) / deviation):
            return f"normal with deviation {law:.3g}, biases 0"
    return ""


def _is_random(rows: Tensor) -> bool:
    """Whether no singular value of a matrix with elements of deviation 1 is beyond √m + √n by more than sampling."""
    rows = rows[:: -(-rows.shape[0] // 256), :: -(-rows.shape[1] // 1024)]
    top = float(torch.linalg.matrix_norm(rows.double(), 2))
    edge = sqrt(rows.shape[0]) + sqrt(rows.shape[1])
    return bool(top < edge * (1 + 2 / float(min(rows.shape)) ** (2 / 3)))


def _fresh_norms(subject: TrainedSubject) -> list[str]:
    """Return the norms with γ = 1 and β = 0 beside trained ones of the same class; frozen norms are meant."""
    fresh: dict[type, dict[str, bool]] = {}
    for path, module in subject.model.named_modules():
        own = {name: value for name, value in module._parameters.items() if value is not None}
        gamma, beta = own.get("weight"), own.get("bias")
        if isinstance(module, NORMS) and gamma is not None and gamma.requires_grad and subject.runs(path):
            is_fresh = bool((gamma == 1).all()) and (beta is None or not bool(beta.any()))
            fresh.setdefault(type(module), {})[path] = is_fresh
    return [
        path for norms in fresh.values() if not all(norms.values()) for path, is_fresh in norms.items() if is_fresh
    ]
