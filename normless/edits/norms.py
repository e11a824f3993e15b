"""Edits that remove or replace normalizations, or put them and dropout elsewhere."""

from __future__ import annotations

from collections import OrderedDict
from math import gcd
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.edits.edit import Edit, edit
from normless.edits.surgery import Surgery
from normless.errors import UnsupportedEditError
from normless.nn import ScalarAffine, batch_norms
from normless.residual.classify import describe

Family = Literal["ghost", "partial", "alternating", "group"]

_TORCH_FAMILY = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@edit
class RemoveNorms(Edit):
    """Every normalization is removed, with its γ and β (Fixup, section 3; ZeroInit, section 4)."""

    def apply(self, surgery: Surgery) -> None:
        _remove_norms(surgery)


@edit
class KeepLayerNorms(Edit):
    """Nothing changes; a network with batch norms instead of layer norms is refused (Vaswani et al. 2017)."""

    def apply(self, surgery: Surgery) -> None:
        for path in surgery.map.norms:
            norm = None if ":" in path else surgery.get(path)
            if isinstance(norm, _BatchNorm):
                raise surgery.unsupported(
                    path,
                    f"it is a {describe(norm)}, and this is the scheme of transformers as they are written; for a "
                    "network with batch norms as it is written there is batch_norm, and group_norm(groups=1) "
                    "normalizes each of its examples by itself",
                )


@edit
class NormOnSkip(Edit):
    """A further batch normalization in every block (De & Smith, table 4).

    Args:
        place: `after_sum`, as the table's heading says, or `skip_path`, the text's other reading.
    """

    place: Literal["after_sum", "skip_path"] = "after_sum"

    def apply(self, surgery: Surgery) -> None:
        if self.place not in ("after_sum", "skip_path"):
            raise surgery.unsupported("", f"the place is after_sum or skip_path, not {self.place!r}")
        for block in surgery.blocks():
            total = surgery.sum(block)
            norm = _batch_norm_like(surgery, surgery.last_weight(block)).train(total.training)
            setattr(total, "norm_total" if self.place == "after_sum" else "norm_skip", norm)
            surgery.record(block.name, f"{describe(norm)} {self.place.replace('_', ' ')}")


@edit
class OnlyFinalNorm(Edit):
    """All norms are removed, one batch normalization is put before the classifier (De & Smith, table 4 and D.2)."""

    def apply(self, surgery: Surgery) -> None:
        path = surgery.classifier()
        _remove_norms(surgery)
        classifier = surgery.affine(path)
        if not isinstance(classifier, nn.Linear):
            raise surgery.unsupported(path, "the classifier is not a linear layer")
        weight = classifier.weight
        _put_before(classifier, nn.BatchNorm1d(classifier.in_features, device=weight.device, dtype=weight.dtype))
        surgery.record(path, "batch norm before it")


@edit
class HeadDropout(Edit):
    """Dropout before the classifier (ZeroInit, part 3): a share of 0.6, on ImageNet 0.2 in the papers."""

    probability: float = 0.6

    def apply(self, surgery: Surgery) -> None:
        path = surgery.classifier()
        if not 0 <= self.probability < 1:
            raise surgery.unsupported(path, f"a drop probability lies in [0, 1), got {self.probability}")
        classifier = surgery.affine(path)
        _put_before(classifier, nn.Dropout(self.probability))
        surgery.record(path, f"dropout {self.probability:g} before it")


