"""Fit what stands in place of a trained network's norms to the mean and deviation of what the norms put out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normless.edits.batches import Enough, rows_of, run_batches
from normless.edits.calibration import Outcome, agreement, distance
from normless.edits.edit import Edit, edit
from normless.edits.fitting import fit_pointwise, matching, variance_of
from normless.edits.norm_places import inside_of, whole_norms
from normless.edits.surgery import Surgery
from normless.errors import UnsupportedEditError
from normless.folding.frozen_norms import affine_of
from normless.nn import ChannelAffine, Pointwise
from normless.nn.channels import channel_axis, per_channel
from normless.nn.standardized import ScaledStd, keep_scale_of_weight
from normless.residual.batch_statistics import keeps_statistics
from normless.residual.inside_norms import Inside

# Outputs that differ less are equal up to rounding; of half precision, less than its ε.
_EQUAL = 1e-4


@edit
class NoteStatistics(Edit):
    """Note what the norms of a trained network put out on the calibration batches, for `MatchStatistics` after edits.

    The network runs in evaluation on the example inputs, or on the batches of `convert_trained`.

    Args:
        layers: also note the outputs of weight layers, which edits of weights change.
    """

    layers: bool = False

    def apply(self, surgery: Surgery) -> None:
        if surgery.is_meta:
            raise surgery.unsupported("", "it runs the network, and weights on the meta device have no values")
        surgery.need_inputs("measures what norms put out", "trained(scheme='group_norm')")
        noted, batches = surgery.calibration, max(1, len(surgery.calibration.batches))
        rows: dict[str, list[Tensor]] = defaultdict(list)
        found = {
            layer.path: self._inside(surgery, layer.path) for layer in whole_norms(surgery) if ":" not in layer.path
        }
        paths = [path for path, inside in found.items() if inside is not None]
        if self.layers:
            every = (layer for layer in surgery.weight_layers() if ":" not in layer.path and not layer.gating)
            paths += [layer.path for layer in every if layer.path != surgery.map.classifier and layer.called]

        def note(path: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if found.get(path):
                scale, shift = (part.to(inputs[0]) for part in affine_of(path, module))
                output = inputs[0] * per_channel(scale, inputs[0]) + per_channel(shift, inputs[0])
            if isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 1:
                axis = noted.axes.setdefault(path, _axis(module, output))
                rows[path].append(rows_of(output, axis, batches))

        noted.outputs = run_batches(surgery, paths, note)
        noted.rows = dict(rows)
        for tensor in (tensor for outputs in noted.outputs for tensor in outputs):
            if not torch.isfinite(tensor).all():
                raise surgery.unsupported(
                    "", "the trained network's outputs on the calibration batches are not finite"
                )

    def _inside(self, surgery: Surgery, path: str) -> bool | None:
        """Whether a norm of constant statistics has other operations after it; None if its output is not known."""
        with suppress(UnsupportedEditError):
            parts = inside_of(surgery, surgery.map.by_path[path])
            if parts == Inside():
                return False
            return True if keeps_statistics(surgery.get(path)) and not parts.before else None
        return None


def _axis(module: nn.Module, output: Tensor) -> int:
    """Return the channel axis of a layer's output; for a norm over several axes, the number of axes."""
    several = isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) > 1
    return output.dim() if several else channel_axis(module, output)


_Kind = Literal["affine", "pointwise", "fixed"]


@dataclass(frozen=True)
class _Place:
    """A module `at` a path that is fitted to the noted rows of `target`, in layer or norm `path`."""

    path: str
    at: str
    target: tuple[Tensor, ...]
    axis: int
    kind: _Kind


