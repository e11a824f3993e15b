"""Fit what stands in place of a trained network's norms to the mean and deviation of what the norms put out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normless.affine._fitting import fit_pointwise, matching, variance_of
from normless.affine._folding import NormOutcome, arrow
from normless.edits import Edit, Surgery
from normless.edits._batches import Enough, rows_of, run_batches
from normless.edits._calibration import distance
from normless.edits._edit import edit
from normless.nn import FrozenAffine
from normless.nn._activation import Pointwise
from normless.nn._standardized import ScaledStd, keep_scale_of_weight

# Outputs that differ less are equal up to rounding; of half precision, less than its ε.
_EQUAL = 1e-4


@dataclass(frozen=True)
class TrainedReport:
    """What a conversion of a trained network kept, on the calibration batches in evaluation; printable.

    Attributes:
        scheme: the text of the scheme.
        norms: the outcome for each norm, and for each layer that was fitted.
        distance: ‖y' − y‖ / ‖y‖ of the network's outputs y' from those before the conversion, before and after the
            fits.
        agreement: the share of rows of outputs, (B, classes) or (B, T, classes), whose largest value is the same,
            before and after the fits; None for other outputs.
    """

    scheme: str
    norms: tuple[NormOutcome, ...]
    distance: tuple[float, float]
    agreement: tuple[float, float] | None

    @property
    def counts(self) -> dict[str, int]:
        """The number of places with each outcome."""
        return dict(Counter(norm.outcome for norm in self.norms))

    def __str__(self) -> str:
        total = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        lines = [f"{self.scheme}: {total}", f"outputs: distance {arrow(*self.distance)}"]
        if self.agreement is not None:
            lines[-1] += f", largest value the same in {arrow(*(100 * share for share in self.agreement))} %"
        return "\n".join([*lines, *map(str, self.norms)])


@dataclass(frozen=True)
class _Fit:
    """A module `at` a path that is fitted to the noted rows of `target`, in place of the layer or norm `path`."""

    path: str
    at: str
    target: tuple[Tensor, ...]
    axis: int
    kind: Literal["affine", "pointwise", "fixed"]


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

    needs = frozenset({"values", "inputs"})

    def apply(self, surgery: Surgery) -> None:
        noted = surgery.calibration
        if not noted.outputs:
            raise surgery.unsupported("", "nothing was noted; NoteStatistics comes before the edits")
        places, model = _places(surgery), surgery.model
        before, outputs = _measured(surgery, places)
        least = max(_EQUAL, *(torch.finfo(own.dtype).eps for own in model.parameters() if own.is_floating_point()))
        fitted = {place.path: place for place in places if place.kind != "fixed" and before[place.path] > least}
        after, fits = before, outputs
        if fitted:
            own_parameters = chain.from_iterable(surgery.get(place.at).parameters() for place in fitted.values())
            kept = [(own, own.detach().clone()) for own in own_parameters]
            _fit(surgery, [*fitted.values()])
            after, fits = _measured(surgery, places)
            if _far(fits, noted.outputs) > _far(outputs, noted.outputs):
                for own, value in kept:
                    own.data.copy_(value)
                after, fits = before, outputs
        outcomes = []
        for place in places:
            distances = before[place.path], after[place.path]
            was_fitted = place.path in fitted and after is not before
            outcomes.append(_outcome(surgery, place, was_fitted, *distances, least=least))
            if was_fitted:
                surgery.record(
                    place.path, "fitted: distance from the norm's outputs {:.3g} → {:.3g}".format(*distances)
                )
        outcomes += [own for path, own in noted.folded.items() if path not in after]
        far = _far(outputs, noted.outputs), _far(fits, noted.outputs)
        if fitted:
            surgery.record("", "distance from the trained network's outputs {:.3g} → {:.3g}".format(*far))
        agreed = [agreement(made, noted.outputs) for made in (outputs, fits)]
        same = None if agreed[0] is None or agreed[1] is None else (agreed[0], agreed[1])
        noted.report = TrainedReport("", tuple(outcomes), far, same)


def _far(made: Sequence[Sequence[Tensor]], known: Sequence[Sequence[Tensor]]) -> float:
    """Return the distance of a network's outputs from those noted."""
    return distance(chain.from_iterable(made), chain.from_iterable(known))


def agreement(made: Sequence[Sequence[Tensor]], expected: Sequence[Sequence[Tensor]]) -> float | None:
    """Return the share of rows whose largest value is at the same place; None unless the output is rows of logits.

    Outputs have shape (B, classes) or (B, T, classes).
    """
    same: list[Tensor] = []
    for of_batch, known in zip(made, expected, strict=True):
        if len(known) != 1 or known[0].dim() not in (2, 3) or known[0].shape[-1] < 2:
            return None
        if of_batch[0].shape != known[0].shape:
            return None
        same.append((of_batch[0].argmax(-1) == known[0].argmax(-1)).flatten().double())
    return float(torch.cat(same).mean()) if same else None


