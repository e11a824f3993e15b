"""Edits of trained networks: fold norms into weights that go on training, fit what takes the place of others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.affine.fitting import fit_pointwise, matching, variance_of
from normless.affine.folding import Outcome, arrow, flows_of, fold_affines
from normless.affine.maps import Affine, freeze_norms, has_constants, norms_with_constants, replace_modules
from normless.edits import Edit, RemoveNorms, StandardizeWeights, Surgery
from normless.edits.batches import Enough, rows_of, run_batches
from normless.edits.calibration import distance
from normless.edits.edit import edit
from normless.edits.norm_places import inside_of, keep_directions, module_of, whole_norms
from normless.errors import MissingValuesError, UnsupportedEditError
from normless.nn import FreezableNorm, FrozenAffine, Pointwise
from normless.nn.channels import channel_axis
from normless.nn.standardized import ScaledStd, keep_scale_of_weight
from normless.residual.batch_statistics import keeps_statistics
from normless.residual.description import describe, with_article
from normless.residual.inside_norms import Inside

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
    norms: tuple[Outcome, ...]
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


def trained_form(text: str, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return the edits of a scheme for a trained network, between `NoteStatistics` and `MatchStatistics`.

    `RemoveNorms` becomes `FoldNorms`, and rules for weights that are drawn at random are left out.

    Raises:
        UnsupportedEditError: an edit changes the function in a way that no fit makes good; the message says which
            schemes keep it.
    """
    lost = dict.fromkeys(own.loses for own in edits if own.loses)
    if lost:
        raise UnsupportedEditError(
            f"{text} does not keep the function of a trained network: it {', '.join(lost)}. These keep it: "
            "nl.convert_trained with skipinit, none or frozen_batch_norm exactly, and with group_norm, nf_resnet or "
            "dyt nearly; nl.fold and nl.freeze for batch norms; nl.remove_norms for layer norms."
        )
    kept = [FoldNorms() if isinstance(own, RemoveNorms) else own for own in edits if not own.of_random_weights]
    layers = any(isinstance(own, StandardizeWeights) for own in kept)
    fixes = any(isinstance(own, FoldNorms) or getattr(own, "family", None) == "frozen" for own in kept)
    return (NoteStatistics(layers, fixes), *kept, MatchStatistics())


@edit
class FoldNorms(Edit):
    """Fold every batch norm with its running statistics into the weights next to it, which go on training.

        γ / √(σ² + ε) · (W ∗ x + b − μ) + β = (sW) ∗ x + (s(b − μ) + β),   s = γ / √(σ² + ε) per channel

    as `fold`. Where no layer takes the norm, as before zero padding, a learned factor and shift per channel stay in
    its place. The function in evaluation is that of the network before, up to rounding. Frozen batch norms are folded
    too.
    """

    def apply(self, surgery: Surgery) -> None:
        if surgery.original is not None:
            raise MissingValuesError("Norms are folded by their values.")
        if surgery.is_meta:
            raise surgery.unsupported("", "norms are folded by their values, and weights on meta have none")
        surgery.need_inputs("finds the neighbours of norms", "trained(scheme='none')")
        keep_directions(surgery)
        norms = [(layer.path, module_of(surgery, layer)) for layer in whole_norms(surgery)]
        if not norms:
            raise surgery.unsupported("", "it has no normalization to fold")
        for path, norm in norms:
            if isinstance(norm, FreezableNorm) and not norm.frozen:
                raise surgery.unsupported(path, "its removal has begun; finish that, and nl.fold folds it")
            if not has_constants(norm):
                what = f"{with_article(describe(norm))} divides each example by its own deviation"
                advice = "nl.remove_norms takes it out while the network is fine-tuned"
                raise surgery.unsupported(path, f"{what}, which no weight does; {advice}")
        model = surgery.model
        trains = {
            path: any(own.requires_grad for own in norm.parameters(recurse=False))
            for path, norm in norms_with_constants(model)
        }
        maps = freeze_norms(model, surgery.covers)
        outcomes = fold_affines(model, maps, flows_of(model, surgery.inputs, surgery.kwargs), trained=trains)
        left: dict[Any, nn.Module] = {}
        for own in outcomes:
            surgery.calibration.folded[own.path] = own
            if own.outcome == "folded":
                surgery.removed.add(own.path)
                surgery.record(own.path, own.what)
            else:
                old: Any = surgery.get(own.path)
                left[old] = maps[own.path].module(old.scale, dict(old.named_children()), learned=True)
                for parameter in left[old].parameters(recurse=False):
                    parameter.requires_grad_(trains[own.path])
                surgery.record(own.path, f"a learned factor and shift per channel: {own.reason}")
        replace_modules(model, left)


