"""Scale invariance in γ and the effective learning rate of its direction (Kim et al., section 3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import nan
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Loss
from normless_papers.probes.network_function import as_function, gradients_by, map_of, trainable_parameters

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
TOGETHER = "all"


# From the paths of norms and a factor on each γ to the logits and the gradients of these γ.
_Run = Callable[[Collection[str], float], tuple[Tensor, dict[str, Tensor]]]


@contextmanager
def _passes(
    model: nn.Module, inputs: Any, targets: Any, loss: Loss
) -> Iterator[tuple[_Run, dict[str, Tensor], dict[str, str]]]:
    """Yield a pass in training mode, the non-zero trainable γ by norm in execution order, and the norms' roles."""
    known = map_of(model, inputs, None)
    norms = [layer for layer in known.layers() if layer.kind == "norm" and layer.call == 0]
    names = {layer.path: layer.gamma for layer in norms if layer.gamma is not None}
    parameters = trainable_parameters(model) if names else {}
    gammas = {path: parameters[name].detach() for path, name in names.items() if name in parameters}
    gammas = {path: gamma for path, gamma in gammas.items() if gamma.any()}
    if not gammas:
        raise ValueError(
            f"The direction of γ is measured, but no norm of this {type(model).__name__} has a non-zero trainable γ."
        )

    def run(paths: Collection[str], scale: float) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = {path: (scale * gammas[path]).requires_grad_() for path in paths}
        output = network({names[path]: leaf for path, leaf in leaves.items()}, inputs)
        return output.detach(), gradients_by(loss(output, targets), leaves)

    with torch.enable_grad(), as_function(model, training=True) as network:
        yield run, gammas, {path: known.norms[path] for path in gammas}


def gamma_invariance(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    factor: float = 2.0,
    loss: Loss = F.cross_entropy,
) -> pd.DataFrame:
    """Measure the change of the output and of γ's gradient if γ of one norm is multiplied by c (equation 22).

    In a block N[W ReLU(Γx)] with Γ = diag(γ) and another norm N, c > 0 changes nothing (but for ε), so the gradient
    is divided by c. That holds for `other` norms within a branch with β = 0; norms that end in the stream (`last`,
    `down`) and norms that no norm follows are not invariant. The network's state is restored.

    Arguments other than ``factor``, which is c, are those of `normless.probes.observe`.

    Returns:
        One row per norm in execution order: ``layer``, ``role``, ``gamma_norm`` ‖Γ‖ before, ``output_change``
        ‖y(cΓ) - y(Γ)‖ / ‖y(Γ)‖ of the logits, ``gradient_ratio`` ‖∇(cΓ)‖ / ‖∇(Γ)‖, ``predicted_gradient_ratio`` 1/c,
        and ``radial_share``, the part of the gradient along γ, |⟨∇, Γ⟩| / (‖∇‖‖Γ‖), zero in theory.

    Raises:
        ValueError: no norm has a trainable γ.
    """
    rows = []
    with _passes(model, inputs, targets, loss) as (run, gammas, roles):
        output, gradients = run(gammas, 1.0)
        for path, gamma in gammas.items():
            changed, scaled = run([path], factor)
            gradient, size = gradients[path], float(gradients[path].norm())
            row = {"layer": path, "role": roles[path], "gamma_norm": float(gamma.norm())}
            row["output_change"] = _quotient(float((changed - output).norm()), float(output.norm()))
            row["gradient_ratio"] = _quotient(float(scaled[path].norm()), size)
            row["predicted_gradient_ratio"] = 1 / factor
            row["radial_share"] = _quotient(abs(float((gradient * gamma).sum())), size * float(gamma.norm()))
            rows.append(row)
    return pd.DataFrame(rows)


def gamma_updates(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    scales: Sequence[float] = SCALES,
    rate: float = 1e-3,
    loss: Loss = F.cross_entropy,
) -> pd.DataFrame:
    """Measure the first step of γ's direction against the norm of the initial γ (equation 24 and figure 6).

    The γ of all norms of a role, and of all roles together, are multiplied by each scale. A step of gradient descent
    then moves the direction Γ̂ = Γ / ‖Γ‖ of each by ‖Γ̂₁ - Γ̂₀‖, to first order in the rate η

        η ‖Γ‖⁻² ‖∇_Γ̂ L‖,    ∇_Γ̂ L = ‖Γ‖ (∇_Γ L less its part along Γ),

    If Γ is scale invariant, the gradient at Γ̂ does not depend on ‖Γ‖, and the slope is -2 on logarithmic axes. The
    network's state is restored.

    Arguments other than the scales and the rate η are those of `normless.probes.observe`.

    Returns:
        One row per varied set of norms, scale and norm of the set: ``varied`` (a role, or `TOGETHER`),
        ``scale``, ``layer``, ``role``, ``gamma_norm`` ‖Γ‖, ``effective_rate`` η‖Γ‖⁻², ``update`` ‖Γ̂₁ - Γ̂₀‖ and
        ``predicted_update`` from the gradient at that scale.

    Raises:
        ValueError: no norm has a trainable γ.
    """
    rows: list[dict[str, Any]] = []
    with _passes(model, inputs, targets, loss) as (run, gammas, roles):
        varied: dict[str, list[str]] = {}
        for path, role in roles.items():
            varied.setdefault(role, []).append(path)
        for name, paths in (varied | {TOGETHER: list(gammas)}).items():
            for scale in scales:
                _, gradients = run(paths, scale)
                for path in paths:
                    row = {"varied": name, "scale": scale, "layer": path, "role": roles[path]}
                    rows.append(row | _step(scale * gammas[path], gradients[path], rate))
    return pd.DataFrame(rows)


def gamma_slopes(updates: pd.DataFrame) -> pd.DataFrame:
    """Fit the slope of log update against log ‖Γ‖ for every varied set of norms and every role in it.

    The fit is by least squares over the table of `gamma_updates`, with an intercept for every norm, without updates
    of zero. One row per set and role, and one for all roles of a set with several: ``varied``, ``role``, ``slope``,
    ``predicted_slope`` -2, ``r_squared`` within norms, ``norms`` and ``points``.
    """
    rows = []
    for varied, table in updates.groupby("varied", sort=False):
        roles: dict[Any, pd.DataFrame] = dict(list(table.groupby("role", sort=False)))
        roles |= {TOGETHER: table} if len(roles) > 1 else {}
        rows += [{"varied": varied, "role": role, **_slope(part)} for role, part in roles.items()]
    return pd.DataFrame(rows)


def _slope(table: pd.DataFrame) -> dict[str, float]:
    moved = table[table["update"] > 0]
    logarithms = moved[["gamma_norm", "update"]].astype(float).transform(np.log)
    within = logarithms - logarithms.groupby(moved["layer"]).transform("mean")
    x, y = (within[column].to_numpy() for column in within)
    spread, height = float(x @ x), float(y @ y)
    slope = _quotient(float(x @ y), spread)
    fit = {"slope": slope, "predicted_slope": -2.0, "r_squared": 1 - _quotient(((y - slope * x) ** 2).sum(), height)}
    return fit | {"norms": moved["layer"].nunique(), "points": len(moved)}


def _step(gamma: Tensor, gradient: Tensor, rate: float) -> dict[str, float]:
    """Measure one step from γ, in float64, since directions differ by little."""
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