@edit
class MatchStatistics(Edit):
    """Fit what stands in the norms' places to what the norms put out, in order of execution.

    A norm or standardized layer with output z gets the factor and shift per channel with which it has the mean and
    the deviation of the outputs y that were noted,

        γ ← a · γ,   β ← a · β + c,   a = ± σ(y) / σ(z),   c = mean(y) − a · mean(z)

    and a pointwise function the α, γ and β of `fit_pointwise`. Each place reads the outputs of places that are fitted
    already. What computes the same as before is not changed. If the fits move the network's outputs away, they are
    taken back. `NoteStatistics` comes before the edits.
    """

    def apply(self, surgery: Surgery) -> None:
        noted = surgery.calibration
        if not noted.outputs:
            raise surgery.unsupported("", "nothing was noted; NoteStatistics comes before the edits")
        places = _places(surgery)
        before, outputs = _measured(surgery, places)
        least = max(
            _EQUAL, *(torch.finfo(own.dtype).eps for own in surgery.model.parameters() if own.is_floating_point())
        )
        fitted = {place.path: place for place in places if place.kind != "fixed" and before[place.path] > least}
        after, fits = before, outputs
        if fitted:
            kept = [
                (own, own.detach().clone()) for place in fitted.values() for own in surgery.get(place.at).parameters()
            ]
            _fit(surgery, [*fitted.values()])
            after, fits = _measured(surgery, places)
            if _far(fits, noted.outputs) > _far(outputs, noted.outputs):
                for own, value in kept:
                    own.data.copy_(value)
                after, fits = before, outputs
        noted.distance = _far(outputs, noted.outputs), _far(fits, noted.outputs)
        agreed = [agreement(made, noted.outputs) for made in (outputs, fits)]
        noted.agreement = None if agreed[0] is None or agreed[1] is None else (agreed[0], agreed[1])
        for place in places:
            there = before[place.path], after[place.path]
            is_fitted = place.path in fitted and after is not before
            outcome, reason = ("fitted", "") if is_fitted else _unfitted(surgery, place, there[0] <= least)
            noted.outcomes.append(Outcome(place.path, outcome, *there, reason or _constant(place)))
            if is_fitted:
                surgery.record(place.path, "fitted: distance from the norm's outputs {:.3g} → {:.3g}".format(*there))
        for path, norm in noted.folded.items():
            if path not in after:
                reason = norm.reason or f"into {', '.join(norm.layers)} {norm.side} it"
                noted.outcomes.append(Outcome(path, norm.outcome, reason=reason))
        noted.outcomes = [_with_statistics(own) if own.path in noted.given else own for own in noted.outcomes]
        if fitted:
            what = "distance from the trained network's outputs {:.3g} → {:.3g}"
            surgery.record("", what.format(*noted.distance))


def _far(made: Sequence[Sequence[Tensor]], known: Sequence[Sequence[Tensor]]) -> float:
    """Return the distance of a network's outputs from those noted."""
    return distance(chain.from_iterable(made), chain.from_iterable(known))


def _unfitted(surgery: Surgery, place: _Place, is_equal: bool) -> tuple[str, str]:
    """Return the outcome of a place that was not fitted, and the reason."""
    if place.path in surgery.calibration.folded:
        return "affine", surgery.calibration.folded[place.path].reason
    if is_equal:
        return "same", ""
    if place.kind != "fixed":
        return "left", "the fits moved the network's outputs away, and were taken back"
    return "left", "it has no factor and shift to fit" if place.path in surgery.replaced else "the scheme keeps it"


def _with_statistics(own: Outcome) -> Outcome:
    """Add to an outcome that the norm had no running statistics."""
    reasons = [own.reason, "with the statistics of the calibration batches, since it had none"]
    return replace(own, reason=", ".join(filter(None, reasons)))


def _constant(place: _Place) -> str:
    """Say how many channels of the norm's output are constant, or return ""."""
    count = int((variance_of(torch.cat(place.target, 1).double()) == 0).sum())
    return f"{count} of its channels are constant" if count else ""


def _places(surgery: Surgery) -> list[_Place]:
    """Return the places to measure and fit; norms without a factor or shift get one."""
    noted = surgery.calibration
    norm_of = {own.layers[0]: path for path, own in noted.folded.items() if own.layers and own.side == "before"}
    holders = Counter(id(own) for module in surgery.model.modules() for own in module._parameters.values())
    places: list[_Place] = []
    for path, rows in noted.rows.items():
        folded, module = noted.folded.get(path), surgery.get(path)
        if folded is not None and (folded.outcome == "folded" or any(True for _ in module.children())):
            continue
        at = f"{path}.norm" if isinstance(module, nn.Sequential) and "norm" in module._modules else path
        kind: _Kind = "affine"
        module, axis = surgery.get(at), noted.axes[path]
        if isinstance(module, ScaledStd):
            keep_scale_of_weight(module)
            norm = norm_of.get(path, path)
            rows = noted.rows.get(norm, rows)
            if rows[0].shape != noted.rows[path][0].shape:
                rows = noted.rows[path]
        elif isinstance(module, Pointwise):
            kind = "pointwise"
        elif path in surgery.map.by_path and surgery.map.by_path[path].kind == "weight":
            continue
        elif not (isinstance(module, ChannelAffine) or path in surgery.replaced) or not _takes_affine(
            module, len(rows[0])
        ):
            kind = "fixed"
        if kind != "fixed":
            _complete(module, len(rows[0]), holders)
        places.append(_Place(path, at, tuple(rows), axis, kind))
    return places


