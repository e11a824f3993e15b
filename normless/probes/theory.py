"""Second moments along a network at initialization, predicted from its weights alone.

For inputs that are uncorrelated and weights of random sign, the second moment q = E[x²] goes through a weight
layer as x itself would with squared weights, E[(W∗x)²] = W² ∗ q, positions and zero padding included. A norm
makes it γ² + β² per channel, an activation E[φ(√q·z)²] with z ~ N(0, 1), and the two sides of a residual sum
add: skip path and branch are uncorrelated (De & Smith, appendix C). For an unnormalized network whose layers keep
the variance the skip path's second moment so becomes 2^d, with normalized branches it becomes d, and with
branches that start at zero it stays 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan, pi, sqrt

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from normless.nn import ResidualSum, ScalarAffine
from normless.nn.channels import per_channel
from normless.residual import Layer, ResidualMap
from normless.residual.classify import NORMS, kind_of

_NODES, _WEIGHTS = np.polynomial.hermite.hermgauss(64)


@dataclass(frozen=True)
class BlockMoments:
    """Second moments at one block, averaged over channels and positions."""

    skip: float
    branch: float
    total: float


@torch.no_grad()
def predicted_moments(model: nn.Module, residual_map: ResidualMap, inputs: Tensor) -> list[BlockMoments]:
    """Predict the second moments on the skip path, at the branch end and behind the sum of every block.

    Args:
        model: a network whose map lists all that changes its activations, as those of `normless.models` do.
        residual_map: its map.
        inputs: a batch, shape (B, …), of which only the mean square per feature is used.

    Returns:
        One entry per block in execution order; NaN from the first block on whose skip path something happens
        that the map does not list (the subsampling and padding of option A).
    """
    walk = _Walk(model)
    moments = walk.along(residual_map.stem_layers, inputs.double().square().mean(dim=0, keepdim=True))
    found: list[BlockMoments] = []
    for block in residual_map.blocks:
        fork = walk.along(block.shared_layers, moments)
        branch = walk.along(block.branch_layers, fork)
        start = fork if block.skip else moments
        skip = walk.along(block.skip_layers, start)
        if skip.shape != branch.shape:
            rest = residual_map.depth - len(found)
            return [*found, *[BlockMoments(nan, nan, nan)] * rest]
        total, branch = walk.sum(block.sum, skip, branch)
        found.append(BlockMoments(float(skip.mean()), float(branch.mean()), float(total.mean())))
        moments = walk.along(block.after_sum, total)
    return found


@dataclass(frozen=True)
class _Walk:
    model: nn.Module

    def along(self, layers: Iterable[Layer], moments: Tensor) -> Tensor:
        for layer in layers:
            moments = _through(self.model.get_submodule(layer.path), moments)
        return moments

    def sum(self, path: str | None, skip: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        """Moments behind the sum, before any norm there, and of the branch as it enters the sum."""
        module = None if path is None else self.model.get_submodule(path)
        if not isinstance(module, ResidualSum):
            return skip + branch, branch
        if module.multiplier is not None:
            factor = module.multiplier.double().square()
            branch = branch * per_channel(factor, branch)
        skip, branch = skip * module.skip_factor**2, branch * module.branch_factor**2
        return (skip + branch) * module.factor**2, branch


def _through(module: nn.Module, moments: Tensor) -> Tensor:
    if isinstance(module, NORMS):
        return _normalized(module, moments)
    if kind_of(module) == "weight":
        return _weighted(module, moments)
    return _activated(module, moments)


def _weighted(module: nn.Module, moments: Tensor) -> Tensor:
    if isinstance(module, ScalarAffine):
        weight, bias = module.folded()
        if module.input_bias is not None:
            moments = moments + module.input_bias.double().square()
    else:
        assert isinstance(module.weight, Tensor)
        assert module.bias is None or isinstance(module.bias, Tensor)
        weight, bias = module.weight, module.bias
    squared = weight.double().square()
    offset = None if bias is None else bias.double().square()
    if isinstance(module, _ConvNd):
        convolved: Tensor = module._conv_forward(moments, squared, offset)
        return convolved
    return F.linear(moments.flatten(1), squared, offset)


def _normalized(module: nn.Module, moments: Tensor) -> Tensor:
    """Unit second moment over what the norm averages, then γ² and β²; a batch norm's channels have one each."""
    positions = tuple(range(2, moments.dim()))
    if not isinstance(module, nn.modules.batchnorm._NormBase):
        positions = tuple(range(1, moments.dim()))
    mean = moments.mean(dim=positions, keepdim=True) if positions else moments
    unit = moments / (mean + 1e-300)
    gamma, beta = getattr(module, "weight", None), getattr(module, "bias", None)
    if isinstance(gamma, Tensor):
        unit = unit * per_channel(gamma.double().square(), unit)
    return unit if not isinstance(beta, Tensor) else unit + per_channel(beta.double().square(), unit)


def _activated(module: nn.Module, moments: Tensor) -> Tensor:
    """E[φ(√q·z)²] by Gauss–Hermite quadrature, exact for ReLU, whose value is q/2."""
    nodes = torch.as_tensor(_NODES, device=moments.device) * sqrt(2)
    weights = torch.as_tensor(_WEIGHTS, device=moments.device) / sqrt(pi)
    activated: Tensor = module(moments.sqrt().unsqueeze(-1) * nodes)
    return activated.square() @ weights
