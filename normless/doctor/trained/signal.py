"""Checks of what passes through a trained network on calibration batches."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan

import torch
from torch import nn

from normless.doctor.facts.batches import size_of
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding
from normless.doctor.trained.graded import Share, graded, most
from normless.doctor.trained.limits import (
    DEAD,
    FLAT,
    MASSIVE,
    MISFIT,
    OF_LAYERS,
    OF_TOKENS,
    OUTLIER,
    OVER_MEDIAN,
    PEAKED,
)
from normless.doctor.trained.streams import Sum
from normless.doctor.trained.subject import UNFIT, Subject

# Statistics of fewer examples say little about the running ones.
_EXAMPLES, _IN_BATCH = 16, 8


@check("outputs", blocks=True)
def check_outputs(subject: Subject) -> Steps:
    """Look for the first result that is not finite."""
    wrong = subject.measured.meter.wrong
    if wrong is not None:
        place, line = wrong
        evidence = {"line": str(line)} if line else {}
        yield finding("trained_not_finite", (place,), evidence)
    return f"{len(subject.batches)} batches with {subject.examples} examples"


@check("running statistics")
def check_fit(subject: Subject) -> Steps:
    """Compare running statistics with those of the data, where batch norms normalize by the batch as in training."""
    if not subject.norms:
        raise NotAsked("there are no running statistics")
    # A norm that does not run, such as that of another domain, may be fresh.
    fresh = [path for path in subject.fits if _is_fresh(subject.norms[path])]
    subject.unfit = min(fresh, key=subject.at, default=None)
    if fresh:
        yield finding("fresh_statistics", fresh, {"norms": len(fresh)})
    if subject.examples < _EXAMPLES or all(size_of(inputs) < _IN_BATCH for inputs, _ in subject.batches):
        raise NotAsked(f"give {_EXAMPLES} examples or more, in batches of {_IN_BATCH} or more")
    fits = {path: fit for path, fit in subject.fits.items() if path not in fresh}
    nats = {path: float(fit.misfit().mean()) for path, fit in fits.items()}
    for path, misfit in nats.items():
        subject.note(path, "norm", misfit=misfit)
    off = [path for path, misfit in nats.items() if misfit >= MISFIT]
    subject.unfit = min([*off, *fresh], key=subject.at, default=None)
    if off:
        yield _unfitting(subject, off, nats[off[0]])
    return f"{len(nats)} batch norms, at most {max(nats.values(), default=0.0):.2g} nats per channel from the data"


def _is_fresh(norm: nn.Module) -> bool:
    """Whether the statistics are those before training."""
    mean, variance = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
    if not isinstance(mean, torch.Tensor) or not isinstance(variance, torch.Tensor):
        return False
    return not bool(mean.any()) and bool((variance == 1).all())


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
    layer = _first_layer(subject, off[0])
    affine = fit.affine(layer) if layer is not None else None
    if affine is not None:
        evidence |= {"scale": affine[0], "offset": affine[1]}
        return finding("other_preprocessing", off, evidence)
    return finding("unfitting_statistics", off, evidence)


def _first_layer(subject: Subject, norm: str) -> nn.Module | None:
    """Return the layer that reads the network's inputs and whose output alone the norm reads, or None."""
    layer = subject.map.by_path.get(norm) if subject.map is not None else None
    if subject.map is None or layer is None or layer.input is None or ":" in layer.input:
        return None
    before = subject.map.by_path.get(layer.input)
    is_first = before is not None and before.input is None and before.path in subject.map.stem
    return subject.model.get_submodule(layer.input) if is_first else None


@check("units")
def check_units(subject: Subject) -> Steps:
    """Look for units that never vary, and for activations whose values are nearly all flat."""
    dead, flat = dict[str, Share](), dict[str, Share]()
    for units in subject.measured.meter.before_output():
        if not subject.judges(units.layer):
            continue
        constant, words = int(units.constant.sum()), {"activation": units.activation}
        share = Share(
            constant / len(units.low), constant, {"of": len(units.low), "examples": subject.examples, **words}
        )
        dead[units.layer] = max(share, dead.get(units.layer, share), key=lambda one: one.share)
        if not units.gates:
            share = Share(units.flat / units.values, 0, words)
            flat[units.layer] = max(share, flat.get(units.layer, share), key=lambda one: one.share)
    for layer, share in dead.items():
        subject.note(layer, "activation", dead=share.share)
    for layer, share in flat.items():
        subject.note(layer, "activation", flat=share.share)
    yield from graded("trained_dead_units", dead, DEAD)
    yield from graded("trained_saturated_units", flat, FLAT)
    return f"{len(dead)} layers with activations, at most {most(dead)} of a layer's units never vary"


