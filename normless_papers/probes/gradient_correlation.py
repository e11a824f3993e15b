"""The correlation of examples' gradients: shattered gradients (Balduzzi et al. 2017; ZeroInit, section 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Loss, Setting, Watcher, observe
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless_papers.probes.owners import last_stem_layer

ALL = "all"


@dataclass
class GradientCorrelation(Watcher):
    """Cosine between the gradients of different examples with respect to the activations at every residual sum.

    `block` 0 is the output of the stem's last layer. The gradient is that of the pass's loss.
    """

    rows: list[dict[str, Any]] = field(default_factory=list, init=False)

    def on_start(self, setting: Setting) -> None:
        self._blocks = {block.name: index for index, block in enumerate(setting.map.blocks, 1)}
        self._stem = last_stem_layer(setting.map)
        self.rows = []

    def wants(self, layer: Layer) -> bool:
        return layer == self._stem

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        self.rows.append({"block": 0, "name": layer.path, **_cosines(_gram(gradient))})

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        if block.name in self._blocks:
            self.rows.append({"block": self._blocks[block.name], "name": block.name, **_cosines(_gram(gradient))})

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Remove the rows of a block whose sum may have been another addition."""
        super().on_missed(block, reason)
        self.rows = [row for row in self.rows if row["name"] != block.name]

    def table(self) -> pd.DataFrame:
        """Return by place the mean cosine and mean |cosine| over pairs of examples, and the number of pairs.

        Examples with a zero gradient are excluded.
        """
        columns = ["block", "name", "cosine", "absolute_cosine", "pairs"]
        return pd.DataFrame(self.rows, columns=columns).sort_values("block", ignore_index=True)


def gradient_correlation_table(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    residual_map: ResidualMap | None = None,
    *,
    loss: Loss = F.cross_entropy,
    training: bool = True,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure `GradientCorrelation` of the loss or, without targets, of a random direction of the logits.

    That direction (normal, drawn from `seed`) is the same for all examples, so their classes do not matter. The other
    arguments are those of `normless.probes.observe`.
    """
    watcher = GradientCorrelation()
    targets, loss = (targets, loss) if targets is not None else (seed, _along_one_direction)
    observe(model, [watcher], inputs, targets, loss=loss, residual_map=residual_map, training=training)
    return watcher.table()


def _along_one_direction(logits: Tensor, seed: int) -> Tensor:
    """Return the logits' mean component along a random direction."""
    flat = logits.flatten(1)
    direction = torch.randn(flat.shape[1], generator=torch.Generator().manual_seed(seed))
    return (flat @ direction.to(flat)).mean()


def _gram(gradients: Tensor) -> Tensor:
    """Return inner products between the gradients of all examples, shape (B, B), float64."""
    rows = gradients.detach().flatten(1).double()
    return rows @ rows.T


def _cosines(gram: Tensor) -> dict[str, float]:
    """Average the cosine over pairs of examples with a non-zero gradient; NaN without a pair."""
    norms = gram.diagonal().sqrt()
    nonzero = (norms > 0).nonzero().flatten()
    cosines = gram[nonzero][:, nonzero] / torch.outer(norms[nonzero], norms[nonzero])
    pairs = cosines[torch.ones_like(cosines, dtype=torch.bool).triu(1)]
    return {"cosine": float(pairs.mean()), "absolute_cosine": float(pairs.abs().mean()), "pairs": len(pairs)}
