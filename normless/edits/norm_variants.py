"""Replace batch norms by their variants or by group norms."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from math import gcd, prod
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.edits.edit import Edit, edit
from normless.edits.norm_places import idle_siblings, module_of, replace_norm, whole_norms
from normless.edits.surgery import Surgery
from normless.errors import UnsupportedEditError
from normless.nn import DomainBatchNorm, FrozenBatchNorm, SplitBatchNorm, batch_norms
from normless.residual import Layer
from normless.residual.batch_statistics import BATCH_NORMS, as_batch_norm, keeps_statistics, takes_batch_statistics
from normless.residual.description import describe, with_article
from normless.residual.operations import BATCH_NORM

Family = Literal["ghost", "partial", "alternating", "group", "plain", "synchronized", "frozen", "domain", "split"]

# Wu & He's other setting: 16 channels per group.
_VALUES_PER_GROUP = 16
_ALREADY = "it is one already"
# These have the running statistics, γ and β of the batch norms that they replace.
KEEPING_STATISTICS: tuple[Family, ...] = ("ghost", "partial", "alternating", "synchronized", "frozen", "split")


@edit
class ReplaceNorms(Edit):
    """Replace batch norms by ghost (Hoffer et al. 2017), partial or alternating (Bjorck et al.) or group norms.

    The new layers keep γ, β, ε and the running statistics. Norms without batch statistics, such as layer norms and
    frozen batch norms, are kept; the plan lists each with the reason.

    Args:
        family: `ghost` (options: ghost_size), `partial` (mean, variance, gamma, beta), `alternating`,
            `group` (groups: the largest number of groups; gcd(groups, channels) are used, and fewer if a group would
            have two values or one), `plain` (torch's batch norm, also for frozen and sub-batch norms),
            `synchronized`, `frozen`, `domain` (domains: the number of sets of statistics, γ and β), or `split`
            (parts: likewise for parts of a batch).
        options: keyword arguments of the new layers, as a tuple of pairs.
    """

    family: Family
    options: tuple[tuple[str, Any], ...] = ()

    def apply(self, surgery: Surgery) -> None:
        if not surgery.map.norms:
            raise surgery.unsupported("", "it has no normalization to replace")
        norms = whole_norms(surgery)
        shapes = _input_shapes(surgery, norms)
        kept = {layer.path: reason for layer in norms if (reason := self._reason_to_keep(surgery, layer))}
        foreign = {path: reason for path, reason in kept.items() if not reason.startswith(_ALREADY)}
        if len(foreign) == len(norms):
            path, reason = next(iter(foreign.items()))
            raise surgery.unsupported(path, reason)
        for layer in norms:
            if layer.path in kept:
                surgery.record(layer.path, f"kept: {kept[layer.path]}")
                continue
            old, shape = module_of(surgery, layer), shapes.get(layer.path)
            with surgery.refusing_at(layer.path):
                new = self._variant(old, shape)
                others = [self._variant(idle, shape) for idle in idle_siblings(surgery, layer)]
            replace_norm(surgery, layer, new, others)
            surgery.record(layer.path, f"{describe(old)} → {describe(new)}")

    def _reason_to_keep(self, surgery: Surgery, layer: Layer) -> str:
        """Say why a norm is kept; return "" for a norm with batch statistics, or one that `plain` converts."""
        is_function = ":" in layer.path
        if is_function and layer.description in BATCH_NORM:
            module_of(surgery, layer)
        what = layer.description if is_function else describe(surgery.get(layer.path))
        reason = f"it is {with_article(what)}, not a batch norm of vectors, images or volumes"
        if is_function:
            return reason
        old, shape = surgery.get(layer.path), surgery.input_shape(layer.path)
        goals = {"plain": BATCH_NORMS, "synchronized": (nn.SyncBatchNorm,)}.get(self.family, ())
        if isinstance(old, _BatchNorm):
            return f"{_ALREADY}, {with_article(type(old).__name__)}" if type(old) in goals else ""
        is_frozen = keeps_statistics(old) and not takes_batch_statistics(old, shape)
        if is_frozen and self.family == "frozen":
            return f"{_ALREADY}, its statistics are fixed"
        # What the norm put out was noted, so that the new one is fitted to it.
        is_fitted = self.family == "group" and surgery.calibration.rows
        if is_frozen and self.family != "plain" and not is_fitted:
            return f"{reason}: its statistics are fixed (plain_batch_norm converts it to torch's batch norm)"
        return "" if is_frozen or takes_batch_statistics(old, shape) else reason

    def _variant(self, old: nn.Module, shape: tuple[int, ...] | None) -> nn.Module:
        """Return the new norm for an input of this shape, with the old norm's parameters and buffers."""
        options = dict(self.options)
        # The number of axes does not matter to these.
        is_unsized = self.family in ("group", "synchronized", "frozen") and shape is None
        norm = as_batch_norm(old, (2, 1) if is_unsized else shape)
        if self.family == "group":
            new: nn.Module = _group_norm(norm, shape, **options)
        elif self.family == "plain":
            return norm
        elif self.family == "domain":
            return DomainBatchNorm([deepcopy(norm) for _ in range(_checked(**options))])
        elif self.family == "split":
            return SplitBatchNorm([deepcopy(norm) for _ in range(_checked(**options))])
        elif self.family == "frozen":
            new = FrozenBatchNorm(norm.num_features, norm.eps)
        else:
            if self.family == "partial" and not norm.affine:
                options |= {"gamma": False, "beta": False}
            kept = {name: getattr(norm, name) for name in ("eps", "momentum", "affine", "track_running_stats")}
            # GhostBatchNorm2d replaces BatchNorm2d.
            own = nn.SyncBatchNorm if self.family == "synchronized" else None
            kind = own or getattr(batch_norms, f"{self.family.title()}{type(norm).__name__}")
            new = kind(norm.num_features, **kept, **options)
        _take_over(norm, new)
        return new


def _input_shapes(surgery: Surgery, norms: list[Layer]) -> dict[str, tuple[int, ...] | None]:
    """Return the input shapes of norms, if the map's dataflow or a pass on the example inputs shows them."""
    shapes = {layer.path: surgery.input_shape(layer.path) for layer in norms}
    unknown = [
        path
        for path, shape in shapes.items()
        if shape is None and ":" not in path and not isinstance(surgery.get(path), BATCH_NORMS)
    ]

    def note(path: str, _: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        shapes[path] = tuple(inputs[0].shape) if inputs else None

    if unknown and (surgery.inputs or surgery.kwargs):
        surgery.profile(unknown, note)
    return shapes


def _checked(**counts: int) -> int:
    """Check and return the number of domains or parts."""
    ((name, count),) = counts.items()
    if count < 2:
        raise UnsupportedEditError(f"such norms have at least two {name}, got {name}={count}")
    return count


def _group_norm(old: _BatchNorm, shape: tuple[int, ...] | None, groups: int) -> nn.GroupNorm:
    """Make a group norm of at most `groups` groups, each with more than two values of an example."""
    if groups < 1:
        raise UnsupportedEditError(f"a layer has at least one group, got groups={groups}")
    channels = old.num_features
    known = None if shape is None or len(shape) < 2 else prod(shape[2:])
    # The input of a BatchNorm1d may be vectors.
    places = known if known is not None else 1 if isinstance(old, nn.BatchNorm1d) else None
    used = gcd(groups, channels)
    if places is not None and channels * places <= 2 * used:
        counts = (count for count in range(used, 1, -1) if channels % count == 0)
        best = next((count for count in counts if channels // count >= _VALUES_PER_GROUP), 1)
        if channels * places <= 2 * best or (known is None and used == channels):
            raise UnsupportedEditError(
                f"with groups={groups} each of its {channels} features would be a group of its own, "
                "and a group of one value is normalized to nothing; take fewer groups"
                if known is None
                else f"an example has {channels * places} values there, and of a group of one or two values group "
                "norm leaves at most signs; put that norm elsewhere, or remove it"
            )
        used = best
    return nn.GroupNorm(used, channels, eps=old.eps, affine=old.affine)


def _take_over(old: nn.Module, new: nn.Module) -> None:
    """Copy the state of the old layer to the new, with its dtype, device and `requires_grad`."""
    reference = next(chain(old.parameters(), old.buffers()), None)
    if reference is not None:
        new.to(reference)
    new.load_state_dict(old.state_dict(), strict=False)
    for name, parameter in new.named_parameters():
        own = getattr(old, name)
        if own is None:
            setattr(new, name, None)
        else:
            parameter.requires_grad_(own.requires_grad)