def _outcome(
    surgery: Surgery, place: _Fit, was_fitted: bool, before: float, after: float, *, least: float
) -> NormOutcome:
    """Return the outcome of a place, with the reason."""
    noted, path = surgery.calibration, place.path
    constant = int((variance_of(torch.cat(place.target, 1).double()) == 0).sum())
    reason = f"{constant} of its channels are constant" if constant else ""
    if was_fitted:
        made = NormOutcome(path, "fitted")
    elif path in noted.folded:
        made = NormOutcome(path, "affine", reason=noted.folded[path].reason)
    elif before <= least:
        made = NormOutcome(path, "same")
    elif place.kind != "fixed":
        made = NormOutcome(path, "left", reason="the fits moved the network's outputs away, and were taken back")
    else:
        why = "it has no factor and shift to fit" if path in surgery.log.replaced else "the scheme keeps it"
        made = NormOutcome(path, "left", reason=why)
    given = "with the statistics of the calibration batches, since it had none" if path in noted.given else ""
    reasons = filter(None, (made.reason or reason, given))
    return replace(made, reason=", ".join(reasons), before=before, after=after)


def _places(surgery: Surgery) -> list[_Fit]:
    """Return the places to measure and fit; norms without a factor or shift get one."""
    noted = surgery.calibration
    norm_of = {own.layers[0]: path for path, own in noted.folded.items() if own.layers and own.side == "before"}
    holders = Counter(id(own) for module in surgery.model.modules() for own in module._parameters.values())
    places: list[_Fit] = []
    for path, rows in noted.rows.items():
        folded, module = noted.folded.get(path), surgery.get(path)
        if folded is not None and (folded.outcome == "folded" or any(True for _ in module.children())):
            continue
        at = f"{path}.norm" if isinstance(module, nn.Sequential) and "norm" in module._modules else path
        module, known = surgery.get(at), surgery.map.by_path.get(path)
        kind: Literal["affine", "pointwise", "fixed"] = "affine"
        if isinstance(module, ScaledStd):
            keep_scale_of_weight(module)
            of_norm = noted.rows.get(norm_of.get(path, path), rows)
            rows = of_norm if of_norm[0].shape == rows[0].shape else rows
        elif isinstance(module, Pointwise):
            kind = "pointwise"
        elif known is not None and known.kind == "weight":
            continue
        elif not _takes_affine(module, len(rows[0])) or not (folded is not None or path in surgery.log.replaced):
            kind = "fixed"
        if kind != "fixed":
            _complete(module, len(rows[0]), holders)
        places.append(_Fit(path, at, tuple(rows), noted.axes[path], kind))
    return places


def _names(module: nn.Module) -> tuple[str, str]:
    """Return the names of the factor and shift of a module."""
    if isinstance(module, FrozenAffine):
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


def _measured(surgery: Surgery, places: Sequence[_Fit]) -> tuple[dict[str, float], list[list[Tensor]]]:
    """Return the distance at each place from the noted outputs, and the outputs of the network."""
    made: dict[str, list[Tensor]] = defaultdict(list)
    by_module = {place.at: place for place in places}
    batches = max(1, len(surgery.calibration.batches))

    def note(at: str, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        made[at].append(rows_of(output, by_module[at].axis, batches))

    outputs = run_batches(surgery, by_module, note)
    return {place.path: distance(made[place.at], place.target) for place in places}, outputs


def _fit(surgery: Surgery, places: Sequence[_Fit]) -> None:
    """Fit places in order of execution: all in one pass on a single batch, else each in passes that end there."""
    batches = max(1, len(surgery.calibration.batches))
    at_once = batches == 1 and all(len(place.target) == 1 for place in places)
    for group in [places] if at_once else [[place] for place in places]:
        by_module = {place.at: place for place in group}
        seen: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)

        def see(at: str, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Any:
            place, runs = by_module[at], seen[at]  # noqa: B023
            runs.append((inputs[0].detach().clone(), output.detach().clone()))
            if len(runs) == len(place.target):
                _fit_place(module, place, *zip(*runs, strict=True), batches=batches)
            if not at_once and len(place.target) == batches:
                raise Enough
            return module.forward(*inputs) if at_once else None

        run_batches(surgery, by_module, see)


@torch.no_grad()
def _fit_place(
    module: Any, place: _Fit, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *, batches: int
) -> None:
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
