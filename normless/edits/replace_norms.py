"""Batch normalizations replaced by variants."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.edits.edit import EDITS, Edit, Surgery
from normless.errors import UnsupportedEditError
from normless.nn import batch_norms
from normless.residual.classify import describe

Family = Literal["ghost", "partial", "alternating", "group"]

FAMILIES: dict[Family, tuple[type[_BatchNorm], type[_BatchNorm]]] = {
    "ghost": (batch_norms.GhostBatchNorm1d, batch_norms.GhostBatchNorm2d),
    "partial": (batch_norms.PartialBatchNorm1d, batch_norms.PartialBatchNorm2d),
    "alternating": (batch_norms.AlternatingBatchNorm1d, batch_norms.AlternatingBatchNorm2d),
}


@EDITS.register()
@dataclass(frozen=True)
class ReplaceNorms(Edit):
    """Batch norms become ghost (Hoffer et al. 2017), partial or alternating ones (Bjorck et al.), or group norms.

    The new layers keep γ, β, ε and the running statistics.

    Args:
        family: `ghost` (options: ghost_size), `partial` (mean, variance, gamma, beta), `alternating`, or
            `group` (groups: the most groups a layer has; gcd(groups, channels) are used).
        options: keyword arguments of the new layers, as a tuple of pairs.
    """

    family: Family
    options: tuple[tuple[str, Any], ...] = ()

    def apply(self, surgery: Surgery) -> None:
        """Replace every batch norm; other kinds of norm refuse."""
        if not surgery.map.norms:
            raise surgery.unsupported("", "it has no normalization to replace")
        for path in surgery.map.norms:
            old = surgery.get(path)
            if not isinstance(old, (nn.BatchNorm1d, nn.BatchNorm2d)):
                raise surgery.unsupported(path, f"it is a {describe(old)}, not a batch norm of vectors or images")
            with surgery.refusing_at(path):
                new = self._variant(old)
            _take_over(old, new)
            surgery.replace(path, new)
            surgery.record(path, f"{describe(old)} → {describe(new)}")

    def _variant(self, old: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
        options = dict(self.options)
        if self.family == "group":
            return _group_norm(old, **options)
        if self.family == "partial" and not old.affine:
            options |= {"gamma": False, "beta": False}
        kept = {name: getattr(old, name) for name in ("eps", "momentum", "affine", "track_running_stats")}
        return FAMILIES[self.family][isinstance(old, nn.BatchNorm2d)](old.num_features, **kept, **options)


def _group_norm(old: nn.BatchNorm1d | nn.BatchNorm2d, groups: int) -> nn.GroupNorm:
    if groups < 1:
        raise UnsupportedEditError(f"a layer has at least one group, got groups={groups}")
    used = gcd(groups, old.num_features)
    if isinstance(old, nn.BatchNorm1d) and used == old.num_features:
        raise UnsupportedEditError(
            f"with groups={groups} each of its {old.num_features} features would be a group of its own, "
            "and a group of one value is normalized to nothing; take fewer groups"
        )
    return nn.GroupNorm(used, old.num_features, eps=old.eps, affine=old.affine)


def _take_over(old: nn.Module, new: nn.Module) -> None:
    """Give the new layer what both have under one name, in the old one's dtype, on its device, frozen if it was."""
    state = old.state_dict()
    reference = next((value for value in state.values() if value.is_floating_point()), None)
    if reference is not None:
        new.to(device=reference.device, dtype=reference.dtype)
    known = new.state_dict()
    new.load_state_dict(known | {name: value for name, value in state.items() if name in known})
    before = dict(old.named_parameters())
    for name, parameter in new.named_parameters():
        if name in before:
            parameter.requires_grad_(before[name].requires_grad)
