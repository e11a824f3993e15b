"""Checks of a trained network's weights, buffers and signal; see `limits` for the limits of shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf, isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._batches import size_of
from normless.doctor.facts._tracer import tensors
from normless.doctor.trained import _limits as limits
from normless.doctor.trained._loss import mean_loss, standing
from normless.doctor.trained._preprocessing import undone
from normless.doctor.trained._shares import Share, of_shares
from normless.doctor.trained._streams import Features, MeasuredSum
from normless.doctor.trained._subject import UNFIT, TrainedSubject
from normless.residual._classify import NORMS
from normless.state import running

# γ is at zero below this share of the median of those that are not, and in norms below this number.
_ZERO, _TINY = 1e-3, 1e-6
# Rows with a larger cosine are equal; fewer inputs or more rows are not compared.
_COSINE, _INPUTS, _ROWS = 0.99999, 4, 8192
# Statistics of fewer examples say little about the running ones.
_EXAMPLES, _IN_BATCH = 16, 8
# Results that differ by less than this share of their size are the same.
_SAME = 1e-6


@check("values", blocks=True)
def check_values(subject: TrainedSubject) -> Steps:
    """Look for weights and buffers that are not finite, and negative variances."""
    parameters = dict(subject.model.named_parameters())
    named = dict(chain(parameters.items(), subject.model.named_buffers()))
    wrong = {
        name: count
        for name, value in named.items()
        if value.is_floating_point()
        and (name in parameters or not _is_meant(value))
        and (count := int((~value.isfinite()).sum()))
    }
    if wrong:
        name = next(iter(wrong))
        evidence: FindingEvidence = {
            "values": wrong[name],
            "of": named[name].numel(),
            "name": name,
            "tensors": len(wrong),
        }
        yield finding("trained_not_finite_state", [*dict.fromkeys(_owner(name) for name in wrong)], evidence)
    for path, variance in _variances(subject):
        if negative := int((variance < 0).sum()):
            yield finding("negative_variance", (path,), {"channels": negative, "least": float(variance.min())})
    return f"{len(named)} parameters and buffers"


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _variances(subject: TrainedSubject) -> Iterator[tuple[str, Tensor]]:
    """Return path and running variance of the norms that have one."""
    variances = ((path, getattr(norm, "running_var", None)) for path, norm in subject.norms.items())
    return ((path, variance) for path, variance in variances if isinstance(variance, Tensor))


def _is_meant(value: Tensor) -> bool:
    """Whether a buffer may be infinite on purpose: a mask of 0, 1 and -∞, or extremes before the first value."""
    return bool(value.isinf().all()) or bool(((value == 0) | (value == 1) | (value == -inf)).all())


@check("outputs", blocks=True)
def check_outputs(subject: TrainedSubject) -> Steps:
    """Look for the first result that is not finite."""
    if (wrong := subject.measured.meter.wrong) is not None:
        place, line = wrong
        yield finding("trained_not_finite", (place,), {"line": str(line)} if line else {})
    return f"{len(subject.batches)} batches with {subject.examples} examples"


@check("loss")
def check_loss(subject: TrainedSubject) -> Steps:
    """Look for a loss that is no better than that of outputs which do not depend on the inputs."""
    loss, constant, guessing = standing(subject.measured.losses)
    if not isfinite(loss):
        raise NotAsked("there is no loss: give batches of (inputs, targets) and loss=")
    words = f"the loss is {loss:.4g}"
    words += f"; of the best constant outputs {constant:.4g}" if isfinite(constant) else ""
    words += f"; of guessing (outputs of zero) {guessing:.4g}" if isfinite(guessing) else ""
    bars = {"constant": constant, "guessing": guessing}
    known = {name: bar for name, bar in bars.items() if isfinite(bar)}
    subject.guesses = bool(known) and loss >= min(known.values())
    if subject.guesses:
        bar = "the best constant outputs" if "constant" in known else "outputs of zero"
        evidence = {"loss": loss, **known, "examples": subject.examples}
        yield finding("no_better_than_guessing", (), evidence, bar=bar, lowest=min(known.values()))
    return words if known else f"{words}; what guessing has is not known"


@check("independence")
def check_independence(subject: TrainedSubject) -> Steps:
    """Look for outputs that are the same for all inputs, and the first module whose results are."""
    several = [batch for batch in subject.measured.losses if size_of(batch.inputs) > 1]
    known = [logits for batch in several if (logits := batch.logits) is not None and logits.dim() and len(logits) > 1]
    if not several or len(known) < len(several) or not all(logits.numel() for logits in known):
        raise NotAsked("give batches of two examples or more, and a network whose outputs have an axis of examples")
    inputs = several[0].inputs
    varied = [float(_variation(logits)) for logits in known]
    given = [float(_variation(value)) for value in tensors(inputs) if value.numel() and not value.is_complex()]
    if max(varied) < _SAME < max(given, default=0.0):
        same: dict[str, bool] = {}

        def see(path: str, result: Any) -> None:
            if isinstance(result, Tensor) and result.dim() > 1:
                same.pop(path, None)
                same[path] = float(_variation(result)) < _SAME

        with running(subject.model, False), ExitStack() as stack:
            for path, module in subject.model.named_modules():
                if not any(module.children()):
                    hook = partial(lambda path, _, __, result: see(path, result), path)
                    stack.callback(module.register_forward_hook(hook).remove)
            subject.run(inputs)
        last = max((at for at, is_same in enumerate(same.values()) if not is_same), default=-1)
        where = [*same][last + 1 : last + 2]
        yield finding("trained_independent_outputs", where, {"variation": max(varied), "limit": _SAME})
    return f"outputs vary by {max(varied):.2g} of their size over examples"


def _variation(values: Tensor) -> Tensor:
    """Return the largest difference from the first example by the largest magnitude."""
    values = values.detach().double()
    return (values - values[:1]).abs().max() / values.abs().max().clamp_min(1e-300)


@check("running statistics")
def check_fit(subject: TrainedSubject) -> Steps:
    """Compare running statistics with those of the data, where batch norms normalize by the batch as in training."""
    if not subject.norms:
        raise NotAsked("there are no running statistics")
    # A norm that does not run, such as that of another domain, may be fresh.
    fresh = [path for path, fit in subject.fits.items() if not fit.mean.any() and bool((fit.variance == 1).all())]
    subject.unfit = min(fresh, key=subject.at, default=None)
    if fresh:
        yield _tried(subject, finding("fresh_statistics", fresh, {"norms": len(fresh)}), subject.renewed_loss(fresh))
    if subject.examples < _EXAMPLES or all(size_of(inputs) < _IN_BATCH for inputs, _ in subject.batches):
        raise NotAsked(f"give {_EXAMPLES} examples or more, in batches of {_IN_BATCH} or more")
    nats = {path: float(fit.misfit().mean()) for path, fit in subject.fits.items() if path not in fresh}
    for path, misfit in nats.items():
        subject.note(path, "norm", misfit=misfit)
    off = [path for path, misfit in nats.items() if misfit >= limits.MISFIT]
    subject.unfit = min([*off, *fresh], key=subject.at, default=None)
    if off:
        yield _unfitting(subject, off, nats[off[0]])
    return f"{len(nats)} batch norms, at most {max(nats.values(), default=0.0):.2g} nats per channel from the data"


def _unfitting(subject: TrainedSubject, off: list[str], misfit: float) -> Finding:
    """Return the finding about the first norm in the order of execution that is off; the inputs may be the cause."""
    shift, ratio = subject.fits[off[0]].distance()
    evidence: FindingEvidence = {"nats": misfit, "limit": limits.MISFIT, "shift": shift, "variance_ratio": ratio}
    evidence = {**evidence, "examples": subject.examples, "norms": len(off)}
    change = undone(subject, off[0])
    if change is None:
        return _tried(subject, finding("unfitting_statistics", off, evidence), subject.renewed_loss(off))
    order = ", with the channels in reverse order" if change.is_reversed else ""
    evidence = {**evidence, "scale": change.scale, "offset": change.shift}
    found = finding("other_preprocessing", off, evidence, order=order)
    return _tried(subject, found, subject.mean_loss([change(inputs) for inputs, _ in subject.batches]))


def _tried(subject: TrainedSubject, found: Finding, after: float) -> Finding:
    """Return a finding whose cure says what became of the loss."""
    before = mean_loss(subject.measured.losses)
    if not isfinite(after):
        return found
    way = "with the inputs changed back" if found.kind == "other_preprocessing" else "with new statistics"
    words = f"{way} the loss of these batches goes from {before:.3g} to {after:.3g}; {found.cure.words}"
    return replace(found, cure=replace(found.cure, words=words, is_tried=True))


@of_shares(
    *("γ at zero", "closed_channels", "gamma_zero", limits.CLOSED),
    "{} layers with γ, at most {} of a layer at zero",
)
def check_gamma(subject: TrainedSubject) -> Iterator[Share]:
    """Look for channels that norms, and factors such as layer scale, multiply by zero."""
    named, gammas = dict(subject.model.named_parameters(remove_duplicate=False)), dict[str, tuple[str, Tensor]]()
    for layer in subject.map.layers() if subject.map else ():
        if layer.gamma in named and layer.kind in ("norm", "scale"):
            # Some formulas have an offset, as 1 + γ.
            gammas.setdefault(layer.path, (layer.kind, named[layer.gamma] + layer.offset))
    for path, module in subject.model.named_modules():
        gamma = getattr(module, "weight", None)
        if isinstance(module, NORMS) and isinstance(gamma, Tensor):
            gammas.setdefault(path, ("norm", gamma))
    for path, (kind, gamma) in gammas.items():
        values = gamma.detach().double().abs().flatten()
        least = _TINY if kind == "norm" else 0.0
        alive = values[values > least]
        size = float(alive.median()) if alive.numel() else 0.0
        if values.numel() > 1:
            closed = int((values <= max(_ZERO * size, least)).sum())
            yield Share(path, closed, values.numel(), {"median_of_others": size}, kind)


@of_shares(
    *("units", "trained_dead_units", "dead", limits.DEAD),
    "{} layers with activations, at most {} of a layer's units never vary",
)
def check_units(subject: TrainedSubject) -> Iterator[Share]:
    """Look for units that never vary."""
    for units in subject.measured.meter.before_output():
        if subject.judges(units.layer):
            dead = units.constant
            read = _read(subject.model, units.reader, dead)
            evidence: FindingEvidence = {"activation": units.activation, "examples": subject.examples}
            evidence = evidence if read is None else {**evidence, "read": read}
            words = {"reader": "" if read is None else f"; what reads them gives them {read:.0%} of its weight"}
            yield Share(units.layer, int(dead.sum()), len(dead), evidence, "activation", judged=read, words=words)


def _read(model: nn.Module, reader: str | None, units: Tensor) -> float | None:
    """Return the share of the squared weights of a reader that it gives to some units; None where it is unknown.

    Units that died while a network was trained got no further weight, so that it lost nothing with them.
    """
    weight = dict(_rows(model)).get(reader or "")
    if weight is None or weight.shape[1] % len(units):
        return None
    columns = weight.square().sum(0).reshape(len(units), -1).sum(1)
    return float(columns[units].sum() / columns.sum().clamp_min(1e-30))


@of_shares(
    *("flat activations", "trained_saturated_units", "flat", limits.FLAT),
    "{} layers with activations, at most {} of a layer's values where the slope is tiny",
)
def check_flat(subject: TrainedSubject) -> Iterator[Share]:
    """Look for activations whose values are nearly all flat; gates are meant to be."""
    for units in subject.measured.meter.before_output():
        if subject.judges(units.layer) and not units.gates:
            words = {"activation": units.activation}
            yield Share(units.layer, units.flat, units.values, words, "activation", few=False)


@of_shares(
    *("divisors", "divides_by_epsilon", "near_eps", limits.NEAR_EPSILON),
    "{} norms, variances near ε in at most {} of a norm's statistics",
)
def check_divisors(subject: TrainedSubject) -> Iterator[Share]:
    """Look for norms that divide by almost nothing: the variance of most of their statistics is comparable with ε."""
    for path, variance in _variances(subject):
        eps = float(getattr(subject.norms[path], "eps", 0.0))
        yield Share(path, int((variance < limits.ABOUT * eps).sum()), variance.numel(), {"epsilon": eps})
    for path, seen in subject.measured.divisors.items():
        subject.note(path, "norm", spread=seen.variation)
        yield Share(path, seen.near, seen.varied, {"epsilon": seen.norm.eps})


@of_shares(
    *("attention", "trained_saturated_attention", "peaked", limits.PEAKED),
    "{} attentions, at most {} of the rows on one position",
)
def check_attention(subject: TrainedSubject) -> Iterator[Share]:
    """Look for attentions with all weight on one position."""
    attentions = subject.measured.meter.attentions
    judged = {place: seen for place, seen in attentions.items() if subject.judges(place)}
    if not judged:
        raise NotAsked(UNFIT if attentions else "there is no attention")
    for place, (peaked, rows) in judged.items():
        yield Share(place, peaked, rows, kind="attention", few=False)


@of_shares(
    *("equal units", "equal_units", "equal", limits.EQUAL),
    "{} weights, at most {} of a layer's units equal to others",
)
def check_equal(subject: TrainedSubject) -> Iterator[Share]:
    """Look for units whose weights are those of another unit, up to a factor."""
    for path, rows in _rows(subject.model):
        if rows.shape[1] >= _INPUTS and 2 <= len(rows) <= _ROWS:
            sizes = rows.norm(dim=1)
            unit = rows[sizes > 0] / sizes[sizes > 0, None]
            equal = int(((unit @ unit.T).triu(1) > _COSINE).any(0).sum()) if len(unit) else 0
            yield Share(path, equal, len(rows), {"cosine": _COSINE}, "weight")


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


@check("outliers")
def check_outliers(subject: TrainedSubject) -> Steps:
    """Look for massive activations after residual sums, and for outlier features there and after norms."""
    sums = {name: seen for name, seen in subject.measured.sums.seen.items() if subject.judges(subject.place(name))}
    norms = {path: seen.features for path, seen in subject.measured.divisors.items() if seen.features.tokens}
    if not sums and not norms:
        raise NotAsked(UNFIT if subject.measured.sums.seen else "there is no residual sum and no norm over features")
    massive: dict[str, MeasuredSum] = {}
    for name, seen in sums.items():
        ratio = seen.largest / seen.median if seen.median > 0 else nan
        subject.note(name, "block", ratio=seen.ratio, largest=seen.largest, over_median=ratio)
        if seen.largest > limits.MASSIVE and ratio >= limits.OVER_MEDIAN:
            massive.setdefault(subject.place(name), seen)
    if massive:
        seen = next(iter(massive.values()))
        evidence: FindingEvidence = {"largest": seen.largest, "median": seen.median}
        evidence = {**evidence, "channel": seen.channel, "token": seen.position, "blocks": len(massive)}
        at = f"channel {seen.channel}" + (f" of token {seen.position}" if seen.position >= 0 else "")
        # Those of healthy language models are computed; a bias or a γ of this size, beside a bad loss, is not.
        module = subject.model.get_submodule(next(iter(massive)))
        held = (float(own.detach().abs().max()) for own in module.parameters() if own.dim() == 1)
        is_advice = not subject.guesses or max(held, default=0.0) < seen.largest / 2
        yield finding("massive_activations", list(massive), evidence, at=at, advice=is_advice)
    streams = {subject.place(name): seen.features for name, seen in sums.items() if seen.features.tokens}
    yield from [*_outliers(streams), *_outliers(norms)][:1]
    largest = max((seen.largest for seen in sums.values()), default=0.0)
    return f"{len(sums)} residual sums, {len(norms)} norms over features; magnitudes after sums up to {largest:.3g}"


def _outliers(features: dict[str, Features]) -> Iterator[Finding]:
    """Yield the outlier features of layers of one width."""
    shares = {place: seen.large.cpu() / seen.tokens for place, seen in features.items() if seen.large is not None}
    for width in sorted({len(share) for share in shares.values()}):
        layers = {place: share for place, share in shares.items() if len(share) == width}
        known = torch.stack([*layers.values()])
        of_layers = (known >= limits.OF_TOKENS).double().mean(0)
        found = (of_layers >= limits.OF_LAYERS).nonzero().flatten().tolist() if len(layers) > 1 else []
        if found:
            top = max(found, key=lambda channel: (float(of_layers[channel]), float(known[:, channel].mean())))
            where = [place for place, share in layers.items() if share[top] >= limits.OF_TOKENS]
            evidence = {"channels": len(found), "channel": top, "share_of_layers": float(of_layers[top])}
            evidence |= {"share_of_tokens": float(known[:, top].max()), "magnitude": limits.OUTLIER}
            yield finding("outlier_features", where, evidence)
