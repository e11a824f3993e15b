"""Gradients of the loss with respect to the logits, by class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from normless.probes.hooks.watcher import PROBES, Setting, Watcher


@PROBES.register("logits")
@dataclass
class LogitGradients(Watcher):
    """Logits z_j, predictions and gradients ∂L_b/∂z_j by class j, over the N examples b of a batch.

    Columns: `class`; `mean_logit` and `logit_deviation` (standard) over examples; `predicted_share`, the
    share of examples with the largest logit at j, and `favoured`, the class with the largest such share;
    `target_share`, NaN where targets are not class indices; `mean_abs_gradient` = (1/N) Σ_b |∂L_b/∂z_j|, with
    L = (1/N) Σ_b L_b; `gradient_share`, its part of the sum over classes; `bias_gradient` = (1/N) Σ_b ∂L_b/∂z_j, the
    gradient of a bias of class j; `agreement` = |bias_gradient| / mean_abs_gradient, 1 if all examples have one sign,
    near 1/√N for random signs (Bjorck et al., section 3.2).

    With cross entropy ∂L_b/∂z_j = p_bj - y_bj. An untrained network without normalization gives nearly the same
    logits for every example, so the gradient of the favoured class has one sign for all examples of other classes and
    its sum grows with the batch (figure 4).

    Args:
        class_axis: the logits' class axis; all other axes count examples.
    """

    class_axis: int = -1
    _targets: Any = field(default=None, init=False, repr=False)
    _table: pd.DataFrame = field(default_factory=pd.DataFrame, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Store the targets."""
        self._targets = setting.targets

    def matrix(self, x: Tensor) -> Tensor:
        """Logits or their gradient as a matrix (N, classes) in float64; N counts tokens or pixels too."""
        return x.movedim(self.class_axis, -1).flatten(0, -2).double()

    def labels(self, rows: int) -> Tensor | None:
        """The targets, shape (N,), if they are class indices."""
        targets = self._targets
        integers = isinstance(targets, Tensor) and not targets.is_floating_point() and not targets.is_complex()
        return targets.flatten() if integers and targets.numel() == rows else None

    def table(self) -> pd.DataFrame:
        """The rows of the last batch."""
        return self._table

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        """Reduce logits and gradient, shape (…, classes), to numbers per class."""
        z, g = self.matrix(logits), self.matrix(gradient)
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


def agreement(by_class: pd.DataFrame) -> float:
    """Σ_j |Σ_b ∂L_b/∂z_j| / Σ_jb |∂L_b/∂z_j|: 1 for gradients independent of the example, near 0 for cancelling ones.

    Args:
        by_class: the table of `LogitGradients`.
    """
    return float(by_class["bias_gradient"].abs().sum() / by_class["mean_abs_gradient"].sum())


def _shares(labels: Tensor, classes: int) -> Tensor:
    valid = labels[(labels >= 0) & (labels < classes)]
    return valid.bincount(minlength=classes) / max(len(labels), 1)
