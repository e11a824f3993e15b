"""Tailor the slope of rectifiers to the depth of their network."""

from __future__ import annotations

from math import acos, pi, sqrt

from torch import nn

from normless._internal.reach import reachable
from normless.edits.edit import Edit, edit
from normless.edits.normalizer_free import refuse_fused
from normless.edits.surgery import Surgery
from normless.nn.activation import ScaledActivation
from normless.signal import Propagation, is_homogeneous


@edit
class TailorActivations(Edit):
    """Turn rectifiers into √(2 / (1 + a²)) · (max(x, 0) + a · min(x, 0)) (Zhang et al. 2022, TAT for Leaky ReLUs).

    For normal inputs with correlation c, the outputs have the correlation below, which weights of variance 1/inputs
    keep:

        C(c) = c + (1 - a)² / (π (1 + a²)) · (√(1 - c²) - c · arccos(c)).

    Residual sums become w·x + √(1 - w²)·f(x), with the correlation w² C₁ + (1 - w²) C₂. The slope a, the same
    everywhere, maps uncorrelated inputs to the correlation η at the network's end; it is 0 if a ReLU stays below η.
    For other sums and concatenations, the largest correlation counts; poolings and other operations are ignored.

    Args:
        eta: η; 0.9 in the authors' code.
        skip: w.
    """

    loses = "replaces the activations"

    eta: float = 0.9
    skip: float = 0.5**0.5

    def apply(self, surgery: Surgery) -> None:
        if not (0 < self.eta < 1 and 0 < self.skip < 1):
            raise surgery.unsupported("", f"η and w lie between 0 and 1, got {self.eta} and {self.skip}")
        refuse_fused(surgery, surgery.map.norms)
        p = Propagation(surgery.model, surgery.map.flow)
        blocks, on_way = list(surgery.map.walk()), sorted(reachable(p.flow.outputs, lambda at: p.reads[at]))
        normal: set[int] = set()
        for at in on_way:
            kind, reads = p.kinds[at], p.reads[at]
            if kind in ("parameter", "gate", "attention"):
                raise surgery.unsupported("", f"the correlation after its {kind} is not known")
            if kind == "activation" and reads[0] not in normal:
                reason = "it reads more than outputs of weight layers, which have mean zero"
                raise surgery.unsupported(p.place(at), reason)
            if kind == "weight" or (kind not in ("activation", "input") and normal.issuperset(reads)):
                normal.add(at)
        if len(blocks) != len(p.sums) or any(len(block.branches) > 1 for block in blocks):
            raise surgery.unsupported("", "it has a global skip path, or a sum of several branches")
        slope, high = 0.0, 1.0
        for _ in range(50):
            middle = (slope + high) / 2
            is_above = _correlation_at_end(p, on_way, middle, self.skip**2) > self.eta
            slope, high = (middle, high) if is_above else (slope, middle)
        for total in map(surgery.sum, blocks):
            total.skip_factor *= self.skip
            total.branch_factor *= sqrt(1 - self.skip**2)
        layers = [layer for layer in surgery.map.layers() if layer.kind == "activation"]
        for path in dict.fromkeys(surgery.own_path(layer) if ":" in layer.path else layer.path for layer in layers):
            if not is_homogeneous(surgery.get(path)):
                raise surgery.unsupported(path, "it is not a ReLU or leaky ReLU with a slope to tailor")
            surgery.replace(path, ScaledActivation(nn.LeakyReLU(slope), sqrt(2 / (1 + slope**2))))
            surgery.record(path, f"leaky ReLU of slope {slope:.4g}, × {sqrt(2 / (1 + slope**2)):.4g}")


def _correlation_at_end(p: Propagation, on_way: list[int], slope: float, share: float) -> float:
    """Return the correlation of two uncorrelated inputs at the network's end; `share` is w² of residual sums."""
    reached: dict[int, float] = {}
    for at in on_way:
        first, *others = (reached[read] for read in p.reads[at]) if p.reads[at] else (0.0,)
        if p.kinds[at] == "activation":
            first = after_rectifier(first, slope)
        elif p.kinds[at] == "sum":
            first, others = share * first + (1 - share) * others[0], []
        reached[at] = max(first, *others, -1.0)
    return max(reached[at] for at in p.flow.outputs)


def after_rectifier(correlation: float, slope: float) -> float:
    """Return C(c), the correlation of a leaky ReLU's outputs for normal inputs with correlation c."""
    c = min(correlation, 1.0)
    return c + (1 - slope) ** 2 / (pi * (1 + slope**2)) * (sqrt(1 - c**2) - c * acos(c))
