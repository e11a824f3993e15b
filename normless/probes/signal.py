"""How the signal grows along the skip path, measured beside what theory predicts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless.nn.channels import batch_statistics
from normless.probes.theory import predicted_moments
from normless.probes.undisturbed import undisturbed
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

COLUMNS = (
    "block",
    "name",
    "skip_variance",
    "branch_variance",
    "sum_variance",
    "norm_mean_square",
    "norm_variance",
    "predicted_skip_variance",
    "predicted_branch_variance",
    "predicted_sum_variance",
)


def signal_table(model: nn.Module, inputs: Tensor, residual_map: ResidualMap | None = None) -> pd.DataFrame:
    """Variances at every residual block on one batch, in training mode, with the predictions beside them.

    Variances are over examples, channels and positions together, for the one set of weights the network has
    (De & Smith, figures 2 and 5). `norm_mean_square` and `norm_variance` are what the block's first norm would
    hold after one update with momentum 0: the squared mean and the biased variance of each channel, averaged
    over channels; NaN in blocks without a norm. Predictions are `predicted_moments`. The network is left as it was.

    Args:
        model: a network whose residual sums are modules.
        inputs: a batch, shape (B, …).
        residual_map: the network's map, found where it is not given.

    Returns:
        One row per block in execution order; the columns are `COLUMNS`.

    Raises:
        ValueError: the network has no residual block, or a residual sum that is not a module.
    """
    found = find_residual_map(model, inputs) if residual_map is None else residual_map
    functional = [block.name for block in found.blocks if block.sum is None]
    if not found.blocks or functional:
        reason = f"the sum of {functional[0]} is an operator" if functional else "there is no residual block"
        raise ValueError(f"The signal is measured at residual sums that are modules; {reason}.")
    rows: list[dict[str, Any]] = [{"block": index + 1, "name": b.name} for index, b in enumerate(found.blocks)]
    with undisturbed(model, training=True), torch.no_grad():
        handles = []
        try:
            for row, block in zip(rows, found.blocks, strict=True):
                assert block.sum is not None
                handles.append(model.get_submodule(block.sum).register_forward_hook(_SumHook(row)))
                if block.norms:
                    handles.append(model.get_submodule(block.norms[0]).register_forward_hook(_NormHook(row)))
            model(inputs)
        finally:
            for handle in handles:
                handle.remove()
    for row, moments in zip(rows, predicted_moments(model, found, inputs), strict=True):
        row["predicted_skip_variance"] = moments.skip
        row["predicted_branch_variance"] = moments.branch
        row["predicted_sum_variance"] = moments.total
    return pd.DataFrame(rows, columns=list(COLUMNS))


class _SumHook:
    """Writes the variances of both sides of a sum and of its total into a row."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        values = zip(("skip_variance", "branch_variance", "sum_variance"), (*inputs, output), strict=True)
        for name, value in values:
            # float64: a variance of 2^200 is beyond float32, the activations it belongs to are not.
            self.row[name] = float(value.double().var(correction=0))


class _NormHook:
    """Writes the statistics of a norm's input into a row."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    def __call__(self, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        mean, variance = batch_statistics(inputs[0].double())
        self.row["norm_mean_square"] = float(mean.square().mean())
        self.row["norm_variance"] = float(variance.mean())
