"""Edits of the normalizations themselves: removed, replaced, moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.edits.edit import Edit, Surgery
from normless.nn import (
    AlternatingBatchNorm1d,
    AlternatingBatchNorm2d,
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    PartialBatchNorm1d,
    PartialBatchNorm2d,
)
from normless.residual.classify import describe


@dataclass(frozen=True)
class RemoveNorms(Edit):
    """Every normalization goes, and its γ and β with it."""

    def apply(self, surgery: Surgery) -> None:
        """Put an identity in the place of every norm."""
        for path in surgery.map.norms:
            _remove(surgery, path)


Family = Literal["ghost", "partial", "alternating", "group"]


@dataclass(frozen=True)
class ReplaceNorms(Edit):
    """Every batch normalization becomes one of another family, with its γ, β and running statistics.

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
            if not isinstance(old, _BatchNorm):
                raise surgery.unsupported(path, f"it is a {describe(old)}, not a batch normalization")
            new = _factory(self.family, old)(**dict(self.options))
            _copy_state(old, new)
            surgery.replace(path, new)
            surgery.record(path, f"{describe(old)} → {describe(new)}")


@dataclass(frozen=True)
class NormOnSkip(Edit):
    """A further batch normalization in every block (De & Smith, table 4).

    Args:
        place: `after_sum`: on the merged stream, behind the addition, as the table's heading says;
            `skip_path`: on the skip path before the addition, the text's other reading.
    """

    place: Literal["after_sum", "skip_path"] = "after_sum"

    def apply(self, surgery: Surgery) -> None:
        """Add one norm per block to its sum."""
        for block in surgery.blocks():
            total = surgery.sum(block)
            width = surgery.get(block.branch[-1])
            norm = _batch_norm_like(width)
            norm.train(total.training)
            if self.place == "after_sum":
                total.norm_total = norm
            else:
                total.norm_skip = norm
            surgery.record(block.name, f"{describe(norm)} {self.place.replace('_', ' ')}")


@dataclass(frozen=True)
class OnlyFinalNorm(Edit):
    """All norms go and one batch normalization comes before the classifier (De & Smith, table 4 and D.2)."""

    def apply(self, surgery: Surgery) -> None:
        """Remove every norm; put one on the features that the classifier reads."""
        path = surgery.map.classifier
        if path is None:
            raise surgery.unsupported("", "no classifier was found behind its blocks")
        for norm in surgery.map.norms:
            _remove(surgery, norm)
        classifier = surgery.affine(path)
        if not isinstance(classifier, nn.Linear):
            raise surgery.unsupported(path, "the classifier is not a linear layer")
        weight = classifier.weight
        classifier.before = nn.BatchNorm1d(classifier.in_features, device=weight.device, dtype=weight.dtype)
        classifier.before.train(classifier.training)
        surgery.record(path, "batch norm before it")


@dataclass(frozen=True)
class OnlyTopNorm(Edit):
    """All norms go but one, right behind the last residual block (Bjorck et al., section 3.1 and appendix G).

    A pre-activation network has that norm already and keeps it; elsewhere it comes after the last sum and the
    activation that follows it, before the pooling.
    """

    def apply(self, surgery: Surgery) -> None:
        """Remove every norm but that one, or put it there."""
        last = surgery.blocks()[-1]
        kept = next((layer.path for layer in surgery.map.head_layers if layer.kind == "norm"), None)
        for path in surgery.map.norms:
            if path != kept:
                _remove(surgery, path)
        if kept is not None:
            surgery.record(kept, "kept: the one norm at the top")
            return
        norm = _batch_norm_like(surgery.get(last.branch[-1]))
        if last.activation_after_sum is None:
            surgery.sum(last).norm_total = norm.train(surgery.model.training)
            surgery.record(last.name, f"{describe(norm)} after the sum")
        else:
            path = last.activation_after_sum
            surgery.replace(path, nn.Sequential(surgery.get(path), norm))
            surgery.record(path, f"{describe(norm)} behind it")


def _remove(surgery: Surgery, path: str) -> None:
    old = surgery.get(path)
    surgery.replace(path, nn.Identity())
    surgery.record(path, f"{describe(old)} removed")


def _factory(family: Family, old: _BatchNorm) -> Callable[..., nn.Module]:
    image = isinstance(old, nn.BatchNorm2d)
    kinds: dict[Family, tuple[type[_BatchNorm], type[_BatchNorm]]] = {
        "ghost": (GhostBatchNorm1d, GhostBatchNorm2d),
        "partial": (PartialBatchNorm1d, PartialBatchNorm2d),
        "alternating": (AlternatingBatchNorm1d, AlternatingBatchNorm2d),
    }
    if family == "group":
        return partial(_group_norm, old.num_features)
    return partial(
        kinds[family][image],
        old.num_features,
        eps=old.eps,
        momentum=old.momentum,
        affine=old.affine,
        track_running_stats=old.track_running_stats,
    )


def _group_norm(channels: int, groups: int = 32) -> nn.GroupNorm:
    return nn.GroupNorm(gcd(groups, channels), channels)


def _copy_state(old: nn.Module, new: nn.Module) -> None:
    """Take over what both layers have under one name, in the old layer's dtype and device."""
    state = old.state_dict()
    reference = next((value for value in state.values() if value.is_floating_point()), None)
    if reference is not None:
        new.to(device=reference.device, dtype=reference.dtype)
    known = new.state_dict()
    new.load_state_dict(known | {name: value for name, value in state.items() if name in known})


def _batch_norm_like(layer: nn.Module) -> nn.BatchNorm1d | nn.BatchNorm2d:
    """A batch norm for the output of a weight layer, in its dtype and on its device."""
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    kind = nn.BatchNorm1d if isinstance(layer, nn.Linear) else nn.BatchNorm2d
    return kind(weight.shape[0], device=weight.device, dtype=weight.dtype)
