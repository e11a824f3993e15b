"""Moments along a network, predicted from its weights alone.

Of every activation the mean m and the variance v over examples are followed. Behind a weight layer they are W∗m + b
and W²∗v: fluctuations of different inputs are uncorrelated on average over weights of random sign. A norm takes its
statistics of them, an activation makes of x ~ N(m, v) what E[φ(x)] and E[φ(x)²] say, and the two sides of a residual
sum add: skip path and branch are uncorrelated (De & Smith, appendix C). For an unnormalized network whose layers keep
the variance, the skip path's second moment so becomes 2^d, with normalized branches it becomes d, and with branches
that start at zero it stays 1. What examples have in common is m, so m² is the covariance between them and the square
of a batch's mean: d/π behind normalized branches of a ReLU each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import nan
from typing import Any

import torch
from torch import nn

from normless.arguments import arguments_of
from normless.nn import ResidualSum
from normless.nn.channels import per_channel
from normless.nn.sum import SkipOnlySum
from normless.probes.forward.layer_moments import FUNCTIONS, Moments, activated, dropped, normalized
from normless.probes.forward.layouts import fitted, per_axis
from normless.probes.forward.readings import INPUTS, Readings
from normless.probes.forward.weight_moments import weighted_moments
from normless.probes.hooks.attach import first_tensor
from normless.probes.hooks.channels import channel_axis
from normless.probes.hooks.observe import observe
from normless.probes.hooks.preserve_state import preserve_state
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.residual.classify import NORMS


@dataclass(frozen=True)
class BlockMoments:
    """What is predicted at one block; NaN where nothing is known.

    Attributes:
        skip, branch, total: second moments, averaged over channels and positions.
        behind: the second moment behind the activation or norm that follows the sum, that of the sum without one.
        skip_variance, branch_variance, total_variance: variances over examples, channels and positions together.
        skip_covariance, branch_covariance, total_covariance: of two examples, over channels and positions.
        norm_mean_square: the squared batch mean of the first norm's channels, averaged over them.
        norm_variance: their biased batch variance, averaged likewise.
    """

    skip: float = nan
    branch: float = nan
    total: float = nan
    behind: float = nan
    skip_variance: float = nan
    branch_variance: float = nan
    total_variance: float = nan
    skip_covariance: float = nan
    branch_covariance: float = nan
    total_covariance: float = nan
    norm_mean_square: float = nan
    norm_variance: float = nan


@torch.no_grad()
def predicted_moments(
    model: nn.Module, residual_map: ResidualMap, inputs: Any, *, training: bool = True
) -> list[BlockMoments]:
    """Predict the moments on the skip path, at the branch end and behind the sum of every block.

    One pass tells the shapes of what layers read; of the activations only the inputs' mean and variance per feature
    are used. The network is left as it was.

    Args:
        model: any network.
        residual_map: its map.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        training: whether norms use the batch's statistics and dropout drops.

    Returns:
        One entry per block in execution order. NaN from the first thing on whose effect is not known, until a norm
        makes the moments known again: what is no layer of the map (pooling, attention, the padding of option A, a
        gate's factor, a block inside the branch) and layers that are no module of a known kind.
    """
    readings = Readings(first_tensor(arguments_of(inputs)))
    observe(model, [readings], inputs, residual_map=residual_map, training=training)
    return moments_after(model, residual_map, readings, training=training)


@torch.no_grad()
def moments_after(
    model: nn.Module, residual_map: ResidualMap, readings: Readings, *, training: bool
) -> list[BlockMoments]:
    """What `predicted_moments` predicts, where a pass in the same mode was watched by `readings` already."""
    with preserve_state(model, training=training):
        walk = _Walk(model, residual_map, readings, training)
        walk.along(residual_map.stem_layers)
        return [walk.block(block) for block in residual_map.blocks]


@dataclass
class _Walk:
    """Goes along the layers of a network, knowing the moments behind those it has passed."""

    model: nn.Module
    map: ResidualMap
    readings: Readings
    training: bool
    outputs: dict[str, Moments | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inputs = self.readings.inputs
        self.stream = None if inputs is None or inputs.dim() < 2 else Moments.of_batch(inputs)
        self.stream_name = INPUTS
        self.norm_reads: dict[str, Moments | None] = {}

    def block(self, block: ResidualBlock) -> BlockMoments:
        """The moments at a block, which the walk passes."""
        self.along(block.shared_layers)
        first = next((layer for layer in block.branch_layers if not layer.gating), None)
        fork = None if first is None else self.read(first, first=True)
        self.along(block.branch_layers, multiplier=block.sum)
        self.along(block.skip_layers, norm=f"{block.sum}.norm_skip")
        skip = self._skip(block, fork)
        branch = self._branch(block)
        skip, branch, total = self._sum(block.sum, skip, branch)
        self.stream, self.stream_name = total, block.name
        self.along(block.after_sum, norm=f"{block.sum}.norm_total")
        behind = self.outputs[block.after_sum[-1].path] if block.after_sum else total
        return _told(self._norm_reads(block), skip=skip, branch=branch, total=total, behind=behind)

    def along(self, layers: Iterable[Layer], *, norm: str = "", multiplier: str | None = None) -> None:
        """Pass layers in execution order; `norm` is the path of one that reads the stream inside the sum."""
        for index, layer in enumerate(layers):
            if multiplier is not None and layer.kind == "scale" and layer.path.startswith(multiplier):
                # A multiplier of the sum, which `_sum` applies.
                self.outputs[layer.path] = None if layer.input is None else self.outputs.get(layer.input)
                continue
            known = self.stream if layer.path == norm and layer.input is None else self.read(layer, first=index == 0)
            shape = self.readings.shapes.get((layer.path, layer.call))
            if known is not None and shape is not None:
                known = fitted(known, shape)
            if layer.kind == "norm" and layer.call == 0:
                self.norm_reads[layer.path] = known
            self.outputs[layer.path] = self._behind(layer, known, shape)

    def read(self, layer: Layer, *, first: bool) -> Moments | None:
        """What a layer reads, as the map or the pass tells; a function that begins a path reads the stream."""
        if layer.input is not None:
            return self.outputs.get(layer.input)
        key = layer.path, layer.call
        if key in self.readings.layers:
            return self.outputs.get(self.readings.layers[key])
        seen = key in self.readings.shapes
        reads_stream = self.readings.sources.get(key) == self.stream_name if seen else first
        return self.stream if reads_stream else None

    def _behind(self, layer: Layer, known: Moments | None, shape: torch.Size | None) -> Moments | None:
        path, _, within = layer.path.partition(":")
        module = None if within or not layer.called else self.model.get_submodule(path)
        if layer.kind == "norm":
            return normalized(module, known, shape, self.training) if isinstance(module, NORMS) and shape else None
        if known is None:
            return None
        if layer.kind == "weight":
            found = None if module is None else weighted_moments(module, known.stacked())
            return None if found is None else Moments.unstacked(found, split=known.split)
        if layer.kind == "activation":
            function = FUNCTIONS.get(layer.description.rstrip("0123456789").rstrip("_")) if module is None else module
            return None if function is None else activated(function, known, self.readings.examples)
        if layer.kind == "dropout":
            return None if module is None else dropped(module, known, self.readings.examples)
        return self._scaled(layer, known)

    def _scaled(self, layer: Layer, known: Moments) -> Moments | None:
        if layer.gamma is None or len(layer.parameters) != 1:
            return None
        factor = per_axis(self.model.get_parameter(layer.gamma).double(), known.mean.shape)
        return None if factor is None else known.times(factor)

    def _skip(self, block: ResidualBlock, fork: Moments | None) -> Moments | None:
        if block.skip_layers:
            return self.outputs[block.skip_layers[-1].path]
        return fork if block.identity_skip else None

    def _branch(self, block: ResidualBlock) -> Moments | None:
        """Behind all branches, those of several added."""
        found: list[Moments] = []
        for index, layers in enumerate(block.branches):
            end = block.ends[index] if index < len(block.ends) else None
            main = [layer for layer in layers if not layer.gating]
            known = self.outputs[main[-1].path] if main and (end is not None or block.ends_in_layer) else None
            if known is None or block.inner:
                return None
            found.append(known)
        total = found[0]
        for other in found[1:]:
            total = total.plus(other)
        return total

    def _sum(
        self, path: str | None, skip: Moments | None, branch: Moments | None
    ) -> tuple[Moments | None, Moments | None, Moments | None]:
        """Both sides as they enter the sum, and behind it, before any norm there."""
        module = None if path is None else self.model.get_submodule(path)
        factor = 1.0
        if isinstance(module, ResidualSum):
            factor = module.factor
            if branch is not None and module.multiplier is not None:
                branch = branch.times(per_channel(module.multiplier.double(), branch.mean))
            branch = None if branch is None else branch.times(module.branch_factor)
            skip = None if skip is None else skip.times(module.skip_factor)
        if isinstance(module, SkipOnlySum):
            return skip, branch, skip
        if skip is None or branch is None or skip.mean.shape != branch.mean.shape:
            return skip, branch, None
        return skip, branch, skip.plus(branch).times(factor)

    def _norm_reads(self, block: ResidualBlock) -> tuple[int, Moments] | None:
        """The channels' axis, and the moments that the block's first norm reads."""
        path = next(iter(block.norms), None)
        known = None if path is None else self.norm_reads.get(path)
        if path is None or known is None:
            return None
        axis = channel_axis(self.model.get_submodule(path.partition(":")[0]), known.mean)
        return axis, known


def _told(norm: tuple[int, Moments] | None, **places: Moments | None) -> BlockMoments:
    found: dict[str, float] = {}
    for name, known in places.items():
        if known is not None:
            found |= _share(known, name)
    if norm is not None and norm[1].split:
        axis, reads = norm
        mean, second, noise = (
            part.movedim(axis, 0).flatten(1).mean(1) for part in (reads.mean, reads.second, reads.noise)
        )
        # The positions of a channel are as many more values that its mean is taken of.
        squares = mean.square() + noise * (mean.numel() / reads.mean.numel())
        found |= {"norm_mean_square": float(squares.mean()), "norm_variance": float((second - squares).mean())}
    return BlockMoments(**found)


def _share(moments: Moments, name: str) -> dict[str, float]:
    """What is known of second moment, variance and covariance of two examples, by the names of `BlockMoments`."""
    second, square = float(moments.second.mean()), float(moments.mean.mean()) ** 2
    if not moments.split or name == "behind":
        return {name: second}
    covariance = float(moments.mean.square().mean()) - square
    return {name: second, f"{name}_variance": second - square, f"{name}_covariance": covariance}