@edit
class NoteStatistics(Edit):
    """Note what the norms of a trained network put out on the calibration batches, for `MatchStatistics` after edits.

    The network runs in evaluation on the example inputs, or on the batches of `convert_trained`.

    Args:
        layers: also note the outputs of weight layers, which edits of weights change.
        gives: afterwards give batch norms without running statistics (`track_running_stats=False`), which normalize
            by the batch in evaluation too, those of the batches, pooled over their runs.
    """

    layers: bool = False
    gives: bool = False

    def apply(self, surgery: Surgery) -> None:
        if surgery.is_meta:
            raise surgery.unsupported("", "it runs the network, and weights on the meta device have no values")
        surgery.need_inputs("measures what norms put out", "trained(scheme='group_norm')")
        noted, batches = surgery.calibration, max(1, len(surgery.calibration.batches))
        rows: dict[str, list[Tensor]] = defaultdict(list)
        moments: dict[str, list[Tensor]] = defaultdict(list)
        norms = [layer.path for layer in whole_norms(surgery) if ":" not in layer.path]
        bends = {path: self._bends(surgery, path) for path in norms}
        lacking = [path for path in norms if self.gives and _lacks_statistics(surgery.get(path))]
        paths = [path for path in norms if bends[path] is not None or path in lacking]
        if self.layers:
            every = (layer for layer in surgery.weight_layers() if ":" not in layer.path and not layer.gating)
            paths += [layer.path for layer in every if layer.path != surgery.map.classifier and layer.called]

        def note(path: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if path in lacking:
                x = inputs[0].double().movedim(1, 0).flatten(1)
                moments[path].append(torch.stack([torch.full_like(x[:, 0], x.shape[1]), x.sum(1), x.square().sum(1)]))
            if bends.get(path):
                output = Affine.of(path, module).module(inputs[0])(inputs[0])
            if isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 1:
                axis = noted.axes.setdefault(path, _axis(module, output))
                rows[path].append(rows_of(output, axis, batches))

        noted.outputs, noted.rows = run_batches(surgery, paths, note), dict(rows)
        if not all(bool(tensor.isfinite().all()) for tensor in chain.from_iterable(noted.outputs)):
            raise surgery.unsupported("", "the trained network's outputs on the calibration batches are not finite")
        for path in lacking:
            _give_statistics(surgery, path, moments[path])

    def _bends(self, surgery: Surgery, path: str) -> bool | None:
        """Whether a norm of constant statistics has other operations after it; None if its output is not known."""
        with suppress(UnsupportedEditError):
            parts = inside_of(surgery, surgery.map.by_path[path])
            if parts == Inside():
                return False
            return True if keeps_statistics(surgery.get(path)) and not parts.before else None
        return None


def _lacks_statistics(norm: nn.Module) -> bool:
    return isinstance(norm, _BatchNorm) and norm.running_mean is None


def _give_statistics(surgery: Surgery, path: str, moments: list[Tensor]) -> None:
    """Give a batch norm the mean and variance of counts, sums and sums of squares as its running statistics."""
    if not moments:
        raise surgery.unsupported(path, "it has no running statistics, and does not run on these inputs")
    norm: Any = surgery.get(path)
    count, total, squares = torch.stack(moments).sum(0)
    mean = total / count
    like = norm.weight if norm.weight is not None else next(surgery.model.parameters())
    norm.register_buffer("running_mean", mean.to(like))
    norm.register_buffer("running_var", (squares / count - mean.square()).clamp_min(0).to(like))
    norm.track_running_stats = True
    surgery.calibration.given.add(path)
    surgery.record(path, "had no running statistics; those of the calibration batches")


def _axis(module: nn.Module, output: Tensor) -> int:
    """Return the channel axis of a layer's output; for a norm over several axes, the number of axes."""
    several = isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) > 1
    return output.dim() if several else channel_axis(module, output)


@dataclass(frozen=True)
class _Place:
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
    surgery: Surgery, place: _Place, was_fitted: bool, before: float, after: float, *, least: float
) -> Outcome:
    """Return the outcome of a place, with the reason."""
    noted, path = surgery.calibration, place.path
    constant = int((variance_of(torch.cat(place.target, 1).double()) == 0).sum())
    reason = f"{constant} of its channels are constant" if constant else ""
    if was_fitted:
        made = Outcome(path, "fitted")
    elif path in noted.folded:
        made = Outcome(path, "affine", reason=noted.folded[path].reason)
    elif before <= least:
        made = Outcome(path, "same")
    elif place.kind != "fixed":
        made = Outcome(path, "left", reason="the fits moved the network's outputs away, and were taken back")
    else:
        why = "it has no factor and shift to fit" if path in surgery.replaced else "the scheme keeps it"
        made = Outcome(path, "left", reason=why)
    given = "with the statistics of the calibration batches, since it had none" if path in noted.given else ""
    reasons = filter(None, (made.reason or reason, given))
    return replace(made, reason=", ".join(reasons), before=before, after=after)


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
        elif not _takes_affine(module, len(rows[0])) or not (folded is not None or path in surgery.replaced):
            kind = "fixed"
        if kind != "fixed":
            _complete(module, len(rows[0]), holders)
        places.append(_Place(path, at, tuple(rows), noted.axes[path], kind))
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
