"""Gradients of the loss with respect to the logits: whether one class is favoured whatever the input.

An untrained network without normalization puts out nearly the same logits for every example. With cross entropy
∂L_b/∂z_j = p_bj - y_bj, so that the favoured class j' has a gradient near 1 for every example of another class:
summed over the batch it grows with the batch, where gradients of varying sign cancel (Bjorck et al., section 3.2,
figure 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes.hooks.observe import Loss, observe
from normless.probes.hooks.watcher import Setting, Watcher
from normless.residual import ResidualMap

CLASS_COLUMNS = (
    "class",
    "mean_logit",
    "logit_deviation",
    "predicted_share",
    "target_share",
    "mean_abs_gradient",
    "gradient_share",
    "bias_gradient",
    "agreement",
    "favoured",
)


@dataclass
class _Logits(Watcher):
    class_axis: int = -1
    _targets: Any = field(default=None, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Keep the targets beside which logits are reported."""
        self._targets = setting.targets

    def rows_of(self, x: Tensor) -> Tensor:
        """Logits or their gradient as a matrix (N, classes), in float64; N counts tokens or pixels too."""
        return x.movedim(self.class_axis, -1).flatten(0, -2).double()

    def labels(self, rows: int) -> Tensor | None:
        """The targets, shape (N,), where they are classes."""
        targets = self._targets
        whole = isinstance(targets, Tensor) and not targets.is_floating_point() and not targets.is_complex()
        return targets.flatten() if whole and targets.numel() == rows else None


@dataclass
class LogitGradients(_Logits):
    """By class: the logit, who predicts it, and the gradient ∂L_b/∂z_j over the N examples of a batch.

    `mean_logit` and `logit_deviation` (standard deviation) are over examples; `predicted_share` is the share of
    examples whose largest logit it is, and the class with the largest is `favoured`; `target_share` of those whose
    target it is, NaN where targets are no classes. L is the mean of the L_b. `mean_abs_gradient` is (1/N) Σ_b
    |∂L_b/∂z_j|, `gradient_share` the part that is of the sum over classes, `bias_gradient` (1/N) Σ_b ∂L_b/∂z_j,
    the gradient of L with respect to a bias of class j, and `agreement` = |bias_gradient| / mean_abs_gradient: 1 if
    all examples have one sign, near 1/√N if signs are drawn.

    Args:
        class_axis: the logits' axis of classes; all others count examples.
    """

    _table: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=CLASS_COLUMNS), init=False, repr=False)

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        """Reduce logits and gradient, shape (…, classes), to numbers per class."""
        z, g = self.rows_of(logits), self.rows_of(gradient)
        classes, total = z.shape[1], g.abs().sum()
        shares = z.argmax(1).bincount(minlength=classes) / len(z)
        labels = self.labels(len(z))
        known = torch.full_like(shares, torch.nan) if labels is None else _shares(labels, classes).to(shares)
        columns = {
            "mean_logit": z.mean(0),
            "logit_deviation": z.std(0, correction=0),
            "predicted_share": shares,
            "target_share": known,
            "mean_abs_gradient": g.abs().sum(0),
            "gradient_share": g.abs().sum(0) / total,
            "bias_gradient": g.sum(0),
            "agreement": g.sum(0).abs() / g.abs().sum(0),
        }
        self._table = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
        self._table.insert(0, "class", range(classes))
        self._table["favoured"] = self._table.index == int(shares.argmax())

    def table(self) -> pd.DataFrame:
        """A row per class; the columns are `CLASS_COLUMNS`."""
        return self._table


@dataclass
class LogitGradientMatrix(_Logits):
    """∂L_b/∂z_j of every example b and class j, N times the gradient of the mean loss (Bjorck et al., figure 4).

    Args:
        class_axis: the logits' axis of classes; all others count examples.
    """

    _table: pd.DataFrame = field(default_factory=pd.DataFrame, init=False, repr=False)

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        """Write logits and gradient, shape (…, classes), as rows."""
        z, g = self.rows_of(logits), self.rows_of(gradient)
        examples, classes = z.shape
        labels = self.labels(examples)
        self._table = pd.DataFrame(
            {
                "example": torch.arange(examples).repeat_interleave(classes).numpy(),
                "class": torch.arange(classes).repeat(examples).numpy(),
                "logit": z.flatten().cpu().numpy(),
                "gradient": (g * examples).flatten().cpu().numpy(),
                "is_target": False,
            }
        )
        if labels is not None:
            self._table["is_target"] = self._table["class"] == labels.cpu().repeat_interleave(classes).numpy()

    def table(self) -> pd.DataFrame:
        """A row per example and class: `example`, `class`, `logit`, `gradient`, `is_target`."""
        return self._table


def logit_gradients(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    by_example: bool = False,
    class_axis: int = -1,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> pd.DataFrame:
    """What `LogitGradients` measures on one batch, or `by_example` what `LogitGradientMatrix` does.

    The other arguments and errors are those of `observe`.
    """
    watcher = LogitGradientMatrix(class_axis) if by_example else LogitGradients(class_axis)
    observe(model, [watcher], inputs, targets, loss=loss, residual_map=residual_map, training=training)
    return watcher.table()


def agreement(by_class: pd.DataFrame) -> float:
    """Σ_j |Σ_b ∂L_b/∂z_j| / Σ_jb |∂L_b/∂z_j|: 1 if the gradient does not depend on the example, near 0 if it does.

    Args:
        by_class: of `logit_gradients`.
    """
    return float(by_class["bias_gradient"].abs().sum() / by_class["mean_abs_gradient"].sum())


def _shares(labels: Tensor, classes: int) -> Tensor:
    inside = labels[(labels >= 0) & (labels < classes)]
    return inside.bincount(minlength=classes) / max(len(labels), 1)
