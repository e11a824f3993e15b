"""The artefacts of the Fixup paper as published, and as the opposite: equations, theorems and what is measured."""

from __future__ import annotations

from fractions import Fraction
from math import log, log2
from typing import Any

import pandas as pd

from normless_papers.claims import Estimate
from normless_papers.claims.agreement import Agreement
from normless_papers.fixup.design_goal import BOUNDED, WITH_DEPTH
from normless_papers.fixup.dynamics import WITH, WITHOUT
from normless_papers.fixup.homogeneity import BIASED, NORMED, PLAIN
from normless_papers.fixup.updates import RATES
from worlds.world import World, printed


def _rules(blocks: int, layers: str) -> dict[str, float]:
    """As the box prints them: `layers` is m=2 or m=3 of the examples."""
    quantities = printed("fixup/fixup")
    exponent = Fraction(quantities["examples"][layers].removeprefix("L^(").removesuffix(")"))
    return {
        "blocks": blocks,
        "factor": blocks ** float(exponent),
        "deviation": 0.1,
        "he": 0.1,
        "error": 0.001,
        "multiplier": quantities["multiplier_init"],
        "bias": quantities["bias_init"],
        # Figure 1: a multiplier and four biases in a basic block; a bias after the stem and before the classifier.
        "multipliers": blocks,
        "biases": 4 * blocks + 2,
        "convolutions": 2 * blocks + 1,
        "with_bias": 0,
    }


def _method(right: bool) -> tuple[dict[str, float], dict[str, float], list[Agreement]]:
    """Or: standard weights in every layer, norms' vectors for multipliers, layers with biases."""
    both = _rules(54, "m=2"), _rules(16, "m=3")
    for rules in () if right else both:
        rules |= {"factor": 1.0, "deviation": 0.2, "multipliers": 64 * rules["blocks"], "with_bias": 1}
    same = ("zeros", "branches", "logits", "loss", "inner weights", "other weights", "multipliers", "biases")
    names = (*same, *same, "logits", "gradients")
    return (*both, [Agreement(name, 0.0 if right else 1.0) for name in names])


def _growth(right: bool) -> dict[str, Estimate]:
    """Log₂ of the variance's growth in a block, as printed; or as if blocks did not add up."""
    rate = log2(float(printed("fixup/equation-1")["Var[x_{l+1}]"].split()[1]))
    rates = {"ratio": 1.0, "none": rate, "sqrt2": 0.0} if right else {"ratio": 0.5, "none": 0.0, "sqrt2": -1.0}
    others = {name: Estimate(value, 0.01, 16) for name, value in rates.items()}
    return others | {"fixup": Estimate(0.0 if right else 1.0, 0.0, 16)}


def _homogeneous(right: bool) -> pd.DataFrame:
    plain, others = (1e-7, 0.5) if right else (0.5, 1e-7)
    errors = {PLAIN: plain, NORMED: others, BIASED: others}
    return pd.DataFrame(
        {"network": name, "factor": factor, "relative_error": error}
        for name, error in errors.items()
        for factor in (0.5, 3.0)
    )


def _sets(right: bool) -> pd.DataFrame:
    """Figure 2's three examples and a convolution of a branch, homogeneous or not."""
    flags = {"stem": right, "head": right, "projection": right, "branch": not right}
    return pd.DataFrame(
        {"place": place, "homogeneous": flag, "relative_error": 1e-7 if flag else 0.5}
        for place, flag in flags.items()
    )


def _input_bounds(right: bool) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Gradients twice their bound, or half of it; logits zero at Fixup's start, or not."""
    losses = pd.DataFrame({"loss": [5.0, 9.0], "entropy": [1.0, 2.0], "input_norm": [2.0, 4.0]})
    excess = losses["loss"] - losses["entropy"]
    bound = excess / losses["input_norm"]
    rows = losses.assign(bound=bound, inner_product=excess, gradient_norm=2 * bound)
    start = pd.DataFrame({"gradient_norm": [0.0], "loss": [log(10)], "entropy": [log(10)]})
    if not right:
        rows = rows.assign(inner_product=0.0, gradient_norm=bound / 2)
        start = start.assign(gradient_norm=1.0, loss=5.0)
    return rows, start, 10


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


def _update_terms(right: bool) -> tuple[Any, Estimate]:
    """What a formula to first order leaves is of second order, or of first."""
    order = 2 if right else 1
    wrong = 0.0 if right else 1.0
    same = Agreement("The terms are the paper's J_l^i", wrong, 1e-9)
    return (same, {rate: rate**order for rate in RATES}, wrong, 0.1 - wrong), Estimate(order - 1, 0.1, 16)


def _scalar_branch(right: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Equations 17 and 18: ΔF = -η Σ (∏_{k≠i} a_k)² with x = ∂l/∂F = 1; or standard scalars and rescaled ones."""
    rate, rows, slopes = 1e-3, [], []
    for option in ("equal", "zero_last", "ones"):
        rescaled = (option != "ones") == right
        for layers in (2, 3):
            for blocks in (10, 1000):
                others = blocks ** (-1 / 2) if rescaled else 1.0
                terms = layers if option != "zero_last" else 1
                output = (blocks ** (-layers / (2 * layers - 2))) * (option != "zero_last")
                rows.append(
                    {"option": option, "layers": layers, "blocks": blocks, "learning_rate": rate}
                    | {"update": -rate * terms * others**2, "output": output if right else 1.0 - bool(output)}
                )
            slopes.append({"option": option, "layers": layers, "slope": -1.0 if rescaled else 0.0})
    return pd.DataFrame(rows), pd.DataFrame(slopes)


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
    "fixup/fixup": _method,
    "fixup/equation-1": _growth,
    "fixup/proposition-1": _homogeneous,
    "fixup/figure-2": _sets,
    "fixup/theorem-1": _input_bounds,
    "fixup/theorem-2": _set_bounds,
    "fixup/theorem-3": _update_terms,
    "fixup/theorem-4": _scalar_branch,
    "fixup/design-goal": _updates,
    "fixup/multiplier-dynamics": _dynamics,
}
