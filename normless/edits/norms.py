"""Edits that take normalizations away or put them elsewhere."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.edits.edit import EDITS, Edit, Surgery
from normless.residual.classify import describe


@EDITS.register()
@dataclass(frozen=True)
class RemoveNorms(Edit):
    """Every normalization goes, and its γ and β with it."""

    def apply(self, surgery: Surgery) -> None:
        """Put an identity in the place of every norm."""
        for path in surgery.map.norms:
            _remove(surgery, path)


@EDITS.register()
@dataclass(frozen=True)
class KeepLayerNorms(Edit):
    """Nothing changes; a network whose norms are no layer norms but batch norms is refused."""

    def apply(self, surgery: Surgery) -> None:
        """Look at every norm."""
        for path in surgery.map.norms:
            norm = surgery.get(path) if ":" not in path else None
            if isinstance(norm, _BatchNorm):
                raise surgery.unsupported(
                    path,
                    f"it is a {describe(norm)}, and this is the scheme of transformers as they are written; for a "
                    "network with batch norms as it is written there is batch_norm, and group_norm(groups=1) "
                    "normalizes each of its examples by itself",
                )


@EDITS.register()
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
        if self.place not in ("after_sum", "skip_path"):
            raise surgery.unsupported("", f"the place is after_sum or skip_path, not {self.place!r}")
        for block in surgery.blocks():
            total = surgery.sum(block)
            norm = _batch_norm_like(surgery, surgery.last_weight(block))
            norm.train(total.training)
            if self.place == "after_sum":
                total.norm_total = norm
            else:
                total.norm_skip = norm
            surgery.record(block.name, f"{describe(norm)} {self.place.replace('_', ' ')}")


@EDITS.register()
@dataclass(frozen=True)
class OnlyFinalNorm(Edit):
    """All norms go and one batch normalization comes before the classifier (De & Smith, table 4 and D.2)."""

    def apply(self, surgery: Surgery) -> None:
        """Remove every norm; put one on the features that the classifier reads."""
        path = surgery.classifier()
        for norm in surgery.map.norms:
            _remove(surgery, norm)
        classifier = surgery.affine(path)
        if not isinstance(classifier, nn.Linear):
            raise surgery.unsupported(path, "the classifier is not a linear layer")
        weight = classifier.weight
        classifier.before = nn.BatchNorm1d(classifier.in_features, device=weight.device, dtype=weight.dtype)
        classifier.before.train(classifier.training)
        surgery.record(path, "batch norm before it")


@EDITS.register()
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
        norm = _batch_norm_like(surgery, surgery.last_weight(last))
        if last.activation_after_sum is None:
            surgery.sum(last).norm_total = norm.train(surgery.model.training)
            surgery.record(last.name, f"{describe(norm)} after the sum")
        else:
            path = surgery.own_path(next(layer for layer in last.after_sum if layer.kind == "activation"))
            surgery.replace(path, nn.Sequential(surgery.get(path), norm))
            surgery.record(path, f"{describe(norm)} behind it")


def _remove(surgery: Surgery, path: str) -> None:
    """Take one norm away; an activation or dropout that its module holds stays, under its own name."""
    layer = surgery.map.by_path[path]
    for reader in surgery.map.readers.get(path, ()):
        surgery.not_in_place(reader)
    if ":" in path:
        surgery.remove_function(layer)
        surgery.record(path, f"{layer.description} removed")
        return
    old = surgery.single(path)
    extra = [name for name in layer.parameters if name != layer.gamma and not name.endswith(("bias", "beta"))]
    if layer.gamma is not None and extra:
        raise surgery.unsupported(
            path, f"a {type(old).__name__} normalizes and bends its input in one formula, with {', '.join(extra)}"
        )
    rest = OrderedDict((name, one) for name, one in old.named_children() if f"{path}.{name}" in surgery.map.by_path)
    surgery.remove(path, nn.Sequential(rest) if rest else nn.Identity())
    surgery.record(path, f"{describe(old)} removed")


def _batch_norm_like(surgery: Surgery, path: str) -> nn.Module:
    """A batch norm for the output of the weight layer at `path`, in its dtype and on its device."""
    layer = surgery.get(path)
    kinds: tuple[tuple[type[nn.Module], type[nn.Module]], ...] = (
        (nn.Linear, nn.BatchNorm1d),
        (nn.Conv1d, nn.BatchNorm1d),
        (nn.Conv2d, nn.BatchNorm2d),
        (nn.Conv3d, nn.BatchNorm3d),
    )
    for kind, norm in kinds:
        if isinstance(layer, kind):
            assert isinstance(layer.weight, Tensor)
            return norm(layer.weight.shape[0], device=layer.weight.device, dtype=layer.weight.dtype)
    raise surgery.unsupported(path, f"no batch norm is known for the output of a {describe(layer)}")
