"""The gradient between every in-channel and every out-channel of a layer, and how close to rank one it is.

In an unnormalized network the matrix M(o, c) = Σ_i |∂L/∂K(o, c, i)| over kernel offsets i is close to rank one:
some channels have large gradients to all others, some have small ones ("Understanding batch normalization", section
3.5 and figure 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import Tensor

from normless.probes import LayerPosition, Setting, layer_table
from normless_papers.probes.layer_tables import LayerTables
from normless_papers.probes.owners import require_known

_PLACE = ("order", "layer", "block", "weight")
_RANKS = ("variation", "effective_rank", "rank_one_share", "predicted_rank_one_share")


@dataclass
class ChannelPairs(LayerTables):
    """The matrices M(o, c) of weight layers, from the gradients of their weights: a row per weight and channel pair.

    Weights outside modules count too, such as an attention's projections. The gradient of a layer that runs several
    times is the sum over calls; it is 0 on a branch with a zero multiplier.

    Columns: ``gradient`` is M(o, c), in nats per unit of the weight; in-channels are counted within their group.

    Args:
        layers: paths of the weight layers to measure; None for all.
    """

    columns = (*_PLACE, "out_channel", "in_channel", "gradient")

    _weights: dict[str, LayerPosition] = field(default_factory=dict, init=False, repr=False)
    _matrices: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        self._weights, self._matrices = {}, {}
        for layer, place in self._places.items():
            self._weights |= {name: place for name in layer.parameters if name not in self._weights}

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        if name in self._weights and gradient.dim() > 1:
            pairs = gradient.abs().double()
            self._matrices[name] = (pairs.flatten(2).sum(2) if pairs.dim() > 2 else pairs).cpu().numpy()

    def matrix(self, weight: str) -> npt.NDArray[np.float64]:
        """Return M of a weight by its qualified name, shape (out-channels, in-channels of a group).

        Raises:
            ValueError: no weight of that name has a gradient.
        """
        require_known([weight], self._matrices, "gradient of a weight")
        return self._matrices[weight]

    def table(self) -> pd.DataFrame:
        """Return every entry of every matrix, weights in execution order."""
        tables = []
        for columns, matrix in self._in_order():
            out_channel, in_channel = np.indices(matrix.shape).reshape(2, -1)
            pairs = {"out_channel": out_channel, "in_channel": in_channel, "gradient": matrix.ravel()}
            tables.append(pd.DataFrame(columns | pairs))
        return layer_table(tables, self.columns)

    def structure(self) -> pd.DataFrame:
        """Return by weight in execution order ``out_channels``, ``in_channels`` and the structure of its matrix.

        ``mean`` of M's entries; ``variation``, their standard deviation over the mean; ``effective_rank`` and
        ``rank_one_share``, of the functions of these names; and ``predicted_rank_one_share`` for independent entries.
        """
        rows: list[dict[str, Any]] = []
        for columns, matrix in self._in_order():
            outputs, inputs = matrix.shape
            mean = float(matrix.mean())
            by_chance = (outputs + inputs - 2) / max(outputs * inputs - 1, 1)
            ranks = (float(matrix.std()) / mean if mean else np.nan, effective_rank(matrix), rank_one_share(matrix))
            sizes = {"out_channels": outputs, "in_channels": inputs, "mean": mean}
            rows.append(columns | sizes | dict(zip(_RANKS, (*ranks, by_chance), strict=True)))
        return layer_table(rows, (*_PLACE, "out_channels", "in_channels", "mean", *_RANKS))

    def _in_order(self) -> list[tuple[dict[str, Any], npt.NDArray[np.float64]]]:
        """Return the first columns and the matrix of every weight."""
        measured = [name for name in self._weights if name in self._matrices]
        return [(self._weights[name].columns() | {"weight": name}, self._matrices[name]) for name in measured]


def effective_rank(matrix: npt.NDArray[np.float64]) -> float:
    """Return exp H(p) for the entropy H of the normalized singular values p = s/Σs (Roy & Vetterli 2007)."""
    values = np.linalg.svd(matrix, compute_uv=False)
    shares = values[values > 0] / max(values.sum(), np.finfo(float).tiny)
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else float("nan")


def rank_one_share(matrix: npt.NDArray[np.float64]) -> float:
    """Return the share of a matrix's variation that a factor per row times a factor per column explains.

    1 - Σ_{k>1} s_k² / Σ (M - mean)², with singular values s: 1 for a matrix of rank one. For m × n independent
    entries with a small spread it is (m + n - 2)/(mn - 1), the share explained by chance. NaN for a constant matrix.
    """
    # Smaller differences are rounding errors of float32, the usual type of gradients.
    if np.ptp(matrix) <= 1e-6 * np.abs(matrix).max():
        return float("nan")
    varying = float(np.square(matrix - matrix.mean()).sum())
    values = np.linalg.svd(matrix, compute_uv=False)
    return 1 - float(np.square(values[1:]).sum()) / varying
