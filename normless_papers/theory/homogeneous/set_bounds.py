"""Lower bounds on the gradient norms of positively homogeneous sets, beside the measured norms (Fixup, theorem 2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from typing import Any

import pandas as pd
from torch import Tensor, nn

from normless.probes import Setting, Watcher, observe
from normless.residual import ResidualMap
from normless_papers.theory.homogeneous.gradient_bounds import OutputEntropy, output_entropy
from normless_papers.theory.homogeneous.homogeneity import ParameterSet, candidate_sets

COLUMNS = (
    "set",
    "place",
    "block",
    "parameters",
    "gradient_norm",
    "set_norm",
    "inner_product",
    "excess",
    "bound",
    "logit_bound",
)


@dataclass
class SetGradientBounds(Watcher):
    """Norm of the gradient with respect to sets of parameters, and its lower bounds (theorem 2, eq. 3 and 4).

    The gradient must be that of the mean cross entropy over the batch, as `observe` takes it by default.

    Args:
        sets: the sets; where they are not given, `candidate_sets` of the map that are no single layer of a block.
    """

    sets: Iterable[ParameterSet] | None = None

    def on_start(self, setting: Setting) -> None:
        """Choose the sets."""
        chosen = candidate_sets(setting.map, single=False) if self.sets is None else self.sets
        self._sets = list(chosen)
        self._wanted = {name for one in self._sets for name in one.parameters}
        self._sizes = {
            name: float(parameter.detach().double().square().sum())
            for name, parameter in setting.model.named_parameters()
            if name in self._wanted
        }
        self._targets = setting.targets
        self._found: dict[str, tuple[float, float]] = {}
        self._output: OutputEntropy | None = None

    def on_logits(self, logits: Tensor) -> None:
        """Loss and entropy of every example."""
        self._output = output_entropy(logits, self._targets)

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """What a parameter adds to ‖∂l/∂θ‖² and ⟨∂l/∂θ, θ⟩."""
        if name in self._wanted:
            wide = gradient.double()
            self._found[name] = (float(wide.square().sum()), float((wide * parameter.double()).sum()))

    def table(self) -> pd.DataFrame:
        """A row per set; where it is positively homogeneous, `inner_product` = `excess`, `gradient_norm` ≥ `bound`.

        `excess` is the mean of l − H(p) over the batch, `bound` that over ‖θ_ph‖. `logit_bound` is
        (mean max_i z_i − log c)/‖θ_ph‖, which bounds the mean of `bound` over draws of the classifier's weights from
        a symmetric distribution, and not that of one draw.
        """
        rows: list[dict[str, Any]] = []
        output = self._output
        for one in self._sets if output is not None else []:
            assert output is not None
            squares, products = zip(*(self._found.get(name, (0.0, 0.0)) for name in one.parameters), strict=True)
            size = sum(self._sizes.get(name, 0.0) for name in one.parameters) ** 0.5
            excess = float((output.loss - output.entropy).mean())
            room = float(output.largest.mean()) - log(output.classes)
            norm = sum(squares) ** 0.5
            measured = (one.name, one.place, one.block, one.parameters, norm, size, sum(products), excess)
            bounds = (excess / size, room / size) if size else (float("nan"), float("nan"))
            rows.append(dict(zip(COLUMNS, (*measured, *bounds), strict=True)))
        return pd.DataFrame(rows, columns=list(COLUMNS))


def set_bound_table(
    model: nn.Module,
    inputs: Any,
    targets: Tensor,
    residual_map: ResidualMap | None = None,
    *,
    sets: Iterable[ParameterSet] | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """What `SetGradientBounds` measures on one batch.

    Args:
        model: a network, inputs [B, …] to logits [B, classes].
        inputs: a batch, or a tuple or dictionary of arguments.
        targets: classes, shape (B,), or their probabilities, shape (B, classes).
        residual_map: the network's map, found where it is not given.
        sets: of parameters, chosen from the map where they are not given.
        training: the mode.
    """
    watcher = SetGradientBounds(sets)
    observe(model, [watcher], inputs, targets, residual_map=residual_map, training=training)
    return watcher.table()
