"""Moments at the residual blocks of a network, predicted from its weights alone.

Each operation has a rule in `normless.signal.propagation`. By those, the second moment on the skip path of an
unnormalized network whose layers keep the variance is 2^d, with normalized branches d, and with branches that start
at zero 1. Examples have their mean m over examples in common, so m² is the covariance between them and the square
of a batch's mean: d/π with normalized branches of one ReLU each (De & Smith, appendix C).
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
from normless.residual.declared import StatesStructure, StructureReader
from normless.residual.steps import Steps
from normless.signal.moments import Moments
from normless.signal.propagation import Propagation, Shapes


@dataclass(frozen=True)
class BlockMoments:
    """The predictions at one block; NaN where they are unknown.

    Attributes:
        skip, branch, total: second moments, averaged over channels and positions.
        after: the second moment after the activation or norm that follows the sum, that of the sum without one.
        skip_variance, branch_variance, total_variance: over examples, channels and positions together.
        skip_covariance, branch_covariance, total_covariance: of two examples, over channels and positions.
        norm_mean_square: the squared batch mean of the first norm's channels, averaged over them.
        norm_variance: their biased batch variance, averaged likewise.
        unknown: the operation from which on the skip path, branch or sum is unknown; empty where all are known.
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


def steps_of(model: nn.Module, residual_map: ResidualMap) -> Steps | None:
    """The steps of a network, from its dataflow or its declared structure; None where it has neither."""
    if residual_map.flow is not None:
        # The operations of torch.export take a second to import.
        from normless.signal.from_flow import steps_of_flow

        return steps_of_flow(model, residual_map.flow)
    return StructureReader(model, model.residual_structure()).steps if isinstance(model, StatesStructure) else None


@torch.no_grad()
def block_moments(
    model: nn.Module, residual_map: ResidualMap, inputs: Tensor | None, shapes: Shapes, examples: int
) -> list[BlockMoments]:
    """Predict the moments on the skip path, at the branch end and after the sum of every block.

    Of the activations only the mean and variance of the inputs per feature are used. A network in training mode has
    norms of the batch's statistics and active dropout.

    `inputs`, `shapes` and `examples` are those of `Propagation`.

    Returns:
        One entry per block in execution order. NaN from the first operation without a rule on, until a norm makes
        the moments known again.
    """
    steps = steps_of(model, residual_map)
    blocks = _inner_first(residual_map.blocks)
    if steps is None or len(blocks) != len(steps.totals):
        return [BlockMoments(unknown="the residual sums") for _ in residual_map.blocks]
    propagation = Propagation(model, steps, inputs, shapes, model.training, examples)
    for step in steps.steps:
        propagation.values.append(propagation.value(step))
    places = dict(zip(map(id, blocks), sorted(steps.totals), strict=True))
    return [_at_block(propagation, block, places[id(block)]) for block in residual_map.blocks]


def _inner_first(blocks: Iterable[ResidualBlock]) -> list[ResidualBlock]:
    """Blocks, each after those inside its branch: the order of the sums."""
    return [one for block in blocks for one in (*_inner_first(block.inner), block)]


def _at_block(p: Propagation, block: ResidualBlock, at: int) -> BlockMoments:
    """The predictions at the block of a residual sum."""
    step, total = p.steps[at], p.values[p.steps.totals[at]]
    # A factor of 0 is that of a branch that is not added.
    skip, branch, *others = (
        side if isinstance(side, str) else side.times(share or 1.0)
        for side, share in zip((p.values[read] for read in step.reads), step.shares, strict=True)
    )
    for other in others:
        branch = branch if isinstance(branch, str) else other if isinstance(other, str) else branch.plus(other)
    last = block.after_sum[-1] if block.after_sum else None
    after = total if last is None else p.outputs.get((last.path, last.call), "")
    values: dict[str, Any] = {"unknown": next((one for one in (skip, branch, total) if isinstance(one, str)), "")}
    for name, known in (("skip", skip), ("branch", branch), ("total", total), ("after", after)):
        if isinstance(known, Moments):
            values |= _named(known, name)
    return BlockMoments(**values | (_statistics(p, block.norms[0]) if block.norms else {}))


def _statistics(p: Propagation, path: str) -> dict[str, float]:
    """The batch statistics of a norm's input, averaged over channels."""
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
    """Second moment, variance and covariance of two examples, by the names of `BlockMoments`."""
    second, square = moments.power, float(moments.mean.mean()) ** 2
    if not moments.split or name == "after":
        return {name: second}
    covariance = float(moments.mean.square().mean()) - square
    return {name: second, f"{name}_variance": second - square, f"{name}_covariance": covariance}
