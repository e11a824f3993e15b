"""The distribution of the summands of one parameter's gradient ("Understanding batch normalization", figure 22)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import nn

from normless.probes import Setting
from normless.residual import Layer
from normless_papers.probes.layer_tables import LAYER_COLUMNS, SummandTables
from normless_papers.probes.summands import Summands, Sums

Choice = Literal["largest", "cancelling", "small"]

# The quantile of a parameter with a small gradient.
_SMALL = 0.05


@dataclass
class SummandDistribution(SummandTables):
    """All summands d of some parameters of one layer: a row per parameter, example and position.

    Columns: ``parameter`` is the index within the weight as text, ``chosen`` the choice, or `given` for an index,
    ``position`` is counted in row-major order, ``summand`` is d in the loss's unit per unit of the weight.

    Args:
        layer: path of a weight layer.
        parameters: each the index within the weight, or a choice: `largest` is the parameter with the largest |Σd|;
            `cancelling`, with the smallest |Σd|/Σ|d| among the half with the largest Σ|d|, which excludes parameters
            that read a dead channel; `small`, at the 5 % quantile of |Σd| among parameters with a non-zero summand.
    """

    columns: ClassVar[tuple[str, ...]] = (*LAYER_COLUMNS, "parameter", "chosen", "example", "position", "summand")

    layers: Collection[str] | None = field(default=None, init=False, repr=False)
    layer: str
    parameters: Sequence[tuple[int, ...] | Choice] = ("largest", "cancelling")

    def on_start(self, setting: Setting) -> None:
        self.layers = [self.layer]
        super().on_start(setting)

    def on_summands(self, layer: Layer, module: nn.Module, summands: Summands) -> None:
        choices = {parameter for parameter in self.parameters if isinstance(parameter, str)}
        sums = summands.sums() if choices else None
        chosen = {} if sums is None else {choice: _chosen(sums, choice) for choice in choices}
        for parameter in self.parameters:
            index = chosen[parameter] if isinstance(parameter, str) else parameter
            values = summands.of_parameter(index).flatten(1)
            example, position = np.indices(values.shape).reshape(2, -1)
            columns: dict[str, Any] = {"parameter": ",".join(map(str, index))}
            columns["chosen"] = parameter if isinstance(parameter, str) else "given"
            columns |= {"example": example, "position": position, "summand": values.flatten().cpu().numpy()}
            self.add(layer, columns)


def _chosen(sums: Sums, choice: str) -> tuple[int, ...]:
    """Return the index of the chosen parameter."""
    sizes = sums.total.abs()
    if choice == "largest":
        at = sizes.argmax()
    elif choice == "cancelling":
        large = (sums.sum_abs >= sums.sum_abs.median()) & (sums.sum_abs > 0)
        at = torch.where(large, sizes / sums.sum_abs, torch.inf).argmin()
    elif choice == "small":
        alive = torch.where(sums.sum_abs > 0, sizes, torch.inf)
        at = alive.flatten().argsort()[int(_SMALL * int((sums.sum_abs > 0).sum()))]
    else:
        raise ValueError(f"Expected the index of a parameter, 'largest', 'cancelling' or 'small', got {choice!r}.")
    return tuple(map(int, np.unravel_index(int(at), sizes.shape)))


def summand_statistics(summands: pd.DataFrame) -> pd.DataFrame:
    """Measure whether the summands of each parameter are centred around 0 or skewed to one side.

    From rows of `SummandDistribution`, one row per parameter: ``count``, ``mean``, ``standard_deviation``,
    ``one_sign_share`` (the larger share of a sign among non-zero summands: 1/2 if they are centred, 1 if all agree),
    ``input_independence`` (|Σd|/Σ|d|) and ``mean_in_deviations`` (|mean| over the standard deviation).
    """
    keys, rows = ["layer", "call", "parameter", "chosen"], []
    for key, group in summands.groupby(keys, sort=False):
        values = group["summand"].to_numpy(float)
        positive, negative = int((values > 0).sum()), int((values < 0).sum())
        absolute, mean, deviation = float(np.abs(values).sum()), float(values.mean()), float(values.std())
        row = dict(zip(keys, key, strict=True)) | {"count": len(values), "mean": mean}
        row["standard_deviation"] = deviation
        row["one_sign_share"] = max(positive, negative) / (positive + negative) if absolute else np.nan
        row["input_independence"] = abs(float(values.sum())) / absolute if absolute else np.nan
        row["mean_in_deviations"] = abs(mean) / deviation if deviation else np.nan
        rows.append(row)
    return pd.DataFrame(rows)
