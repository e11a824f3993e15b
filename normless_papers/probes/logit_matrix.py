"""The gradient of the loss with respect to every logit, by example and class."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from normless.probes import LogitGradients


@dataclass
class LogitGradientMatrix(LogitGradients):
    """The gradient ∂L_b/∂z_j of every example b and class j, N times that of the mean loss (Bjorck et al., figure 4).

    Columns: `example`, `class`, `logit`, `gradient`, `is_target`.

    Args:
        class_axis: the logits' class axis; all other axes count examples.
    """

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        """Store logits and gradient, shape (…, classes), as rows."""
        z, g = self.matrix(logits), self.matrix(gradient)
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