@check("attention")
def check_attention(subject: Subject) -> Steps:
    """Look for attentions with all weight on one position; heads that look at the first token may rest there."""
    attentions = {place: seen for place, seen in subject.measured.meter.attentions.items() if subject.judges(place)}
    if not attentions:
        raise NotAsked(UNFIT if subject.measured.meter.attentions else "there is no attention")
    shares, single = dict[str, Share](), dict[str, Share]()
    for place, seen in attentions.items():
        rows = max(seen.rows, 1)
        by_head, share = seen.peaked / rows, float(seen.peaked.double().mean()) / rows
        subject.note(place, "attention", peaked=share)
        shares[place] = Share(share, 0, {"heads": len(by_head)})
        apart = [head for head in range(len(by_head)) if by_head[head] >= PEAKED and seen.first[head] < rows * PEAKED]
        if apart and share < PEAKED:
            single[place] = Share(float(by_head[apart[0]]), 0, {"heads": len(apart), "head": apart[0]})
    yield from graded("trained_saturated_attention", shares, PEAKED)
    yield from graded("saturated_heads", single, PEAKED)
    return f"{len(attentions)} attentions, at most {most(shares)} of the rows on one position"


@check("outliers")
def check_outliers(subject: Subject) -> Steps:
    """Look for massive activations after residual sums, and for outlier features there and after norms."""
    sums = {name: seen for name, seen in subject.measured.sums.seen.items() if subject.judges(subject.place(name))}
    norms = {path: seen for path, seen in subject.measured.divisors.items() if seen.features is not None}
    if not sums and not norms:
        raise NotAsked(UNFIT if subject.measured.sums.seen else "there is no residual sum and no norm over features")
    massive: dict[str, Sum] = {}
    for name, seen in sums.items():
        ratio = seen.largest / seen.median if seen.median > 0 else nan
        subject.note(name, "block", ratio=seen.ratio, largest=seen.largest, over_median=ratio)
        if seen.largest > MASSIVE and ratio >= OVER_MEDIAN:
            massive.setdefault(subject.place(name), seen)
    if massive:
        seen = next(iter(massive.values()))
        evidence: dict[str, float | int | str] = {"largest": seen.largest, "median": seen.median}
        evidence |= {"channel": seen.channel, "token": seen.position, "blocks": len(massive)}
        at = f"channel {seen.channel}" + (f" of token {seen.position}" if seen.position >= 0 else "")
        yield finding("massive_activations", list(massive), evidence, at=at)
    streams = [(subject.place(name), seen.features) for name, seen in sums.items()]
    after_norms = [(path, seen.features) for path, seen in norms.items()]
    yield from [*_features(streams), *_features(after_norms)][:1]
    values = [seen.largest for seen in sums.values()]
    largest = f"the largest magnitude after a sum is {max(values):.3g}" if values else "no sum was seen"
    return f"{len(sums)} residual sums, {len(norms)} norms over features; {largest}"


def _features(places: list[tuple[str, tuple[int, torch.Tensor] | None]]) -> Iterator[Finding]:
    """Yield the outlier features of layers of one width, from the tokens and counts of each."""
    known = [(place, *features) for place, features in places if features is not None]
    for width in sorted({len(counts) for *_, counts in known}):
        layers = [(place, counts.cpu() / max(tokens, 1)) for place, tokens, counts in known if len(counts) == width]
        shares = torch.stack([share for _, share in layers])
        of_layers = (shares >= OF_TOKENS).double().mean(0)
        found = (of_layers >= OF_LAYERS).nonzero().flatten().tolist() if len(layers) > 1 else []
        if found:
            top = max(found, key=lambda channel: (float(of_layers[channel]), float(shares[:, channel].mean())))
            where = dict.fromkeys(place for place, share in layers if share[top] >= OF_TOKENS)
            evidence = {"channels": len(found), "channel": top, "share_of_layers": float(of_layers[top])}
            evidence |= {"share_of_tokens": float(shares[:, top].max()), "magnitude": OUTLIER}
            yield finding("outlier_features", list(where), evidence)
