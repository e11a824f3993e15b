"""Scale invariance in γ and the effective learning rate of its direction (Kim et al., section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Loss
from normless.residual import ResidualMap
from normless_papers.probes.gamma_passes import GammaPasses, scaled

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
TOGETHER = "all"


def gamma_invariance(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    residual_map: ResidualMap | None = None,
    *,
    factor: float = 2.0,
    loss: Loss = F.cross_entropy,
) -> pd.DataFrame:
    """Multiply the γ of one norm at a time by c and see what becomes of the output and of γ's gradient (equation 22).

    In a block N[W ReLU(Γx)], Γ = diag(γ) and N another norm, c > 0 changes nothing (but for ε), so that the gradient
    is divided by c. That holds for `other` norms within a branch and β = 0; those that end in the stream (`last`,
    `down`) and those with no norm behind them are not invariant. Forward and backward once for each norm and once
    more; the network is left as it was.

    Args:
        model: a network with norms that have a γ.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        targets: what `loss` takes beside the logits.
        residual_map: the network's map, found where it is not given.
        factor: c.
        loss: (logits, targets) to a scalar.

    Returns:
        One row per norm in execution order: ``layer``, ``role``, ``gamma_norm`` ‖Γ‖ before, ``output_change``
        ‖y(cΓ) - y(Γ)‖ / ‖y(Γ)‖ of the logits, ``gradient_ratio`` ‖∇(cΓ)‖ / ‖∇(Γ)‖, ``predicted_gradient_ratio``
        1/c, and ``radial_share``, the part of the gradient along γ, |⟨∇, Γ⟩| / (‖∇‖‖Γ‖), zero in theory.

    Raises:
        ValueError: no norm of the network has a γ that is trained, or the factor is not above 0 and other than 1.
    """
    if not factor > 0 or factor == 1:
        raise ValueError(f"γ is multiplied by a number above 0 other than 1, got {factor}.")
    passes = GammaPasses.of(model, inputs, targets, residual_map, loss)
    rows = []
    with passes.measuring():
        output, gradients = passes.run(passes.gammas)
        for path, gamma in passes.gammas.items():
            before = gamma.detach().clone()
            with scaled([gamma], factor):
                changed, found = passes.run({path: gamma})
            at_once = gradients[path]
            rows.append(
                {
                    "layer": path,
                    "role": passes.roles[path],
                    "gamma_norm": float(before.norm()),
                    "output_change": _quotient(float((changed - output).norm()), float(output.norm())),
                    "gradient_ratio": _quotient(float(found[path].norm()), float(at_once.norm())),
                    "predicted_gradient_ratio": 1 / factor,
                    "radial_share": _quotient(
                        abs(float((at_once * before).sum())), float(at_once.norm() * before.norm())
                    ),
                }
            )
    return pd.DataFrame(rows)


def gamma_updates(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    residual_map: ResidualMap | None = None,
    *,
    scales: Sequence[float] = SCALES,
    rate: float = 1e-3,
    loss: Loss = F.cross_entropy,
) -> pd.DataFrame:
    """The first step of γ's direction against the size that γ starts with (equation 24 and figure 6).

    The γ of all norms of a role, and of all roles together, are multiplied by each scale; one step of gradient
    descent then moves the direction Γ̂ = Γ / ‖Γ‖ of each by ‖Γ̂₁ - Γ̂₀‖. To first order in the rate η that is

        η ‖Γ‖⁻² ‖∇_Γ̂ L‖,    ∇_Γ̂ L = ‖Γ‖ (∇_Γ L less its part along Γ),

    and the gradient at Γ̂ does not depend on ‖Γ‖ where Γ is scale invariant: then the slope is -2 on logarithmic
    axes. The network is left as it was.

    Args:
        model: a network with norms that have a γ.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        targets: what `loss` takes beside the logits.
        residual_map: the network's map, found where it is not given.
        scales: what γ is multiplied by.
        rate: η.
        loss: (logits, targets) to a scalar.

    Returns:
        One row per set of norms that is varied, scale and norm of the set: ``varied`` (a role, or `TOGETHER`),
        ``scale``, ``layer``, ``role``, ``gamma_norm`` ‖Γ‖, ``effective_rate`` η‖Γ‖⁻², ``update`` ‖Γ̂₁ - Γ̂₀‖ and
        ``predicted_update`` from the gradient at that scale.

    Raises:
        ValueError: no norm of the network has a γ that is trained, a scale is not above 0, or the rate is not.
    """
    if not scales or min(scales) <= 0 or not rate > 0:
        raise ValueError(f"Scales and rate are numbers above 0, got scales {tuple(scales)} and rate {rate}.")
    passes = GammaPasses.of(model, inputs, targets, residual_map, loss)
    rows: list[dict[str, Any]] = []
    with passes.measuring():
        for varied, paths in (passes.by_role() | {TOGETHER: list(passes.gammas)}).items():
            gammas = {path: passes.gammas[path] for path in paths}
            for scale in scales:
                with scaled(gammas.values(), scale):
                    _, gradients = passes.run(gammas)
                    for path, gamma in gammas.items():
                        row = {"varied": varied, "scale": scale, "layer": path, "role": passes.roles[path]}
                        rows.append(row | _step(gamma.detach(), gradients[path], rate))
    return pd.DataFrame(rows)


def gamma_slopes(updates: pd.DataFrame) -> pd.DataFrame:
    """The slope of log update against log ‖Γ‖, for every set of norms that was varied and every role in it.

    The regression is by least squares with a height of its own for every norm, so that the slope is that within
    norms: wide norms do not stand against narrow ones.

    Args:
        updates: the table of `gamma_updates`.

    Returns:
        One row per set and role, a last one per set for all roles of it where there are several: ``varied``,
        ``role``, ``slope``, ``predicted_slope`` -2, ``r_squared`` within norms, ``norms`` and ``points``. Updates
        of zero have no logarithm and are left out.
    """
    rows = []
    for varied, table in updates.groupby("varied", sort=False):
        roles: list[tuple[str, pd.DataFrame]] = [
            (str(role), part) for role, part in table.groupby("role", sort=False)
        ]
        if len(roles) > 1:
            roles.append((TOGETHER, table))
        rows += [{"varied": varied, "role": role, **_slope(part)} for role, part in roles]
    return pd.DataFrame(rows)


def _slope(table: pd.DataFrame) -> dict[str, float]:
    moved = table[table["update"] > 0]
    x, y = (_within(np.log(moved[column].to_numpy(float)), moved["layer"]) for column in ("gamma_norm", "update"))
    spread, height = float(x @ x), float(y @ y)
    slope = float(x @ y) / spread if spread > 0 else nan
    rest = float(((y - slope * x) ** 2).sum())
    counts = {"norms": moved["layer"].nunique(), "points": len(moved)}
    return {"slope": slope, "predicted_slope": -2.0, "r_squared": 1 - rest / height if height > 0 else nan, **counts}


def _within(values: npt.NDArray[np.float64], groups: pd.Series) -> npt.NDArray[np.float64]:
    """Values less the mean of their group."""
    series = pd.Series(values, index=groups.index)
    return (series - series.groupby(groups).transform("mean")).to_numpy(float)


def _step(gamma: Tensor, gradient: Tensor, rate: float) -> dict[str, float]:
    """The sizes of one step from γ, in float64: directions differ by little."""
    wide, slope = gamma.double().flatten(), gradient.double().flatten()
    size = float(wide.norm())
    direction, moved = wide / size, wide - rate * slope
    tangent = slope - (slope @ direction) * direction
    return {
        "gamma_norm": size,
        "effective_rate": rate / size**2,
        "update": float((moved / moved.norm() - direction).norm()),
        "predicted_update": rate / size**2 * size * float(tangent.norm()),
    }


def _quotient(value: float, over: float) -> float:
    return value / over if over > 0 else nan
