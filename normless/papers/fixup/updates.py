"""Theorems 3 and 4: what one step of gradient descent does to the output, to first order and exactly."""

from __future__ import annotations

from math import log

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from normless import convert
from normless.models import resnet_cifar
from normless.papers.agreement import ROUNDING, Agreement, deviation
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.fixup.networks import RectifiedNetwork, closed_form
from normless.papers.verdict import Check, check, close
from normless.probes import scalar_branch_table, update_slopes, update_terms, update_trace_table
from normless.report.probes.scalar_branch import scalar_branch_updates
from normless.report.probes.update_trace import update_trace_against_block

RATES = (1e-4, 5e-5, 2.5e-5)


@artefact("fixup/theorem-3", basis="measurement")
def theorem_3(
    context: Context, *, width: int, layers: int, depths: tuple[int, ...], draws: int, depth: int
) -> Evidence:
    """∆f = -η Σ J ∂l/∂z + O(η²), every J positive semi-definite, and the trace of their sum proportional to L."""
    with seeded(context.seed):
        same, remainders = _by_formula(layers)
        found = update_trace_table(convert(resnet_cifar(depth), "xavier"), torch.randn(1, 3, 8, 8), torch.tensor([3]))
        traces = pd.DataFrame(
            {
                "quantity": "trace of Σ J over the branches",
                "blocks": count,
                "draw": draw,
                "value": _trace(count, width, layers),
            }
            for count in depths
            for draw in range(draws)
        )
    means = traces.groupby("blocks")["value"].mean()
    slope = float(np.polyfit(np.log(means.index.to_numpy(float)), np.log(means.to_numpy(float)), 1)[0])
    smallest = (found["smallest_eigenvalue"] / found["largest_eigenvalue"].clip(lower=1e-300)).min()
    scaled = [one / rate**2 for one, rate in zip(remainders, RATES, strict=True)]
    published = pd.DataFrame(
        [
            {"quantity": "Delta_f(x0)", "value": f"remainder / η²: {', '.join(map('{:.4g}'.format, scaled))}"},
            {"quantity": "consequence", "value": f"slope of log trace against log L {slope:.3f}"},
        ]
    )  # fmt: skip
    return Evidence(
        measured=pd.concat([published, traces], ignore_index=True),
        checks=(
            same.check(),
            *(
                close(
                    f"Halving η from {rate:g} quarters what the first-order formula leaves, to 10 %.",
                    first / second, 4, relative=0.1,
                )
                for rate, first, second in zip(RATES, remainders, remainders[1:], strict=False)
            ),
            check(
                "No J of a convolutional ResNet has a negative eigenvalue, to 10⁻⁹ of its largest.",
                bool(smallest >= -1e-9),
                smallest_relative_eigenvalue=smallest,
                matrices=len(found),
            ),
            close("The trace of Σ J grows linearly with L: slope 1 of logarithms, to 0.25.", slope, 1, absolute=0.25),
        ),
        setup={
            "formula": f"5 blocks of width 16, {layers} layers of linear → ReLU on each, float64, one example",
            "traces": f"width {width}, {layers} layers, gain 0.1, L = {', '.join(map(str, depths))}, {draws} draws",
            "eigenvalues": f"ResNet-{depth} for CIFAR without normalization, Xavier, one random image of 8×8",
            "seed": context.seed,
        },
        on=("quantity",),
        draw=lambda: update_trace_against_block(found),
        remarks=("Branches of equal scale have the gain 0.1, small enough for the signal not to grow on its way.",),
    )  # fmt: skip


def _by_formula(layers: int) -> tuple[Agreement, list[float]]:
    """A small network's terms against the paper's formula, and what they leave of a step at every rate."""
    network = RectifiedNetwork(5, 16, layers, gain=0.5).double()
    x = torch.randn(1, 16, dtype=torch.float64)
    terms = {term.parameter: term.matrix for term in update_terms(network, x)}
    formula = closed_form(network, x[0])
    worst = max(deviation(terms[name], one) for name, one in formula.items()) if set(terms) == set(formula) else 1.0
    return (
        Agreement("The terms are the paper's J_l^i", worst, ROUNDING),
        _remainders(network, x, torch.stack(list(terms.values())).sum(0)),
    )


