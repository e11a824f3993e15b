"""Rectifiers whose slope is tailored to the network they are in, so that depth does not make all inputs look alike."""

from __future__ import annotations

from math import acos, pi, sqrt

from torch import nn

from normless.edits.edit import Edit, edit
from normless.edits.normalizer_free import refuse_fused
from normless.edits.surgery import Surgery
from normless.nn.activation import ScaledActivation
from normless.signal import Steps, is_homogeneous, steps_of

# What leaves the correlation of two inputs as it is, for independent weights of mean zero.
_PASSED = {"input", "weight", "norm", "factor", "average", "greatest", "padding", "dropout", "layout"}


@edit
class TailorActivations(Edit):
    """Every rectifier becomes √(2 / (1 + a²)) · (max(x, 0) + a · min(x, 0)) (Zhang et al. 2022, TAT for Leaky ReLUs).

    Of two inputs with correlation c its outputs have, for normal x of any variance,

        C(c) = c + (1 - a)² / (π (1 + a²)) · (√(1 - c²) - c · arccos(c)),

    and weights of variance 1/inputs keep that. Residual sums become w·x + √(1 - w²)·f(x), with w² C₁ + (1 - w²) C₂.
    The slope a, the same everywhere, is such that uncorrelated inputs have the correlation η at the network's end;
    0 where a ReLU gives no more than η already. Poolings, and norms, which are removed later, are passed over; of a
    concatenation and of other sums the greatest correlation is taken.

    Args:
        eta: η; 0.9 in the authors' code.
        skip: w.
    """

    eta: float = 0.9
    skip: float = 0.5**0.5

    def apply(self, surgery: Surgery) -> None:
        if not (0 < self.eta < 1 and 0 < self.skip < 1):
            raise surgery.unsupported("", f"η and w lie between 0 and 1, got {self.eta} and {self.skip}")
        refuse_fused(surgery)
        steps = steps_of(surgery.model, surgery.map)
        if steps is None:
            raise surgery.unsupported("", "its dataflow is not known; pass example inputs")
        on_way = sorted(steps.reached(steps.outputs, lambda at: steps[at].reads))
        unknown = [steps[at] for at in on_way if steps[at].kind not in _PASSED | {"activation", "sum", "add", "join"}]
        if unknown:
            what = f"the correlation after {unknown[0].kind if unknown[0].kind != 'other' else 'an operation'}"
            raise surgery.unsupported(unknown[0].path, f"{what} is not known, so that no slope follows from it")
        blocks = list(surgery.map.walk())
        if len(blocks) != sum(steps[at].kind == "sum" for at in on_way):
            raise surgery.unsupported("", "it has sums outside its blocks; level=outer takes global skip paths too")
        low, high = 0.0, 1.0
        while high - low > 1e-12 and _correlation(steps, on_way, 0.0, self.skip) > self.eta:
            middle = (low + high) / 2
            too_high = _correlation(steps, on_way, middle, self.skip) > self.eta
            low, high = (middle, high) if too_high else (low, middle)
        for block in blocks:
            if len(block.branches) > 1:
                raise surgery.unsupported(block.name, "it adds several branches")
            total = surgery.sum(block)
            total.skip_factor *= self.skip
            total.branch_factor *= sqrt(1 - self.skip**2)
            surgery.record(block.name, f"{total.skip_factor:.4g} · skip path + {total.branch_factor:.4g} · branch")
        self._replace(surgery, low)

    def _replace(self, surgery: Surgery, slope: float) -> None:
        """Put the tailored rectifier in the place of every activation."""
        for layer in surgery.map.layers():
            if layer.kind == "activation":
                path = surgery.own_path(layer) if ":" in layer.path else layer.path
                if path in surgery.replaced:
                    continue
                if not is_homogeneous(surgery.get(path)):
                    reason = "it is no ReLU or leaky ReLU, and other activations have no slope to tailor"
                    raise surgery.unsupported(layer.path, reason)
                surgery.replace(path, ScaledActivation(nn.LeakyReLU(slope), sqrt(2 / (1 + slope**2))))
                surgery.record(layer.path, f"slope {slope:.4g} below 0, × {sqrt(2 / (1 + slope**2)):.4g}")


def _correlation(steps: Steps, on_way: list[int], slope: float, skip: float) -> float:
    """The greatest correlation on the way to the end of two inputs that have none."""
    reached: dict[int, float] = {}
    for at in on_way:
        kind, reads = steps[at].kind, [reached[read] for read in steps[at].reads]
        if kind == "activation":
            reached[at] = after_rectifier(reads[0], slope)
        elif kind == "sum":
            reached[at] = skip**2 * reads[0] + (1 - skip**2) * max(reads[1:])
        else:
            reached[at] = max(reads, default=0.0)
    return max(reached.values())


def after_rectifier(correlation: float, slope: float) -> float:
    """C(c): the normalized second moment of a leaky ReLU's outputs whose normal inputs have the correlation c."""
    c = min(max(correlation, -1.0), 1.0)
    return c + (1 - slope) ** 2 / (pi * (1 + slope**2)) * (sqrt(1 - c**2) - c * acos(c))
