"""The gradient of the loss with respect to every logit, by example and class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
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
        z, g = self.matrix(logits), self.matrix(gradient)
        labels = self.labels(len(z))
        example, classes = np.indices(z.shape).reshape(2, -1)
        numbers = {"logit": z.flatten().cpu().numpy(), "gradient": (g * len(z)).flatten().cpu().numpy()}
        target = False if labels is None else classes == labels.cpu().numpy()[example]
        self._table = pd.DataFrame({"example": example, "class": classes, **numbers, "is_target": target})