def _names(module: nn.Module) -> tuple[str, str]:
    """Return the names of the factor and shift of a module."""
    if isinstance(module, ChannelAffine):
        return "scale", "shift"
    return "gain" if isinstance(module, ScaledStd) else "weight", "bias"


def _takes_affine(module: nn.Module, channels: int) -> bool:
    """Whether a module has a learned factor and shift for each of these channels, or may have them."""
    sizes = {None if own is None else own.numel() for own in map(module._parameters.get, _names(module))}
    return {*_names(module)} <= module._parameters.keys() and sizes <= {None, channels}


def _complete(module: nn.Module, channels: int, holders: Counter[int]) -> None:
    """Give a module the factor and shift that it lacks, and its own where it shares them with another module."""
    like = next(module.parameters(), torch.ones(1))
    for name, start in zip(_names(module), (1.0, 0.0), strict=True):
        value = getattr(module, name)
        if value is None:
            setattr(module, name, nn.Parameter(torch.full((channels,), start, dtype=like.dtype, device=like.device)))
        elif holders[id(value)] > 1:
            setattr(module, name, nn.Parameter(value.detach().clone(), requires_grad=value.requires_grad))


def _measured(surgery: Surgery, places: Sequence[_Place]) -> tuple[dict[str, float], list[list[Tensor]]]:
    """Return the distance at each place from the noted outputs, and the outputs of the network."""
    made: dict[str, list[Tensor]] = defaultdict(list)
    by_module = {place.at: place for place in places}
    batches = max(1, len(surgery.calibration.batches))

    def note(at: str, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        made[at].append(rows_of(output, by_module[at].axis, batches))

    outputs = run_batches(surgery, by_module, note)
    return {place.path: distance(made[place.at], place.target) for place in places}, outputs


def _fit(surgery: Surgery, places: Sequence[_Place]) -> None:
    """Fit places in order of execution: all in one pass on a single batch, else each in passes that end there."""
    batches = max(1, len(surgery.calibration.batches))
    if batches == 1 and all(len(place.target) == 1 for place in places):
        by_module = {place.at: place for place in places}

        def fit(at: str, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Any:
            _fit_place(module, by_module[at], [inputs[0]], [output], batches)
            return module.forward(*inputs)

        run_batches(surgery, by_module, fit)
        return
    for place in places:
        seen: tuple[list[Tensor], list[Tensor]] = ([], [])

        def collect(_: str, __: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            for kept, values in zip(seen, (inputs[0], output), strict=True):  # noqa: B023
                kept.append(values.detach().clone())
            if len(place.target) == batches:  # noqa: B023
                raise Enough

        run_batches(surgery, [place.at], collect)
        _fit_place(surgery.get(place.at), place, *seen, batches)


@torch.no_grad()
def _fit_place(module: Any, place: _Place, inputs: Sequence[Tensor], outputs: Sequence[Tensor], batches: int) -> None:
    """Fit the factor and shift of a module, and α of a pointwise function, whose inputs and outputs are given."""
    target = torch.cat(place.target, 1)

    def rows(values: Sequence[Tensor]) -> Tensor:
        return torch.cat([rows_of(x, place.axis, batches) for x in values], 1)

    factor, shift = (getattr(module, name) for name in _names(module))
    z = rows(outputs)
    if place.kind == "pointwise":
        function = torch.tanh if module.function == "tanh" else torch.erf
        alpha, gamma, beta = fit_pointwise(rows(inputs), target, function)
        module.alpha.fill_(alpha)
        if module.shift is not None:
            module.shift.zero_()
        if factor.numel() == len(target):
            factor.copy_(gamma)
            shift.copy_(beta)
            return
        # γ has an element for each of several axes; they get a factor in common.
        z = rows([module.forward(x) for x in inputs])
    a, c = (part.to(factor.device) for part in matching(z, target))
    shift.copy_(a * shift.double() + c)
    factor.copy_(a * factor.double())