@edit
class OnlyTopNorm(Edit):
    """All norms are removed but one, after the last residual block (Bjorck et al., section 3.1 and appendix G).

    A pre-activation network has that norm already and keeps it; elsewhere it comes after the last sum and the
    activation that follows it, before the pooling.
    """

    def apply(self, surgery: Surgery) -> None:
        last = surgery.blocks()[-1]
        kept = next((layer.path for layer in surgery.map.head_layers if layer.kind == "norm"), None)
        _remove_norms(surgery, kept)
        if kept is not None:
            surgery.record(kept, "kept: the one norm at the top")
            return
        norm = _batch_norm_like(surgery, surgery.last_weight(last))
        if last.activation_after_sum is None:
            surgery.sum(last).norm_total = norm.train(surgery.model.training)
            surgery.record(last.name, f"{describe(norm)} after the sum")
        else:
            path = surgery.own_path(next(layer for layer in last.after_sum if layer.kind == "activation"))
            surgery.replace(path, nn.Sequential(surgery.get(path), norm))
            surgery.record(path, f"{describe(norm)} after it")


def _put_before(classifier: ScalarAffine, module: nn.Module) -> None:
    """Let the classifier's input pass a module, after those that it passes already."""
    module.train(classifier.training)
    classifier.before = module if classifier.before is None else nn.Sequential(classifier.before, module)


def _remove_norms(surgery: Surgery, kept: str | None = None) -> None:
    """Remove all norms but one; an activation or dropout inside a norm's module stays, under its own name."""
    known = surgery.map.by_path
    for path in [path for path in surgery.map.norms if path != kept]:
        layer = known[path]
        for reader in surgery.map.readers.get(path, ()):
            surgery.not_in_place(reader)
        if ":" in path:
            surgery.remove_function(layer)
            surgery.record(path, f"{layer.description} removed")
            continue
        old = surgery.single(path)
        extra = [name for name in layer.parameters if name not in (layer.gamma, *layer.shifts)]
        if layer.gamma is not None and extra:
            reason = f"a {type(old).__name__} normalizes and bends its input in one formula, with {', '.join(extra)}"
            raise surgery.unsupported(path, reason)
        rest = OrderedDict((name, child) for name, child in old.named_children() if f"{path}.{name}" in known)
        surgery.remove(path, nn.Sequential(rest) if rest else nn.Identity())
        surgery.record(path, f"{describe(old)} removed")


def _batch_norm_like(surgery: Surgery, path: str) -> nn.Module:
    """A batch norm for the output of the weight layer at `path`, in its dtype and on its device."""
    layer = surgery.get(path)
    linear = (nn.Linear, nn.Conv1d)
    for kinds, norm in ((linear, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d)):
        if isinstance(layer, kinds):
            return norm(layer.weight.shape[0], device=layer.weight.device, dtype=layer.weight.dtype)
    raise surgery.unsupported(path, f"no batch norm is known for the output of a {describe(layer)}")


@edit
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
        if not surgery.map.norms:
            raise surgery.unsupported("", "it has no normalization to replace")
        for path in surgery.map.norms:
            if ":" in path:
                raise surgery.unsupported(path, "it is a function in the forward code, no module to be replaced")
            old = surgery.get(path)
            if not isinstance(old, _TORCH_FAMILY):
                raise surgery.unsupported(
                    path, f"it is a {describe(old)}, not a batch norm of vectors, images or volumes"
                )
            with surgery.refusing_at(path):
                new = self._variant(old)
            _take_over(old, new)
            surgery.replace(path, new)
            surgery.record(path, f"{describe(old)} → {describe(new)}")

    def _variant(self, old: _BatchNorm) -> nn.Module:
        options = dict(self.options)
        if self.family == "group":
            return _group_norm(old, **options)
        if self.family == "partial" and not old.affine:
            options |= {"gamma": False, "beta": False}
        kept = {name: getattr(old, name) for name in ("eps", "momentum", "affine", "track_running_stats")}
        # GhostBatchNorm2d in the place of BatchNorm2d.
        layer = next(one.__name__ for one in _TORCH_FAMILY if isinstance(old, one))
        kind: type[_BatchNorm] = getattr(batch_norms, f"{self.family.title()}{layer}")
        return kind(old.num_features, **kept, **options)


def _group_norm(old: _BatchNorm, groups: int) -> nn.GroupNorm:
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
        new.to(reference)
    new.load_state_dict(state, strict=False)
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(old.get_parameter(name).requires_grad)
