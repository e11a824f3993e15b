"""The zero initializations: branches that start at nothing, logits that start at zero."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from normless.edits.edit import Edit, Surgery


@dataclass(frozen=True)
class ZeroBranchEnds(Edit):
    """The last weight layer of every branch starts at zero, its bias too (Fixup, rule 1)."""

    def apply(self, surgery: Surgery) -> None:
        """Zero one layer per block."""
        for block in surgery.blocks():
            if not block.branch:
                raise surgery.unsupported(block.name, "its branch has no weight layer")
            _zero(surgery, block.branch[-1])


@dataclass(frozen=True)
class ZeroClassifier(Edit):
    """The classifier starts at zero, so that the initial loss is exactly the log of the number of classes."""

    def apply(self, surgery: Surgery) -> None:
        """Zero the classifier's weight and bias."""
        if surgery.map.classifier is None:
            raise surgery.unsupported("", "no classifier was found behind its blocks")
        _zero(surgery, surgery.map.classifier)


@dataclass(frozen=True)
class ZeroLastGamma(Edit):
    """γ of the norm at the end of every branch starts at zero (Goyal et al. 2017, section 5.1)."""

    def apply(self, surgery: Surgery) -> None:
        """Zero γ at every branch end; refuse branches that do not end in a norm."""
        ends = []
        for block in surgery.blocks():
            end = surgery.branch_end(block)
            if end.kind != "norm":
                last = next((path for path in reversed(block.norms) if surgery.map.norms[path] == "last"), None)
                reason = (
                    "its branch has no norm"
                    if last is None
                    else f"the last norm of its branch, {last}, is followed by {end.path}: at γ = 0 a ReLU between "
                    "them passes no gradient and the branch would stay at zero for good"
                )
                raise surgery.unsupported(block.name, reason)
            ends.append(end.path)
        for path in ends:
            gamma = surgery.get(path).weight
            if not isinstance(gamma, Tensor):
                raise surgery.unsupported(path, "the norm has no γ")
            nn.init.zeros_(gamma)
            surgery.record(path, "γ = 0")


def _zero(surgery: Surgery, path: str) -> None:
    layer = surgery.get(path)
    for name in ("weight", "bias"):
        parameter = getattr(layer, name, None)
        if isinstance(parameter, Tensor):
            nn.init.zeros_(parameter)
    surgery.record(path, "weight = 0")
