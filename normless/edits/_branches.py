"""Edits of residual branches and sums: multipliers, scales of weights and sums, removal of branches."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field
from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless.edits._edit import Edit, edit, started
from normless.edits._initialization import scaling_parameter
from normless.edits._modules import add_scalar, can_fold, sum_paths, sums_of
from normless.edits._norm_places import outputs_at
from normless.edits._surgery import Surgery
from normless.edits._transformer import Matrix, parts_of
from normless.errors import MissingValuesError, UnsupportedEditError
from normless.nn._affine import one_element
from normless.nn._sum import SkipOnlySum
from normless.residual import Layer, ResidualBlock


@edit
class BranchMultiplier(Edit):
    """Add a learnable scalar α at the end of every branch: x + α·f(x) (De & Smith, appendix G; Fixup, rule 3).

    It multiplies the weight and bias of the branch's last weight layer, or the branch in the residual sum if the
    branch does not end in a weight layer.

    Args:
        init: the initial value of α: a number, or the string `1/sqrt(L)` with L the number of blocks.
        trained: the initial value of α in a trained network whose conversion keeps its function; `init` if None.
    """

    init: float | str = 0.0
    trained: float | None = field(default=None, repr=False, compare=False)

    @property
    def loses(self) -> str:
        return started("the multiplier of every branch", self.init)

    def for_trained(self) -> Edit:
        return self if self.trained is None else BranchMultiplier(self.trained)

    def apply(self, surgery: Surgery) -> None:
        is_text = isinstance(self.init, str)
        if is_text and str(self.init).replace(" ", "") != "1/sqrt(L)":
            raise surgery.unsupported("", f"a multiplier starts at a number or at 1/sqrt(L), not {self.init!r}")
        value = 1 / sqrt(surgery.places.depth) if is_text else float(self.init)
        folded: set[str] = set()
        for block in surgery.places.blocks():
            # Two factors of zero would block each other's gradient.
            for layer in surgery.places.left(block.branch_layers, "scale") if value == 0 else ():
                reset_factor(surgery, layer)
            _multiply(surgery, block, "multiplier", one_element(value), folded)
            surgery.record(block.name, f"multiplier at the end of the branch, initially {value:.4g}")


@edit
class LayerScale(Edit):
    """Add a learned factor per channel, initially `init`, at the end of every branch (Touvron et al. 2021, CaiT)."""

    init: float = 1e-4

    @property
    def loses(self) -> str:
        return started("a factor for every branch", self.init)

    def apply(self, surgery: Surgery) -> None:
        folded: set[str] = set()
        for block in surgery.places.blocks():
            last = surgery.map.by_path[surgery.places.last_weight(block)]
            if any(len(layers) > 1 for layers in block.last_weights):
                raise surgery.unsupported(block.name, "its branch ends in several weight layers side by side")
            channels = outputs_at(surgery, last.path)
            _multiply(surgery, block, "layer_scale", torch.full((channels,), self.init), folded)
            surgery.record(block.name, f"layer scale at the end of the branch, initially {self.init:.4g}")


@edit
class ResetBranchFactors(Edit):
    """Set learned factors of branches that start near zero, such as a layer scale of 1e-6, to 1.

    A scheme that sets the scale of branches by their weights, or removes the norms that would restore it, needs
    branches that are not multiplied by a tiny number. Only factors with equal elements are reset, as before training.
    A constant factor as small is refused, since no edit of weights changes it.

    Args:
        smallest: the smallest |factor| that is kept.
    """

    of_random_weights = True

    smallest: float = 0.01

    def apply(self, surgery: Surgery) -> None:
        for block in surgery.map.walk():
            if abs(block.factor) < self.smallest:
                reason = f"its branch is multiplied by {block.factor:.4g}, a constant; take that out of the network"
                raise surgery.unsupported(block.name, f"{reason}, since the scheme sets the scale of the branch")
            for layer in surgery.places.left(block.branch_layers, "scale"):
                reset_factor(surgery, layer, self.smallest)


def reset_factor(surgery: Surgery, layer: Layer, smallest: float = 0.01) -> None:
    """Set a learned factor of a branch to 1 if it is below `smallest` and equal for all channels."""
    if layer.gamma is None or layer.gating or surgery.places.is_meta:
        return
    factor = surgery.parameter(layer.gamma).detach()
    if factor.is_meta:
        raise MissingValuesError("The value of a factor is needed to know whether it is small.")
    start = float(factor.flatten()[0]) if factor.numel() else 1.0
    if bool((factor == start).all()) and abs(start) < smallest:
        factor.fill_(1)
        surgery.record(layer.path, f"factor of the branch {start:.4g} → 1")


@edit
class RescaleBranches(Edit):
    """Multiply the weights of each m-layer branch by gain · L^(-1/(2m-2)) for L branches (Fixup, rule 2, eq. 5).

    Layers that only compute a factor (squeeze-excite, query and key of an attention) keep their scale, even if one
    weight packs them with the values. With m = 2 the factor is L^(-1/2), with m = 3 L^(-1/4).

    Args:
        gain: a further factor; 0.1 and 10 are the ablations of Fixup's figure 4.
    """

    loses = "rescales the weights of every branch"

    gain: float = 1.0

    def apply(self, surgery: Surgery) -> None:
        blocks = surgery.places.blocks()
        for block in blocks:
            if block.m < 2:
                reason = "L^(-1/(2m-2)) needs m ≥ 2: a branch of one layer takes a full step at any scale"
                layers = f"{block.m} weight layer{'s' * (block.m != 1)}"
                raise surgery.unsupported(block.name, f"its branch has {layers} and {reason}")
        scaled: set[int] = set()
        for block in blocks:
            factor = self.gain * surgery.places.depth ** (-1 / (2 * block.m - 2))
            for layer in block.branch_layers:
                if layer.kind != "weight" or layer.gating:
                    continue
                surgery.places.once(layer.path)
                name = scaling_parameter(surgery, layer)
                weight = surgery.parameter(name)
                if id(weight) in scaled:  # Two layers share it.
                    continue
                scaled.add(id(weight))
                parts = [Matrix(layer.path, name, "other", weight.detach())]
                # Queries and keys that lie beside values in one weight; what is not known is scaled as a whole.
                with suppress(UnsupportedEditError):
                    parts = [part for part in parts_of(surgery, layer, name) if part.use not in ("query", "key")]
                for part in parts:
                    part.change(lambda values, factor=factor: values.mul_(factor))  # type: ignore[misc]
                whole = "gain" if name == layer.gamma else "weight"
                what = "values of its weight" if any(part.use == "value" for part in parts) else whole
                surgery.record(layer.path, f"{what} × {factor:.4g}")


@edit
class RemoveBranches(Edit):
    """Remove residual branches: every block becomes its skip path (the `no residual` curve of Fixup's figure 4)."""

    loses = "removes the branches"

    def apply(self, surgery: Surgery) -> None:
        for block in surgery.places.blocks():
            path, *others = sum_paths(surgery, block)
            if others or block.inner:
                raise surgery.unsupported(block.name, "it has several branches, or blocks inside its branch")
            for layer in block.branch_layers:
                if layer.kind != "weight" and not surgery.places.stands_alone(layer):
                    # Its output is unused; a factor that forward code still reads is not learned any more.
                    for name in layer.parameters if layer.kind == "scale" else ():
                        _freeze(surgery, name)
                    continue
                surgery.places.once(layer.path)
                if ":" in layer.path or not layer.called:
                    raise surgery.unsupported(layer.path, "it is not a module of its own and cannot be removed")
                surgery.replace(layer.path, nn.Identity())
                surgery.log.removed.add(layer.path)
            surgery.replace(path, SkipOnlySum())
            surgery.record(block.name, "branch removed")


def _freeze(surgery: Surgery, name: str) -> None:
    """Convert a parameter on which nothing depends any more to a buffer of the same name."""
    path, _, last = name.rpartition(".")
    value = surgery.get(path)._parameters.pop(last, None)
    if value is not None:
        surgery.get(path).register_buffer(last, value.detach())


@edit
class ScaleSums(Edit):
    """Divide every residual sum by √2, or multiply it by another constant (Fixup, 4.1; De & Smith, tables 3, 4).

    With (x + f(x)) / √2 the variance is constant over depth, but branch and skip path contribute equally.
    """

    factor: float = 1 / sqrt(2)

    @property
    def loses(self) -> str:
        return "" if self.factor == 1 else f"multiplies every residual sum by {self.factor:.4g}"

    def apply(self, surgery: Surgery) -> None:
        for block in surgery.places.blocks():
            sums_of(surgery, block)[-1].factor *= self.factor
            surgery.record(block.name, f"sum × {self.factor:.4g}")


@edit
class ScaleBranches(Edit):
    """Multiply every branch by a constant that falls with depth, and scale learning rates to match.

        x + a · m^-α · f(x),    rates of f's parameters × m^(α-1) for Adam, × m^(2α-1) for SGD,    m = L / L₀

    L blocks in series then learn together as fast as L₀ blocks (Yang et al. 2023, table 1; Dey et al. 2025, table 1).
    `param_groups` returns the rates and, on request, ε × m^-α, since gradients on branches fall.

    Args:
        factor: a.
        exponent: α, 1/2 to 1.
        base_depth: L₀, in residual sums.
        optimizer: `sgd`, or `adam` for any optimizer with steps that do not depend on the gradient's scale.
        epsilon: whether to scale ε.
    """

    loses = "multiplies every branch by a constant"

    factor: float = 1.0
    exponent: float = 0.5
    base_depth: float = 1.0
    optimizer: Literal["adam", "sgd"] = "adam"
    epsilon: bool = False

    def apply(self, surgery: Surgery) -> None:
        if not (0.5 <= self.exponent <= 1 and self.base_depth > 0 and self.optimizer in ("adam", "sgd")):
            raise surgery.unsupported("", "expected an exponent of 1/2 to 1, a base depth above 0, and adam or sgd")
        ratio = surgery.places.depth / self.base_depth
        factor, epsilon = self.factor * ratio**-self.exponent, ratio ** (-self.exponent * self.epsilon)
        rate = ratio ** (self.exponent - 1 if self.optimizer == "adam" else 2 * self.exponent - 1)
        what = f"branch × {factor:.4g}, rates of its parameters × {rate:.4g} for {self.optimizer}"
        for block in surgery.places.blocks():
            for total in sums_of(surgery, block):
                total.branch_factor *= factor
                total.branch_rate *= rate
                total.branch_epsilon *= epsilon
            surgery.record(block.name, f"{what}, their ε × {epsilon:.4g}" if self.epsilon else what)


def _multiply(surgery: Surgery, block: ResidualBlock, part: str, value: Tensor, folded: set[str]) -> None:
    """Put a multiplier, a scalar or one per channel, at the end of every branch of a block.

    It is part of the branch's last weight layer if only factors follow that, else of the sum. `folded` are the layers
    that have it already, since a branch may be added to several streams.
    """
    if not any(surgery.places.is_left(layer) for layer in block.branch_layers):
        raise surgery.unsupported(block.name, "no layer is left on its branch")
    for position, end in enumerate(block.ends):
        last = surgery.places.last_left(end)
        if last is not None and last.kind == "weight" and can_fold(surgery, last):
            if last.path not in folded:
                add_scalar(surgery, last.path, part, value.clone())
            folded.add(last.path)
            continue
        if part == "layer_scale" and not _ends_in_convolution(surgery, block):
            raise surgery.unsupported(
                block.name, "its branch does not end in a layer that takes a factor per channel"
            )
        if len(sums_of(surgery, block)) < len(block.ends):
            raise surgery.unsupported(block.name, "its branches are added to each other before the skip path")
        total = sums_of(surgery, block)[position]
        if total.multiplier is not None:
            raise surgery.unsupported(block.name, "its sum already has a multiplier")
        total.multiplier = nn.Parameter(value.to(next(surgery.model.parameters())))


def _ends_in_convolution(surgery: Surgery, block: ResidualBlock) -> bool:
    """Whether the last weight layer of a block's branch is a convolution, or belongs to one."""
    return isinstance(surgery.get(surgery.places.last_weight(block).partition(":")[0]), _ConvNd)
