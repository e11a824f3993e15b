"""What an activation does to the variance of a standard normal input, by quadrature."""

from __future__ import annotations

from copy import deepcopy
from math import inf, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normless.errors import MissingValuesError

Values = NDArray[np.float64]


def _normal_quadrature() -> tuple[Values, Values]:
    """Nodes z and weights of ∫ f(z)·N(z; 0, 1) dz: Gauss-Legendre on every [k, k + 1] between -12 and 12.

    The kinks of the common activations lie at whole numbers (ReLU 0, ReLU6 6, Hardswish ±3, Hardtanh ±1), on the
    edge of two panels, so the result is right to 1e-12. Gauss-Hermite nodes, which meet a kink with an error of one
    over their number, are right to 1e-3.
    """
    nodes, weights = np.polynomial.legendre.leggauss(20)
    starts = np.arange(-12.0, 12.0)
    z = (starts[:, None] + (nodes + 1) / 2).ravel()
    return z, np.tile(weights / 2, len(starts)) * np.exp(-(z**2) / 2) / sqrt(2 * pi)


NODES, WEIGHTS = _normal_quadrature()


def applied(activation: nn.Module, values: Values) -> Values:
    """An elementwise activation at some values, in float64 and in evaluation mode; the module stays as it is.

    A PReLU with a slope per channel is applied by each of them: shape (n,) to (channels, n).

    Raises:
        MissingValuesError: its parameters have no values, as on torch's device `meta`.
    """
    if any(parameter.is_meta for parameter in activation.parameters()):
        raise MissingValuesError(f"The parameters of this {type(activation).__name__} have no values.")
    channels = max((parameter.numel() for parameter in activation.parameters()), default=1)
    inputs = torch.from_numpy(values).expand(1, channels, -1).clone()
    with torch.no_grad():
        outputs = deepcopy(activation).cpu().double().eval()(inputs).numpy()
    found: Values = outputs.reshape(-1) if channels == 1 else outputs[0]
    return found


def activation_gain(activation: nn.Module) -> float:
    """γ = 1 / √Var[φ(z)] for z ~ N(0, 1): what gives an activation's output unit variance (Brock et al. 2021).

    For ReLU it is √(2 / (1 - 1/π)) ≈ 1.7128.

    Args:
        activation: an elementwise activation φ.

    Returns:
        The gain; infinity for an activation that is constant.

    Raises:
        MissingValuesError: its parameters have no values, as on torch's device `meta`.
    """
    outputs = np.atleast_2d(applied(activation, NODES))
    mean = (outputs @ WEIGHTS).mean()
    variance = (((outputs - mean) ** 2) @ WEIGHTS).mean()
    return float(1 / sqrt(variance)) if variance > 0 else inf


def is_homogeneous(activation: nn.Module) -> bool:
    """Whether φ(s·x) = s·φ(x) for every s > 0, as for ReLU and its leaky kin."""
    outputs = applied(activation, NODES)
    return all(np.allclose(applied(activation, scale * NODES), scale * outputs, atol=0) for scale in (0.125, 8.0))