def _trace(blocks: int, width: int, layers: int) -> float:
    network = RectifiedNetwork(blocks, width, layers, gain=0.1)
    terms = update_terms(network, torch.randn(1, width))
    return sum(float(term.matrix.trace()) for term in terms if term.parameter != "head.weight")


def _remainders(network: RectifiedNetwork, x: Tensor, whole: Tensor) -> list[float]:
    """‖f(θ - η ∂l/∂θ) - f(θ) + η Σ J ∂l/∂z‖ for every rate."""
    logits = network(x)
    loss = F.cross_entropy(logits, torch.tensor([2]))
    (by_logits,) = torch.autograd.grad(loss, logits, retain_graph=True)
    held = dict(network.named_parameters())
    gradients = torch.autograd.grad(loss, list(held.values()))
    found = []
    for rate in RATES:
        moved = {name: one - rate * gradient for (name, one), gradient in zip(held.items(), gradients, strict=True)}
        change = torch.func.functional_call(network, moved, (x,)) - logits
        found.append(float((change[0] + rate * whole @ by_logits[0]).norm().detach()))
    return found


@artefact("fixup/theorem-4", basis="measurement")
def theorem_4(context: Context, *, blocks: tuple[int, ...], layers: tuple[int, ...]) -> Evidence:
    """|ΔF| = Θ(η/L) for a_i = L^(-1/(2m-2)), also with a_m = 0, and not for a_i = 1; steps are exact."""
    rate = 1e-3
    table = scalar_branch_table(blocks, layers=layers, learning_rate=rate)
    slopes = update_slopes(table)
    condition = table["update"].abs() * table["blocks"] / rate
    options = table["option"]
    published = pd.DataFrame([{"quantity": "condition", "value": _words(slopes)}])
    steps = table[table["blocks"] == max(blocks)].assign(quantity="one step")
    zero, equal = table[options == "zero_last"], table[options == "equal"]
    return Evidence(
        measured=pd.concat([published, slopes.assign(quantity="slope of log|ΔF|"), steps], ignore_index=True),
        checks=(
            *_slopes(slopes),
            _at_first_order("zero_last", "η/L", condition[options == "zero_last"]),
            _at_first_order("equal", "m·η/L", condition[options == "equal"] / equal["layers"]),
            check(
                "With the last scalar at 0 the branch starts at F = 0, and with all equal it does not.",
                bool((zero["output"] == 0).all() and (equal["output"] > 0).all()),
                largest_with_zero=zero["output"].abs().max(),
                smallest_with_equal=equal["output"].min(),
            ),
        ),
        setup={
            "x and ∂l/∂F": "1",
            "η": f"{rate:g}",
            "L": ", ".join(map(str, blocks)),
            "m": ", ".join(map(str, layers)),
        },
        on=("quantity",),
        draw=lambda: scalar_branch_updates(table),
    )


def _words(slopes: pd.DataFrame) -> str:
    means = slopes.groupby("option", sort=False)["slope"].mean()
    return "slopes " + ", ".join(f"{option} {slope:.4f}" for option, slope in means.items())


def _slopes(slopes: pd.DataFrame) -> list[Check]:
    names = {"equal": "all a_i = L^(-1/(2m-2))", "zero_last": "the same and a_m = 0", "ones": "all a_i = 1"}
    checks = []
    for option, rows in slopes.groupby("option", sort=False):
        expected = 0.0 if option == "ones" else -1.0
        worst = float(rows["slope"].iloc[int((rows["slope"] - expected).abs().argmax())])
        claim = f"With {names[str(option)]} the slope of log|ΔF| against log L is {expected:g}, to 0.01 for every m."
        checks.append(close(claim, worst, expected, absolute=0.01))
    return checks


def _at_first_order(option: str, law: str, ratio: pd.Series) -> Check:
    worst = float(ratio.iloc[int(np.argmax([abs(log(value)) if value > 0 else float("inf") for value in ratio]))])
    return close(f"With {option} the step is {law}, to 2 % for every m and L.", worst, 1, relative=0.02)
