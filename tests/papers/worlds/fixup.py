"""The artefacts of the Fixup paper as published, and as the opposite: equations, theorems and what is measured."""

from __future__ import annotations

from math import log
from typing import Any

import pandas as pd

from normless_papers.claims import Estimate
from normless_papers.fixup.design_goal import BOUNDED, WITH_DEPTH
from normless_papers.fixup.dynamics import WITH, WITHOUT
from worlds.world import World, printed


def _set_bounds(right: bool) -> tuple[pd.DataFrame, Estimate, pd.DataFrame]:
    """The same of sets; gradients that grow tenfold from depth to depth, or fall so."""
    rows = pd.DataFrame({"set": ["stem", "classifier"], "excess": [4.0, 4.0], "bound": [2.0, 1.0]})
    factor, sign = (2.0, 1) if right else (0.5, -1)
    rows = rows.assign(gradient_norm=factor * rows["bound"], inner_product=rows["excess"] if right else 0.0)
    grown = pd.DataFrame(
        {"set": name, "depth": depth, "draw": draw, "gradient_norm": 10.0 ** (sign * place) * (1 + draw / 100)}
        for name in ("stem", "classifier")
        for place, depth in enumerate((20, 56, 110))
        for draw in range(3)
    )
    return rows, Estimate(float(sign), 0.1, 100), grown


def _updates(right: bool) -> tuple[dict[tuple[str, int, int], Estimate], dict[int, Any]]:
    """One function's update with Fixup at every depth, and sixteen times as large with the others; or the reverse."""
    grows = Estimate(log(16), 0.1, 16)
    level = Estimate(0.0, 0.1, 16)
    bounded, others = (level, grows) if right else (grows, Estimate(-log(16), 0.1, 16))
    sizes = {(scheme, steps, depth): level for scheme in BOUNDED for steps in (0, 3) for depth in (4, 16)}
    sizes |= {(scheme, steps, 16): bounded for scheme in BOUNDED for steps in (0, 3)}
    sizes |= {(scheme, 0, depth): size for scheme in WITH_DEPTH for depth, size in ((4, level), (16, others))}
    shortcut = printed("fixup/design-goal")["shortcut_layers_imagenet"]
    wrong = {"convolutions": 50, "fully_connected": 1}
    return sizes, dict.fromkeys((50, 101, 152), shortcut if right else wrong)


def _dynamics(right: bool) -> tuple[pd.DataFrame, int, int]:
    """Of three draws: after step 200 norms shrink and the multiplier grows; or they grow, and it falls as it rose."""
    courses = {100: (2.0, 1.0), 200: (1.9, 1.0), 300: (1.5, 1.2)} if right else {
        100: (1.9, 0.9), 200: (2.0, 1.0), 300: (2.5, 0.8),
    }  # fmt: skip
    rows = []
    for draw in range(3):
        for scheme in (WITH, WITHOUT):
            for step, (norm, multiplier) in courses.items():
                near = 1 + 0.001 * draw
                alpha = multiplier if scheme == WITH else 1.0
                row = {"draw": draw, "scheme": scheme, "step": step, "cosine": near * (0.05 if right else 0.5)}
                row |= {
                    "weight_norm": near * norm,
                    "multiplier": near * alpha,
                    "log_rate": 2 * log(near * alpha / norm),
                }
                rows.append(row)
    return pd.DataFrame(rows), 200, 300


WORLDS: dict[str, World] = {
    "fixup/theorem-2": _set_bounds,
    "fixup/design-goal": _updates,
    "fixup/multiplier-dynamics": _dynamics,
}
