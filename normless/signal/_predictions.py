"""Predict moments at the residual blocks of a network from its weights alone.

Each operation has a rule in `normless.signal._rules`. By these rules, the second moment on the skip path at
depth d is 2^d in an unnormalized network with layers that keep the variance, d with normalized branches, and 1 with
branches that start at zero. All examples share the mean m over examples, so m² is the covariance between two of them
and the square of a batch's mean: d/π with normalized branches of one ReLU each (De & Smith, appendix C).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from normless.nn._channels import channel_axis
from normless.residual import ResidualBlock, ResidualMap
from normless.signal._moments import Moments, placed
from normless.signal._rules import Propagation


@dataclass(frozen=True)
class BlockMoments:
    """The predictions at a block, NaN if unknown.

    Attributes:
        skip, branch, total: second moments, averaged over channels and positions.
        after: the second moment after the activation or norm that follows the sum, or else of the sum.
        skip_variance, branch_variance, total_variance: variances over examples, channels and positions together.
        skip_covariance, branch_covariance, total_covariance: covariances of two examples over channels and positions.
        norm_mean_square: the squared batch mean of the first norm's input, averaged over channels.
        norm_variance: its biased batch variance, averaged over channels.
        unknown: the first operation with unknown moments on the skip path, branch or sum; empty if all are known.
    """

    skip: float = nan
    branch: float = nan
    total: float = nan
    after: float = nan
    skip_variance: float = nan
    branch_variance: float = nan
    total_variance: float = nan
    skip_covariance: float = nan
    branch_covariance: float = nan
    total_covariance: float = nan
    norm_mean_square: float = nan
    norm_variance: float = nan
    unknown: str = ""


@torch.no_grad()
def block_moments(
    model: nn.Module, residual_map: ResidualMap, inputs: Tensor | None, examples: int
) -> list[BlockMoments]:
    """Predict the moments on the skip path, at the branch end and after the sum of every block.

    Only the mean and variance of the inputs per feature are used. In training mode, norms use the statistics of the
    batch and dropout is active. `inputs` and `examples` are as in `Propagation`.

    Returns:
        One entry per block in execution order. Moments are NaN after an operation without a rule until a norm makes
        them known again.
    """
    blocks = _inner_first(residual_map.blocks)
    p = Propagation(model, residual_map.flow, inputs, training=model.training, examples=examples)
    if len(blocks) != len(p.sums):
        return [BlockMoments(unknown="the residual sums") for _ in residual_map.blocks]
    for at in range(len(p.flow)):
        p.values.append(p.value(at))
    places = dict(zip(map(id, blocks), sorted(p.sums), strict=True))
    return [_at_block(p, block, places[id(block)]) for block in residual_map.blocks]


def _inner_first(blocks: Iterable[ResidualBlock]) -> list[ResidualBlock]:
    """Return blocks in the order of their sums, each after the blocks inside its branch."""
    return [member for block in blocks for member in (*_inner_first(block.inner), block)]


def _at_block(p: Propagation, block: ResidualBlock, at: int) -> BlockMoments:
    """Return the predictions at the block of a residual sum."""
    # The result of a module that adds may have a factor.
    own = (reader for reader in p.flow.consumers[at] if block.sum and p.flow[reader].module == block.sum)
    total = p.values[next((reader for reader in own if p.names[reader] == "mul"), at)]
    # A factor of 0 is that of a branch that is not added.
    skip, branch, *others = (
        side if isinstance(side, str) else side.times(share or 1.0)
        for side, share in zip(map(p.values.__getitem__, p.reads[at]), p.shares(at), strict=True)
    )
    for further in others:
        branch = branch if isinstance(branch, str) else further if isinstance(further, str) else branch.plus(further)
    ends = {(run.layer.path, run.layer.call): run.operations[-1] for run in p.layers.runs}
    last = ends.get((block.after_sum[-1].path, block.after_sum[-1].call), -1) if block.after_sum else None
    after = total if last is None else "" if last < 0 else p.values[last]
    values: dict[str, Any] = {"unknown": next((side for side in (skip, branch, total) if isinstance(side, str)), "")}
    for name, moments in (("skip", skip), ("branch", branch), ("total", total), ("after", after)):
        values |= _named(moments, name) if isinstance(moments, Moments) else {}
    return BlockMoments(**values | (_statistics(p, ends.get((block.norms[0], 0))) if block.norms else {}))


def _statistics(p: Propagation, at: int | None) -> dict[str, float]:
    """Return the batch statistics of a norm's input, averaged over channels."""
    module, read = (None, -1) if at is None else (p.module(at), p.reads[at][0])
    x = None if module is None or isinstance(p.values[read], str) else placed(p.of(read), p.flow[read].shape)
    if module is None or x is None or not x.split:
        return {}
    axis = channel_axis(module, x.mean)
    mean, second, noise = (part.movedim(axis, 0).flatten(1).mean(1) for part in (x.mean, x.second, x.noise))
    # A channel's mean is over its positions too.
    squares = mean.square() + noise * (mean.numel() / x.mean.numel())
    return {"norm_mean_square": float(squares.mean()), "norm_variance": float((second - squares).mean())}


def _named(moments: Moments, name: str) -> dict[str, float]:
    """Return second moment, variance and covariance of two examples under the names of `BlockMoments`."""
    second, square = moments.power, float(moments.mean.mean()) ** 2
    if not moments.split or name == "after":
        return {name: second}
    covariance = float(moments.mean.square().mean()) - square
    return {name: second, f"{name}_variance": second - square, f"{name}_covariance": covariance}
