"""Replace batch norms by their variants or by group norms."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from normless.edits._batch_axis import Along
from normless.edits._batches import profile
from normless.edits._edit import Edit, edit
from normless.edits._norm_kinds import (
    KINDS,
    NormKind,
    is_of_kind,
    norm_of_kind,
    reason_against,
    take_over,
    torch_norm,
)
from normless.edits._norm_places import idle_siblings, module_of, replace_norm, whole_norms
from normless.edits._surgery import Surgery
from normless.errors import MissingValuesError, UnsupportedEditError
from normless.nn import FrozenBatchNorm, _batch_norms as batch_norms
from normless.nn._domains import DomainBatchNorm, SplitBatchNorm
from normless.residual import Layer
from normless.residual._batch_statistics import BATCH_NORMS, as_batch_norm, keeps_statistics, takes_batch_statistics
from normless.residual._description import describe, with_article
from normless.residual._inside_norms import is_plain
from normless.residual._operations import BATCH_NORM

Family = NormKind | Literal["ghost", "partial", "alternating", "plain", "synchronized", "frozen", "domain", "split"]

# Norms with statistics of each example, or of parts of the first axis.
_OF_EXAMPLES: tuple[Family, ...] = ("instance", "group", "layer", "rms", "ghost", "split")
# These have the running statistics, γ and β of the batch norms that they replace.
KEEPING_STATISTICS: tuple[Family, ...] = ("ghost", "partial", "alternating", "synchronized", "frozen", "split")


@edit
class ReplaceNorms(Edit):
    """Replace batch norms by ghost (Hoffer et al. 2017), partial or alternating (Bjorck et al.), or by another kind.

    The new layers keep γ, β and ε, and variants of batch norms the running statistics. Variants take the place of
    norms with batch statistics, and an instance, group, layer, RMS or batch norm that of any other of these which has
    a counterpart there. Other norms are kept; the plan lists each with the reason.

    Args:
        family: `ghost` (options: ghost_size), `partial` (mean, variance, gamma, beta), `alternating`,
            `group` (groups: the largest number of groups; gcd(groups, channels) are used, and fewer if a group would
            have two values or one), `instance`, `layer`, `rms`, `batch` (with fresh running statistics for norms that
            have none), `plain` (torch's batch norm, also for frozen and sub-batch norms),
            `synchronized`, `frozen`, `domain` (domains: the number of sets of statistics, γ and β), or `split`
            (parts: likewise for parts of a batch).
        options: keyword arguments of the new layers, as a tuple of pairs.
    """

    changes = "norms replaced"

    family: Family
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def kind(self) -> NormKind | None:
        """The kind of norm, None for a variant of batch norm."""
        return next((kind for kind in KINDS if kind == self.family), None)

    @property
    def loses(self) -> str:
        return "gives norms running statistics that nothing measured" if self.family == "batch" else ""

    def apply(self, surgery: Surgery) -> None:
        if not surgery.map.norms:
            raise surgery.unsupported("", "it has no normalization to replace")
        norms = whole_norms(surgery)
        shapes = _input_shapes(surgery, norms)
        is_so = {layer.path: self._is_so_already(surgery, layer, shapes[layer.path]) for layer in norms}
        others = [layer for layer in norms if not is_so[layer.path]]
        foreign = {layer.path: self._reason_to_keep(surgery, layer, shapes[layer.path]) for layer in others}
        kept = {path: f"it is one already, {what}" for path, what in is_so.items() if what}
        kept |= {path: reason for path, reason in foreign.items() if reason}
        if len(others) == len(norms) and all(foreign.values()):
            path, reason = next(iter(foreign.items()))
            raise surgery.unsupported(path, reason)
        if self.family in _OF_EXAMPLES:
            for layer in norms:
                if layer.path not in kept:
                    _check_examples(surgery, layer, self.family)
        for layer in norms:
            if layer.path in kept:
                surgery.record(layer.path, f"kept: {kept[layer.path]}")
                continue
            old, shape = module_of(surgery, layer), shapes.get(layer.path)
            with surgery.log.refusing_at(layer.path):
                new = self._variant(self._torch_norm(surgery, layer, shape) or old, shape)
                idle = [self._variant(sibling, shape) for sibling in idle_siblings(surgery, layer)]
            replace_norm(surgery, layer, new, idle)
            surgery.record(layer.path, f"{describe(old)} → {describe(new)}")

    def _is_so_already(self, surgery: Surgery, layer: Layer, shape: tuple[int, ...] | None) -> str:
        """Describe a norm that is of the family already; return "" for another."""
        if ":" in layer.path:
            return ""
        old = surgery.get(layer.path)
        if isinstance(old, _BatchNorm):
            goals = {"plain": BATCH_NORMS, "synchronized": (nn.SyncBatchNorm,)}.get(self.family, ())
            return with_article(type(old).__name__) if type(old) in goals or self.family == "batch" else ""
        if self.kind and is_of_kind(old, self.kind):
            return with_article(describe(old))
        is_frozen = keeps_statistics(old) and not takes_batch_statistics(old, shape)
        return "its statistics are fixed" if is_frozen and self.family == "frozen" else ""

    def _reason_to_keep(self, surgery: Surgery, layer: Layer, shape: tuple[int, ...] | None) -> str:
        """Say why a norm is kept; return "" for a norm with batch statistics, or one that `plain` converts."""
        is_function = ":" in layer.path
        if is_function and layer.description in BATCH_NORM:
            module_of(surgery, layer)
        what = layer.description if is_function else describe(surgery.get(layer.path))
        reason = f"it is {with_article(what)}, not a batch norm of vectors, images or volumes"
        if is_function:
            return reason
        old = surgery.get(layer.path)
        if self.family == "plain" and isinstance(old, (_InstanceNorm, nn.GroupNorm)):
            reason += " (batch_norm(replace=True) puts one in its place)"
        if isinstance(old, _BatchNorm):
            return reason_against(old, self.kind, shape) if self.kind else ""
        is_frozen = keeps_statistics(old) and not takes_batch_statistics(old, shape)
        # What the norm put out was noted, so that the new one is fitted to it.
        is_fitted = self.family == "group" and surgery.calibration.rows
        if is_frozen and self.family != "plain" and not is_fitted:
            return f"{reason}: its statistics are fixed (plain_batch_norm converts it to torch's batch norm)"
        if is_frozen or takes_batch_statistics(old, shape):
            return ""
        known = self._torch_norm(surgery, layer, shape)
        return reason if known is None or self.kind is None else reason_against(known, self.kind, shape)

    def _torch_norm(self, surgery: Surgery, layer: Layer, shape: tuple[int, ...] | None) -> nn.Module | None:
        """Return the instance, group, layer or RMS norm of torch that a norm is or computes; None for others."""
        norm = surgery.get(layer.path)
        if self.kind is None or keeps_statistics(norm):
            return None
        if surgery.original is not None and not is_plain(norm):
            raise MissingValuesError("What a norm of an unknown class computes shows when it runs.")
        gamma = None if layer.gamma is None else surgery.parameter(layer.gamma)
        beta = next((surgery.parameter(name) for name in layer.shifts), None)
        return torch_norm(norm, gamma, beta, layer.offset, shape)

    def _variant(self, old: nn.Module, shape: tuple[int, ...] | None) -> nn.Module:
        """Return the new norm for an input of this shape, with the old norm's parameters and buffers."""
        options = dict(self.options)
        if self.kind and isinstance(old, (_InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)):
            return norm_of_kind(old, self.kind, shape, **options)
        # The number of axes does not matter to these.
        is_unsized = self.family in ("group", "synchronized", "frozen") and shape is None
        norm = as_batch_norm(old, (2, 1) if is_unsized else shape)
        new: nn.Module
        if self.kind:
            return norm_of_kind(norm, self.kind, shape, **options)
        if self.family == "plain":
            return norm
        if self.family == "domain":
            return DomainBatchNorm([deepcopy(norm) for _ in range(_checked(**options))])
        if self.family == "split":
            return SplitBatchNorm([deepcopy(norm) for _ in range(_checked(**options))])
        if self.family == "frozen":
            new = FrozenBatchNorm(norm.num_features, norm.eps)
        else:
            if self.family == "partial" and not norm.affine:
                options |= {"gamma": False, "beta": False}
            kept = {name: getattr(norm, name) for name in ("eps", "momentum", "affine", "track_running_stats")}
            # GhostBatchNorm2d replaces BatchNorm2d.
            own = nn.SyncBatchNorm if self.family == "synchronized" else None
            kind = own or getattr(batch_norms, f"{self.family.title()}{type(norm).__name__}")
            new = kind(norm.num_features, **kept, **options)
        take_over(norm, new)
        return new


def _input_shapes(surgery: Surgery, norms: list[Layer]) -> dict[str, tuple[int, ...] | None]:
    """Return the input shapes of norms, if the map's dataflow or a pass on the example inputs shows them."""
    shapes = {layer.path: surgery.places.input_shape(layer.path) for layer in norms}
    unknown = [
        path
        for path, shape in shapes.items()
        if shape is None and ":" not in path and not isinstance(surgery.get(path), BATCH_NORMS)
    ]

    def note(path: str, _: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        shapes[path] = tuple(inputs[0].shape) if inputs else None

    if unknown and any(map(len, surgery.example)):
        profile(surgery, unknown, note)
    return shapes


def _check_examples(surgery: Surgery, layer: Layer, family: Family) -> None:
    """Refuse a norm whose input does not have the examples on the first axis, since the new one would mix them."""
    axis = surgery.places.batch_axis
    is_last = isinstance(surgery.get(layer.path), (nn.LayerNorm, nn.RMSNorm)) and family in ("layer", "rms")
    for index in surgery.places.read_by(layer.path):
        where, shape = axis[index], surgery.map.flow[index].shape
        if where == "free" or shape is None:
            continue
        if isinstance(where, Along):
            is_first = where.axis < len(shape) - 1 if is_last else where.axis == 0
            lie = f"along axis {where.axis} of {shape}"
        else:
            # The examples may be among others on the first axis; vectors have no positions.
            is_first = is_last or len(shape) == 2 or shape[0] % axis.size == 0
            lie = f"in {shape}, packed in a way that was not followed"
        if not is_first:
            raise surgery.unsupported(
                layer.path,
                f"its input has the {axis.size} examples {lie}, and {family} norm there would take its statistics "
                "over several examples; move them to the first axis in front of the norm, or convert other parts "
                "by only=",
            )


def _checked(**counts: int) -> int:
    """Check and return the number of domains or parts."""
    ((name, count),) = counts.items()
    if count < 2:
        raise UnsupportedEditError(f"such norms have at least two {name}, got {name}={count}")
    return count
