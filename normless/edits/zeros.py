"""The zero initializations: branches that start at nothing, logits that start at zero."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from normless.edits.edit import EDITS, Edit, Surgery
from normless.residual import Layer, ResidualBlock


@EDITS.register()
@dataclass(frozen=True)
class ZeroBranchEnds(Edit):
    """The last weight layer of every branch starts at zero, its bias too (Fixup, rule 1)."""

    def apply(self, surgery: Surgery) -> None:
        """Zero one layer per block."""
        for block in surgery.blocks():
            for branch in block.branches:
                weights = [layer for layer in branch if layer.kind == "weight" and not layer.gating]
                if not weights:
                    raise surgery.unsupported(block.name, "its branch has no weight layer")
                _zero(surgery, weights[-1].path)


@EDITS.register()
@dataclass(frozen=True)
class ZeroClassifier(Edit):
    """The classifier starts at zero, so that the initial loss is exactly the log of the number of classes.

    A weight that embeds the input too, as in language models, stays: at zero it would take the input away.
    """

    def apply(self, surgery: Surgery) -> None:
        """Zero the classifier's weight and bias."""
        path = surgery.classifier()
        if path in surgery.tied_layers():
            bias = getattr(surgery.get(path), "bias", None)
            if isinstance(bias, Tensor):
                nn.init.zeros_(bias)
            surgery.record(path, "weight stays, since it embeds the input too")
        else:
            _zero(surgery, path)


@EDITS.register()
@dataclass(frozen=True)
class ZeroLastGamma(Edit):
    """γ of the norm at the end of every branch starts at zero (Goyal et al. 2017, section 5.1)."""

    def apply(self, surgery: Surgery) -> None:
        """Zero γ at every branch end; refuse branches that do not end in a norm."""
        ends = []
        for block in surgery.blocks():
            end = surgery.branch_end(block)
            if end is None or end.kind != "norm":
                raise surgery.unsupported(block.name, _why_not(surgery, block, end))
            ends.append(end.path)
        for path in ends:
            gamma = surgery.get(path).weight
            if not isinstance(gamma, Tensor):
                raise surgery.unsupported(path, "the norm has no γ")
            nn.init.zeros_(gamma)
            surgery.record(path, "γ = 0")


def _why_not(surgery: Surgery, block: ResidualBlock, end: Layer | None) -> str:
    norms = [layer for layer in block.branch_layers if layer.kind == "norm" and surgery.is_left(layer)]
    if not norms:
        return "its branch has no norm"
    if end is None:
        return f"something that is no layer comes behind the last norm of its branch, {norms[-1].path}"
    behind = block.branch_layers[block.branch_layers.index(norms[-1]) :]
    followed = f"the last norm of its branch, {norms[-1].path}, is followed by {end.path}"
    if any(layer.kind == "activation" for layer in behind):
        return (
            f"{followed}: at γ = 0 the activation between them passes no gradient, "
            "and the branch would stay at zero for good"
        )
    return f"{followed}, so the branch does not end in γ"


def _zero(surgery: Surgery, path: str) -> None:
    layer = surgery.get(path)
    for name in ("weight", "bias"):
        parameter = getattr(layer, name, None)
        if isinstance(parameter, Tensor):
            nn.init.zeros_(parameter)
    surgery.record(path, "weight = 0")
