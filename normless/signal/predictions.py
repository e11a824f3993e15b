"""Predict moments at the residual blocks of a network from its weights alone.

Each operation has a rule in `normless.signal.propagation`. By these rules, the second moment on the skip path at
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

from normless.nn.channels import channel_axis
from normless.residual import ResidualBlock, ResidualMap
from normless.signal.from_flow import steps_of_flow
from normless.signal.moments import Moments
from normless.signal.propagation import Propagation, Shapes


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
    model: nn.Module, residual_map: ResidualMap, inputs: Tensor | None, shapes: Shapes, examples: int
) -> list[BlockMoments]:
    """Predict the moments on the skip path, at the branch end and after the sum of every block.

    Only the mean and variance of the inputs per feature are used. In training mode, norms use the statistics of the
    batch and dropout is active. `inputs`, `shapes` and `examples` are as in `Propagation`.

    Returns:
        One entry per block in execution order. Moments are NaN after an operation without a rule until a norm makes
        them known again.
    """
    steps = steps_of_flow(model, residual_map.flow)
    blocks = _inner_first(residual_map.blocks)
    if len(blocks) != len(steps.totals):
        return [BlockMoments(unknown="the residual sums") for _ in residual_map.blocks]
    propagation = Propagation(model, steps, inputs, shapes, model.training, examples)
    for step in steps.steps:
        propagation.values.append(propagation.value(step))
    places = dict(zip(map(id, blocks), sorted(steps.totals), strict=True))
    return [_at_block(propagation, block, places[id(block)]) for block in residual_map.blocks]


def _inner_first(blocks: Iterable[ResidualBlock]) -> list[ResidualBlock]:
    """Return blocks in the order of their sums, each after the blocks inside its branch."""
    return [member for block in blocks for member in (*_inner_first(block.inner), block)]


def _at_block(p: Propagation, block: ResidualBlock, at: int) -> BlockMoments:
    """Return the predictions at the block of a residual sum."""
    step, total = p.steps[at], p.values[p.steps.totals[at]]
    # A factor of 0 is that of a branch that is not added.
    skip, branch, *others = (
        side if isinstance(side, str) else side.times(share or 1.0)
        for side, share in zip((p.values[read] for read in step.reads), step.shares, strict=True)
    )
    for further in others:
        branch = branch if isinstance(branch, str) else further if isinstance(further, str) else branch.plus(further)
    last = block.after_sum[-1] if block.after_sum else None
    after = total if last is None else p.outputs.get((last.path, last.call), "")
    values: dict[str, Any] = {
        "unknown": next((moments for moments in (skip, branch, total) if isinstance(moments, str)), "")
    }
    for name, known in (("skip", skip), ("branch", branch), ("total", total), ("after", after)):
        if isinstance(known, Moments):
            values |= _named(known, name)
    return BlockMoments(**values | (_statistics(p, block.norms[0]) if block.norms else {}))


def _statistics(p: Propagation, path: str) -> dict[str, float]:
    """Return the batch statistics of a norm's input, averaged over channels."""
    reads = p.reads.get((path, 0))
    if not isinstance(reads, Moments) or not reads.split:
        return {}
    axis = channel_axis(p.model.get_submodule(path.partition(":")[0]), reads.mean)
    mean, second, noise = (
        part.movedim(axis, 0).flatten(1).mean(1) for part in (reads.mean, reads.second, reads.noise)
    )
    # A channel's mean is over its positions too.
    squares = mean.square() + noise * (mean.numel() / reads.mean.numel())
    return {"norm_mean_square": float(squares.mean()), "norm_variance": float((second - squares).mean())}


def _named(moments: Moments, name: str) -> dict[str, float]:
    """Return second moment, variance and covariance of two examples under the names of `BlockMoments`."""
    second, square = moments.power, float(moments.mean.mean()) ** 2
    if not moments.split or name == "after":
        return {name: second}
    covariance = float(moments.mean.square().mean()) - square
    return {name: second, f"{name}_variance": second - square, f"{name}_covariance": covariance}
