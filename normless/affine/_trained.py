"""Edits of trained networks: fold norms into weights that go on training, fit what takes the place of others."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.affine._folding import flows_of, fold_affines
from normless.affine._maps import Affine, freeze_norms, has_constants, norms_with_constants, replace_modules
from normless.affine._match_statistics import MatchStatistics
from normless.edits import Edit, ReplaceNorms, Surgery
from normless.edits._batches import rows_of, run_batches
from normless.edits._edit import edit
from normless.edits._norm_places import inside_of, keep_directions, module_of, whole_norms
from normless.errors import UnsupportedEditError
from normless.nn import FreezableNorm
from normless.nn._channels import channel_axis
from normless.residual._batch_statistics import keeps_statistics
from normless.residual._description import describe, with_article
from normless.residual._inside_norms import Inside


def trained_form(text: str, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return the edits of a scheme for a trained network, between `NoteStatistics` and `MatchStatistics`.

    `RemoveNorms` becomes `FoldNorms`, and rules for weights that are drawn at random are left out.

    Raises:
        UnsupportedEditError: an edit changes the function in a way that no fit makes good; the message says which
            schemes keep it.
    """
    edits = tuple(own.for_trained() for own in edits)
    lost = dict.fromkeys(own.loses for own in edits if own.loses)
    if lost:
        raise UnsupportedEditError(
            f"{text} does not keep the function of a trained network: it {', '.join(lost)}. These keep it: "
            "nl.convert_trained with skipinit, none or frozen_batch_norm exactly, and with group_norm, nf_resnet or "
            "dyt nearly; nl.fold and nl.freeze for batch norms; nl.remove_norms for layer norms."
        )
    kept = [FoldNorms() if own.changes == "norms removed" else own for own in edits if not own.of_random_weights]
    layers = any(own.changes == "layers" for own in kept)
    fixes = any(own == FoldNorms() or own == ReplaceNorms("frozen") for own in kept)
    return (NoteStatistics(layers, fixes), *kept, MatchStatistics())


@edit
class FoldNorms(Edit):
    """Fold every batch norm with its running statistics into the weights next to it, which go on training.

        γ / √(σ² + ε) · (W ∗ x + b − μ) + β = (sW) ∗ x + (s(b − μ) + β),   s = γ / √(σ² + ε) per channel

    as `fold`. Where no layer takes the norm, as before zero padding, a learned factor and shift per channel stay in
    its place. The function in evaluation is that of the network before, up to rounding. Frozen batch norms are folded
    too.
    """

    needs = frozenset({"values", "inputs"})

    def apply(self, surgery: Surgery) -> None:
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
        maps = freeze_norms(model, surgery.places.covers)
        outcomes = fold_affines(model, maps, flows_of(model, *surgery.example), trained=trains)
        left: dict[Any, nn.Module] = {}
        for own in outcomes:
            surgery.calibration.folded[own.path] = own
            if own.outcome == "folded":
                surgery.log.removed.add(own.path)
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

    needs = frozenset({"values", "inputs"})

    layers: bool = False
    gives: bool = False

    def apply(self, surgery: Surgery) -> None:
        noted, batches = surgery.calibration, max(1, len(surgery.calibration.batches))
        rows: dict[str, list[Tensor]] = defaultdict(list)
        moments: dict[str, list[Tensor]] = defaultdict(list)
        norms = [layer.path for layer in whole_norms(surgery) if ":" not in layer.path]
        bends = {path: self._bends(surgery, path) for path in norms}
        lacking = [path for path in norms if self.gives and _lacks_statistics(surgery.get(path))]
        paths = [path for path in norms if bends[path] is not None or path in lacking]
        if self.layers:
            every = (layer for layer in surgery.places.weight_layers() if ":" not in layer.path and not layer.gating)
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
