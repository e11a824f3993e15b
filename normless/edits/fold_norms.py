"""Make the statistics of trained batch norms constants, and fold them into weights that go on training."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.edits.batches import run_batches
from normless.edits.edit import Edit, edit
from normless.edits.norm_places import keep_directions, module_of, whole_norms
from normless.edits.surgery import Surgery
from normless.errors import MissingValuesError
from normless.folding.frozen_norms import affine_of, frozen_norm, replace_modules
from normless.folding.frozen_norms import whole_norms as norms_with_statistics
from normless.folding.network import FoldedNorm, fold_affines, neighbours_of
from normless.nn import ChannelAffine, FreezableNorm, FrozenAffine
from normless.residual.batch_statistics import keeps_statistics
from normless.residual.description import describe, with_article
from normless.residual.sub_batches import is_sub_batch_norm


@edit
class GiveStatistics(Edit):
    """Give batch norms without running statistics those of the calibration batches, pooled over their runs.

    Such a norm (`track_running_stats=False`) normalizes by the batch in evaluation too, as no constant does.
    """

    def apply(self, surgery: Surgery) -> None:
        found = {layer.path: surgery.get(layer.path) for layer in surgery.norms() if ":" not in layer.path}
        paths = [path for path, norm in found.items() if isinstance(norm, _BatchNorm) and norm.running_mean is None]
        if not paths:
            return
        surgery.need_inputs("measures statistics", "trained(scheme='none')")
        sums: dict[str, list[Tensor]] = {}

        def note(path: str, _: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
            x = inputs[0].double().movedim(1, 0).flatten(1)
            parts = [x.new_tensor(x.shape[1]), x.sum(1), x.square().sum(1)]
            sums[path] = [old + new for old, new in zip(sums[path], parts, strict=True)] if path in sums else parts

        run_batches(surgery, paths, note)
        for path in paths:
            norm: Any = found[path]
            if path not in sums:
                raise surgery.unsupported(path, "it has no running statistics, and does not run on these inputs")
            count, total, squares = sums[path]
            mean = total / count
            like = norm.weight if norm.weight is not None else next(surgery.model.parameters())
            norm.register_buffer("running_mean", mean.to(like))
            norm.register_buffer("running_var", (squares / count - mean.square()).clamp_min(0).to(like))
            norm.track_running_stats = True
            surgery.calibration.given.add(path)
            surgery.record(path, "had no running statistics; those of the calibration batches")


@edit
class FoldNorms(Edit):
    """Fold every batch norm with its running statistics into the weights next to it, which go on training.

        γ / √(σ² + ε) · (W ∗ x + b − μ) + β = (sW) ∗ x + (s(b − μ) + β),   s = γ / √(σ² + ε) per channel

    as `fold`. Where no layer takes the norm, as before zero padding, a learned factor and shift per channel
    (`ChannelAffine`) stay in its place. The function in evaluation is that of the network before, up to rounding.
    Frozen batch norms are folded too.
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
            _check(surgery, path, norm)
        inside = {path: norm for path, norm in norms_with_statistics(surgery.model) if surgery.covers(path)}
        trains = {
            path: any(own.requires_grad for own in norm.parameters(recurse=False)) for path, norm in inside.items()
        }
        values = {path: affine_of(path, norm) for path, norm in inside.items()}
        replace_modules(surgery.model, {norm: frozen_norm(path, norm) for path, norm in inside.items()})
        modes = neighbours_of(surgery.model, surgery.inputs, surgery.kwargs)
        outcomes = fold_affines(surgery.model, values, modes, trained=trains)
        left: dict[str, Any] = {own.path: surgery.get(own.path) for own in outcomes if own.outcome == "affine"}
        replace_modules(surgery.model, {old: _learned(old, trains[path]) for path, old in left.items()})
        for outcome in outcomes:
            surgery.calibration.folded[outcome.path] = outcome
            if outcome.outcome == "folded":
                surgery.removed.add(outcome.path)
            surgery.record(outcome.path, _words(outcome))


def _words(outcome: FoldedNorm) -> str:
    if outcome.outcome == "folded":
        return f"folded into {', '.join(outcome.layers)} {outcome.side} it"
    return f"a learned factor and shift per channel: {outcome.reason}"


def _learned(norm: FrozenAffine, trains: bool) -> ChannelAffine:
    """Return a frozen norm with a factor and shift that are trained if the norm was."""
    new = ChannelAffine(norm.scale, norm.shift, dict(norm.named_children()))
    for parameter in new.parameters(recurse=False):
        parameter.requires_grad_(trains)
    return new


def _check(surgery: Surgery, path: str, norm: nn.Module) -> None:
    """Refuse a norm without constant statistics."""
    if keeps_statistics(norm) or is_sub_batch_norm(norm) or isinstance(norm, FrozenAffine):
        return
    if isinstance(norm, FreezableNorm):
        if norm.frozen:
            return
        raise surgery.unsupported(path, "its removal has begun; finish that, and nl.fold folds it")
    what = f"{with_article(describe(norm))} divides each example by its own deviation, which no weight does"
    raise surgery.unsupported(path, f"{what}; nl.remove_norms takes it out while the network is fine-tuned")
