"""Checks of what passes through a trained network on calibration batches."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

import torch
from torch import nn

from normless.diagnosis.findings import Finding, NotAsked, Steps, check, finding
from normless.health.limits import DEAD, FLAT, MASSIVE, MISFIT, OF_LAYERS, OF_TOKENS, OUTLIER, OVER_MEDIAN
from normless.health.subject import Subject, size_of
from normless.health.units import Units

# Statistics of fewer examples say little about the running ones.
_EXAMPLES, _IN_BATCH = 16, 8


@check("outputs", blocks=True)
def check_outputs(subject: Subject) -> Steps:
    """Look for the first result that is not finite."""
    wrong = subject.measured.meter.wrong
    if wrong is not None:
        place, line = wrong
        evidence = {"line": str(line)} if line else {}
        yield finding("trained_not_finite", 0.98, (place,), evidence)
    return f"{len(subject.batches)} batches with {subject.examples} examples"


@check("running statistics")
def check_fit(subject: Subject) -> Steps:
    """Compare running statistics with those of the data, where batch norms normalize by the batch as in training."""
    if not subject.norms:
        raise NotAsked("there are no running statistics")
    fresh = [path for path, norm in subject.norms.items() if _is_fresh(norm)]
    if fresh:
        yield finding("fresh_statistics", 0.96, fresh, {"norms": len(fresh)})
    if subject.examples < _EXAMPLES or all(size_of(inputs) < _IN_BATCH for inputs, _ in subject.batches):
        raise NotAsked(f"give {_EXAMPLES} examples or more, in batches of {_IN_BATCH} or more")
    fits = {path: fit for path, fit in subject.fits.items() if path not in fresh}
    nats = {path: float(fit.misfit().mean()) for path, fit in fits.items()}
    for path, misfit in nats.items():
        subject.note(path, "norm", misfit=misfit)
    off = [path for path, misfit in nats.items() if misfit >= MISFIT]
    if off:
        yield _unfitting(subject, off, nats[off[0]])
    return f"{len(nats)} batch norms, at most {max(nats.values(), default=0.0):.2g} nats per channel from the data"


def _is_fresh(norm: nn.Module) -> bool:
    """Whether the statistics are those before training."""
    mean, variance = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
    count = getattr(norm, "num_batches_tracked", None)
    if not isinstance(mean, torch.Tensor) or not isinstance(variance, torch.Tensor):
        return False
    is_initial = not bool(mean.any()) and bool((variance == 1).all())
    return (is_initial and (count is None or not int(count))) or (is_initial and mean.numel() > 1)


def _unfitting(subject: Subject, off: list[str], misfit: float) -> Finding:
    """Return the finding about the first norm in the order of execution that is off; the inputs may be the cause."""
    fit = subject.fits[off[0]]
    m, v, _, _ = fit.data()
    shift = float(((m - fit.mean).abs() / (v + fit.eps).sqrt()).median())
    ratio = float(((v + fit.eps) / (fit.variance + fit.eps)).median())
    evidence: dict[str, float | int | str] = {
        "nats": misfit,
        "limit": MISFIT,
        "shift": shift,
        "variance_ratio": ratio,
    }
    evidence |= {"examples": subject.examples, "norms": len(off)}
    layer = subject.map.by_path.get(off[0]) if subject.map else None
    before = layer.input if layer is not None and layer.input is not None else None
    is_first = off[0] == next(iter(subject.fits)) and before is not None and subject.map is not None
    is_first = is_first and subject.map.by_path[before].input is None if subject.map and before else False
    if is_first and before is not None and ":" not in before:
        affine = fit.affine(subject.model.get_submodule(before))
        if affine is not None:
            evidence |= {"scale": affine[0], "offset": affine[1]}
            return finding("other_preprocessing", 0.95, off, evidence)
    return finding("unfitting_statistics", 0.94, off, evidence)


@check("units")
def check_units(subject: Subject) -> Steps:
    """Look for units that never vary, and for activations whose values are nearly all flat."""
    dead: dict[str, tuple[float, Units]] = {}
    flat: dict[str, tuple[float, Units]] = {}
    inner = subject.measured.meter.inner()
    for units in inner:
        share = float(units.constant.double().mean())
        if share >= dead.get(units.layer, (-1.0, units))[0]:
            dead[units.layer] = share, units
        if not units.gates and units.flat / units.values >= flat.get(units.layer, (-1.0, units))[0]:
            flat[units.layer] = units.flat / units.values, units
    for layer in dict.fromkeys(units.layer for units in inner):
        subject.note(layer, "activation", dead=dead[layer][0], **({"flat": flat[layer][0]} if layer in flat else {}))
    if found := _worst(dead, DEAD):
        share, units = dead[found[0]]
        evidence = {"share": share, "limit": DEAD, "units": int(units.constant.sum()), "of": len(units.low)}
        evidence |= {"examples": subject.examples, "layers": len(found)}
        yield finding("trained_dead_units", 0.7 + 0.1 * share, found, {**evidence, "activation": units.activation})
    if found := _worst(flat, FLAT):
        share, units = flat[found[0]]
        evidence = {"share": share, "limit": FLAT, "layers": len(found)}
        yield finding(
            "trained_saturated_units", 0.6 + 0.1 * share, found, {**evidence, "activation": units.activation}
        )
    worst = max((share for share, _ in dead.values()), default=0.0)
    return f"{len(dead)} layers with activations, at most {worst:.1%} of a layer's units never vary"


def _worst(shares: dict[str, tuple[float, Units]], limit: float) -> list[str]:
    """Return the layers with a share from the limit, the largest first."""
    return sorted((layer for layer in shares if shares[layer][0] >= limit), key=lambda layer: -shares[layer][0])


@check("outliers")
def check_outliers(subject: Subject) -> Steps:
    """Look for massive activations after residual sums, and for outlier features in the outputs of norms."""
    sums, features = subject.measured.sums.seen, subject.measured.features.seen
    if not sums and not features:
        raise NotAsked("there is no residual sum and no norm over features")
    massive = {}
    for name, seen in sums.items():
        ratio = seen.largest / seen.median if seen.median > 0 else float("nan")
        subject.note(name, "block", ratio=seen.ratio, largest=seen.largest, over_median=ratio)
        if seen.largest > MASSIVE and ratio >= OVER_MEDIAN:
            massive[name] = seen
    if massive:
        first, seen = next(iter(massive.items()))
        evidence: dict[str, float | int | str] = {"largest": seen.largest, "median": seen.median}
        evidence |= {"channel": seen.channel, "token": seen.position, "blocks": len(massive)}
        at = f"channel {seen.channel}" + (f" of token {seen.position}" if seen.position >= 0 else "")
        yield finding("massive_activations", 0.66, list(massive), evidence, at=at)
    widths = {len(counts) for _, counts in features.values()}
    for width in sorted(widths):
        layers = {path: seen for path, seen in features.items() if len(seen[1]) == width}
        shares = torch.stack([counts.cpu() / max(tokens, 1) for tokens, counts in layers.values()])
        of_layers = (shares >= OF_TOKENS).double().mean(0)
        found = (of_layers >= OF_LAYERS).nonzero().flatten().tolist() if len(layers) > 1 else []
        if found:
            most = max(found, key=lambda channel: float(of_layers[channel]))
            places = [path for path, share in zip(layers, shares[:, most], strict=True) if share >= OF_TOKENS]
            evidence = {"channels": len(found), "channel": most, "share_of_layers": float(of_layers[most])}
            evidence |= {"share_of_tokens": float(shares[:, most].max()), "magnitude": OUTLIER}
            yield finding("outlier_features", 0.64, places, evidence)
    return f"{len(sums)} residual sums, {len(features)} norms over features; {_largest(s.largest for s in sums.values())}"


def _largest(values: Iterable[float]) -> str:
    known = [value for value in values if isfinite(value)]
    return f"the largest magnitude after a sum is {max(known):.3g}" if known else "no sum was seen"
