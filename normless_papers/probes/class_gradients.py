"""Gradients of logits, and each class's part of the parameters' gradients (Bjorck et al., appendix L)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import LogitGradients, Loss
from normless_papers.probes.network_function import as_function, gradients_by, require_known, trainable_parameters

Gradients = dict[str, Tensor]


def for_each_class(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    visit: Callable[[int, float, Gradients], None],
    parameters: Sequence[str] | None = None,
    *,
    loss: Loss = F.cross_entropy,
) -> None:
    """Run a forward pass, and a backward pass for each class with the other classes' logit gradients at zero.

    Backpropagation is linear, so these gradients add up to the whole. Those of one class are in memory at a time. The
    network runs in training mode, and its state is restored.

    Args:
        model, inputs, targets, loss: as for `normless.probes.observe`.
        visit: called for each class with its index, the share of examples that predict it, and the gradients by
            the parameters' qualified names; zero where a parameter has no influence.
        parameters: qualified names; all trainable ones if None. Parameters near the logits cost less.

    Raises:
        ValueError: a parameter that the network does not have, no trainable parameter, or no logits.
    """
    known = trainable_parameters(model)
    require_known(parameters, known, "trainable parameter")
    chosen = {name: known[name] for name in (known if parameters is None else parameters)}
    with torch.enable_grad(), as_function(model, training=True) as network:
        logits = network(chosen, inputs)
        whole = torch.autograd.grad(loss(logits, targets), logits, retain_graph=True)[0]
        predicted = logits.detach().argmax(-1).flatten().bincount(minlength=logits.shape[-1]).double()
        for index, share in enumerate((predicted / predicted.sum()).tolist()):
            masked = torch.zeros_like(whole)
            masked[..., index] = whole[..., index]
            visit(index, share, gradients_by(logits, chosen, masked, again=True))


def classwise_elements(
    model: nn.Module, inputs: Any, targets: Any, parameter: str, *, loss: Loss = F.cross_entropy
) -> pd.DataFrame:
    """Return the gradient of a parameter's elements by class (Bjorck et al., figure 20); see `for_each_class`.

    A row per class and element: `class`, `element` (index in the flattened parameter), `gradient`, and
    `predicted_share`, the share of examples that predict the class.
    """
    parts: list[pd.DataFrame] = []

    def visit(index: int, predicted: float, gradients: Gradients) -> None:
        values = gradients[parameter].double().flatten().cpu().numpy()
        row = {"class": index, "element": np.arange(len(values)), "gradient": values, "predicted_share": predicted}
        parts.append(pd.DataFrame(row))

    for_each_class(model, inputs, targets, visit, [parameter], loss=loss)
    return pd.concat(parts, ignore_index=True)


def classwise_gradients(elements: pd.DataFrame) -> pd.DataFrame:
    """Measure the size of a parameter's gradient by class (Bjorck et al., figure 21) from `classwise_elements`.

    A row per class: `class`, `mean_abs` of the gradient's elements, `predicted_share`, and `share`, the part of the
    sum of `mean_abs` over the classes.
    """
    groups = elements.assign(mean_abs=elements["gradient"].abs()).groupby("class")
    table = groups[["mean_abs", "predicted_share"]].mean().reset_index()
    whole = float(table["mean_abs"].sum())
    return table.assign(share=table["mean_abs"] / whole if whole > 0 else float("nan"))


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
