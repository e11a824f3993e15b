"""The distribution of the summands of one parameter's gradient ("Understanding batch normalization", figure 22)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normless.probes import LayerPosition, Setting, Watcher, layer_positions, layer_table, require_known
from normless.residual import Layer, Unresolved
from normless_papers.probes.layer_summands import UnknownSummandsError, summands_of
from normless_papers.probes.summands import Summands

Choice = Literal["largest", "cancelling", "small"]

# Where a parameter with a small gradient stands among all.
_SMALL = 0.05

COLUMNS = ("order", "layer", "block", "call", "parameter", "chosen", "example", "position", "summand")


@dataclass
class SummandDistribution(Watcher):
    """All summands d of some parameters of one layer, one for each example and position.

    Args:
        layer: path of a weight layer.
        parameters: which; each the index within the weight, or a choice: `largest` is the parameter with the largest
            |Σd|, `cancelling` that with the smallest |Σd|/Σ|d| among the half of all parameters that have the largest
            Σ|d|, so that it is not one that reads a dead channel, and `small` one with a small gradient, whatever its
            summands: of the parameters with any summand but 0, the one above 5 % of them in |Σd|.
    """

    layer: str
    parameters: Sequence[tuple[int, ...] | Choice] = ("largest", "cancelling")
    _tables: list[pd.DataFrame] = field(default_factory=list, init=False, repr=False)
    _places: dict[Layer, LayerPosition] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Find the layer."""
        self._places, self._tables = layer_positions(setting.map), []
        require_known([self.layer], dict.fromkeys(layer.path for layer in self._places), "weight layer")

    def wants(self, layer: Layer) -> bool:
        """The one layer."""
        return layer.path == self.layer

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """Take the summands of the chosen parameters."""
        try:
            summands = summands_of(module, x, gradient)
        except UnknownSummandsError as reason:
            self.missed.append(Unresolved(layer.path, str(reason)))
            return
        named = [one for one in self.parameters if isinstance(one, str)]
        chosen = _choose(summands, named) if named else {}
        where = self._places[layer].columns() | {"call": layer.call}
        for parameter in self.parameters:
            index = chosen[parameter] if isinstance(parameter, str) else parameter
            label = {"parameter": ",".join(map(str, index))}
            label["chosen"] = parameter if isinstance(parameter, str) else "given"
            self._tables.append(_rows(where | label, summands.of_parameter(index)))

    def table(self) -> pd.DataFrame:
        """A row per parameter, example and position; the columns are `COLUMNS`.

        ``parameter`` is the index within the weight as text, ``chosen`` the choice that found it or `given`,
        ``position`` is counted in row-major order, ``summand`` is d in the loss's unit per unit of the weight.
        """
        return layer_table(self._tables, COLUMNS)


def _choose(summands: Summands, choices: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The parameter that each choice means."""
    sums = summands.sums()
    sizes = sums.total.abs()
    found = {}
    for choice in choices:
        if choice == "largest":
            at = sizes.argmax()
        elif choice == "cancelling":
            large = (sums.sum_abs >= sums.sum_abs.median()) & (sums.sum_abs > 0)
            at = torch.where(large, sizes / sums.sum_abs, torch.inf).argmin()
        elif choice == "small":
            alive = torch.where(sums.sum_abs > 0, sizes, torch.inf)
            at = alive.flatten().argsort()[int(_SMALL * int((sums.sum_abs > 0).sum()))]
        else:
            raise ValueError(
                f"Expected the index of a parameter, 'largest', 'cancelling' or 'small', got {choice!r}."
            )
        found[choice] = tuple(int(one) for one in np.unravel_index(int(at), sizes.shape))
    return found


def _rows(where: dict[str, Any], values: Tensor) -> pd.DataFrame:
    """A row per summand; values: (B, *S)."""
    flat = values.flatten(1)
    example, position = (axis.ravel() for axis in np.indices(flat.shape))
    return pd.DataFrame(where | {"example": example, "position": position, "summand": flat.flatten().cpu().numpy()})


def summand_statistics(summands: pd.DataFrame) -> pd.DataFrame:
    """What the summands of each parameter look like: centred around 0, or skewed to one side of it.

    Args:
        summands: rows of `SummandDistribution`.

    Returns:
        One row per parameter: ``layer``, ``call``, ``parameter``, ``chosen``, ``count``, ``mean`` and
        ``standard_deviation`` (in the summands' unit), ``one_sign_share`` (the larger share of one sign among
        summands that are not 0: 1/2 where they are centred, 1 where all agree), ``input_independence`` (|Σd|/Σ|d|)
        and ``mean_in_deviations`` (|mean| over the standard deviation).
    """
    rows = []
    for key, group in summands.groupby(["layer", "call", "parameter", "chosen"], sort=False):
        values = group["summand"].to_numpy(float)
        positive, negative = int((values > 0).sum()), int((values < 0).sum())
        absolute, deviation = float(np.abs(values).sum()), float(values.std())
        row = dict(zip(("layer", "call", "parameter", "chosen"), cast(tuple[Any, ...], key), strict=True))
        row |= {"count": len(values), "mean": float(values.mean()), "standard_deviation": deviation}
        row["one_sign_share"] = max(positive, negative) / (positive + negative) if absolute else np.nan
        row["input_independence"] = abs(float(values.sum())) / absolute if absolute else np.nan
        row["mean_in_deviations"] = abs(row["mean"]) / deviation if deviation else np.nan
        rows.append(row)
    return pd.DataFrame(rows)
