"""Gradients of logits, and each class's part of the parameters' gradients (Bjorck et al., appendix L)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import LogitGradients, Loss, layer_table, parameter_positions
from normless.residual import ResidualMap
from normless_papers.probes.network_function import (
    as_function,
    gradients_by,
    map_of,
    require_known,
    trainable_parameters,
)

Gradients = dict[str, Tensor]
COLUMNS = ("class", "parameter", "order", "layer", "block", "mean_abs", "norm", "share", "predicted_share")


class ClassOptions(TypedDict, total=False):
    """Keyword arguments of `for_each_class` and the tables."""

    classes: Sequence[int] | None
    class_axis: int
    loss: Loss
    training: bool


def for_each_class(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    visit: Callable[[int, float, Gradients], None],
    *,
    parameters: Sequence[str] | None = None,
    classes: Sequence[int] | None = None,
    class_axis: int = -1,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> None:
    """Run a forward pass, and a backward pass for each class with the other classes' logit gradients at zero.

    Backpropagation is linear, so these gradients add up to the whole. Those of one class are in memory at a time. The
    network's state is restored.

    Args:
        model, inputs, targets, loss, training: as for `normless.probes.observe`.
        visit: called for each class with its index, the share of examples that predict it, and the gradients by
            the parameters' qualified names; zero where a parameter has no influence.
        parameters: qualified names; all trainable ones if None. Parameters near the logits cost less.
        classes: indices along the logits' `class_axis`; all if None.

    Raises:
        ValueError: a parameter or class that the network does not have, no trainable parameter, or no logits.
    """
    known = trainable_parameters(model)
    require_known(parameters, known, "trainable parameter")
    chosen = {name: known[name] for name in (known if parameters is None else parameters)}
    with torch.enable_grad(), as_function(model, training=training) as network:
        logits = network(chosen, inputs)
        whole = torch.autograd.grad(loss(logits, targets), logits, retain_graph=True)[0]
        count = logits.shape[class_axis]
        indices = range(count) if classes is None else classes
        if any(not 0 <= index < count for index in indices):
            raise ValueError(f"The logits have the classes 0 to {count - 1}, not {', '.join(map(str, indices))}.")
        predicted = logits.detach().argmax(class_axis).flatten().bincount(minlength=count).double()
        shares: list[float] = (predicted / predicted.sum()).tolist()
        for index in indices:
            masked = torch.zeros_like(whole)
            masked.select(class_axis, index).copy_(whole.select(class_axis, index))
            visit(index, shares[index], gradients_by(logits, chosen, masked, again=True))


def classwise_gradients(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    parameters: Sequence[str] | None = None,
    *,
    residual_map: ResidualMap | None = None,
    **options: Unpack[ClassOptions],
) -> pd.DataFrame:
    """Measure the size of every parameter's gradient by class (Bjorck et al., figure 21); see `for_each_class`.

    Returns:
        A row per class and parameter: `mean_abs` and `norm` of the gradient's elements, `share`, the part of the sum
        of `mean_abs` over the measured classes, and `predicted_share`, the share of examples that predict the class.
    """
    positions = parameter_positions(model, map_of(model, inputs, residual_map))
    rows: list[dict[str, Any]] = []

    def visit(index: int, predicted: float, gradients: Gradients) -> None:
        for name, gradient in gradients.items():
            row = {"class": index, "parameter": name, **positions[name].columns(), "predicted_share": predicted}
            row |= {"mean_abs": float(gradient.double().abs().mean()), "norm": float(gradient.double().norm())}
            rows.append(row)

    for_each_class(model, inputs, targets, visit, parameters=parameters, **options)
    table = layer_table(rows, COLUMNS)
    sums = table.groupby("parameter")["mean_abs"].transform("sum")
    table["share"] = table["mean_abs"] / sums.where(sums > 0)
    return table


def classwise_elements(
    model: nn.Module, inputs: Any, targets: Any, parameter: str, **options: Unpack[ClassOptions]
) -> pd.DataFrame:
    """Return the gradient of a parameter's elements by class (Bjorck et al., figure 20); see `for_each_class`.

    A row per class and element: `class`, `parameter`, `element` (index in the flattened parameter) and `gradient`.
    """
    parts: list[pd.DataFrame] = []

    def visit(index: int, predicted: float, gradients: Gradients) -> None:
        values = gradients[parameter].double().flatten().cpu().numpy()
        row = {"class": index, "parameter": parameter, "element": np.arange(len(values)), "gradient": values}
        parts.append(pd.DataFrame(row))

    for_each_class(model, inputs, targets, visit, parameters=[parameter], **options)
    return pd.concat(parts, ignore_index=True)


@dataclass
class LogitGradientMatrix(LogitGradients):
    """The gradient ∂L_b/∂z_j of every example b and class j, N times that of the mean loss (Bjorck et al., figure 4).

    Columns: `example`, `class`, `logit`, `gradient`, `is_target`.

    Args:
        class_axis: the logits' class axis; all other axes count examples.
    """

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        z, g = self.matrix(logits), self.matrix(gradient)
        labels = self.labels(len(z))
        example, classes = np.indices(z.shape).reshape(2, -1)
        numbers = {"logit": z.flatten().cpu().numpy(), "gradient": (g * len(z)).flatten().cpu().numpy()}
        target = False if labels is None else classes == labels.cpu().numpy()[example]
        self._table = pd.DataFrame({"example": example, "class": classes, **numbers, "is_target": target})
