"""Fixup, theorems 3 and 4: the change of the output by a gradient descent step, to first order and exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.models import resnet_cifar
from normless_lab.plots import Plot, series_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network, Seeds
from normless_papers.claims import Claim, Estimate, Test, Tests, decided, equals, lies_within, over_draws, stated
from normless_papers.claims.agreement import ROUNDING, Agreement, deviation
from normless_papers.evidence import with_quantities
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.probes.updates import scalar_branch_table, update_slopes, update_terms, update_trace_table

RATES = (1e-4, 5e-5, 2.5e-5)
# The rate of the steps that measure a term, and the tolerance of their first-order approximation.
STEP, _OF_A_STEP = 1e-6, 1e-3
# Agreement of autograd's terms with the paper's J_l^i; ‖∆f + η Σ J ∂l/∂z‖ of a step, by η; and for the terms that
# steps measure, the largest |J - Jᵀ| relative to |J|, and the smallest eigenvalue relative to the largest.
_Terms = tuple[Agreement, Mapping[float, float], float, float]


class RectifiedBlock(nn.Module):
    """f(x) = x + relu(W_m … relu(W_1 x)); weights He normal times a gain. Shapes: (B, width) to the same."""

    def __init__(self, width: int, layers: int, gain: float) -> None:
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        for weight in self.weights.parameters():
            nn.init.normal_(weight, std=gain * (2 / width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the branch."""
        h = x
        for weight in self.weights:
            h = torch.relu(weight(h))
        return x + h


class RectifiedNetwork(nn.Module):
    """L blocks and a linear head without biases (Fixup, appendix B.1). Shapes: (B, width) to (B, classes)."""

    def __init__(self, blocks: int, width: int, layers: int, *, classes: int = 4, gain: float = 1.0) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(RectifiedBlock(width, layers, gain) for _ in range(blocks)))
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.blocks(x))
        return logits


@torch.no_grad()
def closed_form(network: RectifiedNetwork, x: Tensor) -> dict[str, Tensor]:
    """Compute J_l^i = ‖F_l^(i-)‖² (∂f/∂x_l)ᵀ F_l^(i+) (F_l^(i+))ᵀ (∂f/∂x_l) by weight name; x: (width,)."""
    stream = [x]
    for block in network.blocks:
        stream.append(block(stream[-1]))
    later = network.head.weight.T
    terms = {"head.weight": stream[-1].square().sum() * torch.eye(len(network.head.weight)).to(x)}
    for index in reversed(range(len(network.blocks))):
        weights = [weight.detach() for weight in network.blocks[index].parameters()]
        before, masks = [stream[index]], []
        for weight in weights:
            h = weight @ before[-1]
            masks.append(torch.diag((h > 0).to(x)))
            before.append(torch.relu(h))
        after = masks[-1]
        for place in reversed(range(len(weights))):
            gram = later.T @ after @ after.T @ later
            terms[f"blocks.{index}.weights.{place}.weight"] = before[place].square().sum() * gram
            after = after @ weights[place]
            if place:
                after = after @ masks[place - 1]
        later = later + after.T @ later
    return terms


def _theorem_3(facts: tuple[_Terms, Estimate]) -> list[Claim]:
    """Check a small network's terms, and the slope of log trace against log L."""
    (same, left, asymmetry, eigenvalue), slope = facts
    quarters = "Halving η from {:g} quarters what the first-order formula leaves, to 10 %."
    symmetric = f"A step along one weight's gradient of each logit gives a symmetric J, to {_OF_A_STEP:g}."
    positive = f"It has no negative eigenvalue, to {_OF_A_STEP:g} of its largest."
    linear = "The trace of Σ J grows linearly with L: slope 1 of logarithms, to 0.25."
    tests = {
        **{quarters.format(rate): equals(left[rate] / left[half], 4, relative=0.1) for rate, half in pairwise(RATES)},
        symmetric: decided(asymmetry <= _OF_A_STEP, asymmetry=asymmetry),
        positive: decided(eigenvalue >= -_OF_A_STEP, smallest_relative_eigenvalue=eigenvalue),
        linear: lies_within(slope, 0.75, 1.25),
    }
    return [same.check(), *stated(tests)]


@artefact("fixup/theorem-3", basis="measurement", checks=_theorem_3)
def theorem_3(
    context: Context,
    *,
    width: Network[int],
    layers: Network[int],
    depths: Network[tuple[int, ...]],
    draws: Seeds[int],
    depth: Network[int],
) -> Evidence:
    with seeded(context.seed):
        terms = _by_formula(layers)
        trace = update_trace_table(convert(resnet_cifar(depth), "xavier"), torch.randn(1, 3, 8, 8), torch.tensor([3]))
        traces = pd.DataFrame(
            [(count, draw, _trace(count, width, layers)) for count in depths for draw in range(draws)],
            columns=["blocks", "draw", "value"],
        )
    logs = np.log(traces.pivot(index="blocks", columns="draw", values="value"))
    slope = over_draws(np.polyfit(np.log(depths), logs, 1)[0])
    scaled = ", ".join(f"{left / rate**2:.4g}" for rate, left in terms[1].items())
    published = {
        "Delta_f(x0)": f"remainder / η²: {scaled}",
        "consequence": f"slope of log trace against log L {slope.mean:.3f}",
    }
    return Evidence(
        measured=with_quantities(published, traces.assign(quantity="trace of Σ J over the branches")),
        facts=(terms, slope),
        setup={
            "formula": f"5 blocks of width 16, {layers} layers of linear → ReLU on each, float64, one example",
            "J by steps": f"of that network, η = {STEP:g}, one weight and one logit at a time",
            "traces": f"width {width}, {layers} layers, gain 0.1, L = {', '.join(map(str, depths))}, {draws} draws",
            "figure": f"ResNet-{depth} for CIFAR without normalization, Xavier, one random image of 8×8",
        },
        draw=lambda: TRACES(trace),
    )


def _by_formula(layers: int) -> _Terms:
    """Compare a small network's terms with the paper's formula and with real steps."""
    network = RectifiedNetwork(5, 16, layers, gain=0.5).double()
    x = torch.randn(1, 16, dtype=torch.float64)
    terms = {term.parameter: term.matrix for term in update_terms(network, x)}
    formula = closed_form(network, x[0])
    same_names = set(terms) == set(formula)
    worst = max(deviation(terms[name], term) for name, term in formula.items()) if same_names else 1.0
    measured = [_by_steps(network, x, name) for name in terms]
    eigenvalues = [torch.linalg.eigvalsh((term + term.T) / 2) for term in measured]
    return (
        Agreement("The terms are the paper's J_l^i", worst, ROUNDING),
        _remainders(network, x, torch.stack(list(terms.values())).sum(0)),
        max(float((term - term.T).abs().max() / term.abs().max()) for term in measured),
        min(float(values[0] / values[-1]) for values in eigenvalues),
    )


def _by_steps(network: RectifiedNetwork, x: Tensor, name: str) -> Tensor:
    """Measure J of one weight by columns: the logits' change over -η in a step along each logit's gradient."""
    logits = network(x)
    weight = network.get_parameter(name)
    columns = []
    for logit in logits[0]:
        (gradient,) = torch.autograd.grad(logit, weight, retain_graph=True)
        moved = torch.func.functional_call(network, {name: weight - STEP * gradient}, (x,))
        columns.append(((logits - moved)[0] / STEP).detach())
    return torch.stack(columns, 1)


def _trace(blocks: int, width: int, layers: int) -> float:
    network = RectifiedNetwork(blocks, width, layers, gain=0.1)
    terms = update_terms(network, torch.randn(1, width))
    return sum(float(term.matrix.trace()) for term in terms if term.parameter != "head.weight")


def _remainders(network: RectifiedNetwork, x: Tensor, whole: Tensor) -> dict[float, float]:
    """Return ‖f(θ - η ∂l/∂θ) - f(θ) + η Σ J ∂l/∂z‖ for every rate."""
    logits = network(x)
    loss = F.cross_entropy(logits, torch.tensor([2]))
    (by_logits,) = torch.autograd.grad(loss, logits, retain_graph=True)
    named = dict(network.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    remainders = {}
    for rate in RATES:
        moved = {name: parameter - rate * gradients[name] for name, parameter in named.items()}
        change = torch.func.functional_call(network, moved, (x,)) - logits
        remainders[rate] = float((change[0] + rate * whole @ by_logits[0]).norm().detach())
    return remainders


def _theorem_4(facts: tuple[pd.DataFrame, pd.DataFrame]) -> Tests:
    """Check the tables of `scalar_branch_table` and `update_slopes`."""
    table, slopes = facts
    names = {"equal": "all a_i = L^(-1/(2m-2))", "zero_last": "the same and a_m = 0", "ones": "all a_i = 1"}
    tests: dict[str, Test] = {}
    for option, rows in slopes.groupby("option", sort=False)["slope"]:
        expected = 0.0 if option == "ones" else -1.0
        claim = f"With {names[str(option)]} the slope of log|ΔF| against log L is {expected:g}, to 0.01 for every m."
        tests[claim] = equals(_farthest(rows, rows - expected), expected, absolute=0.01)
    condition = table["update"].abs() * table["blocks"] / table["learning_rate"]
    zero, equal = table["option"] == "zero_last", table["option"] == "equal"
    first_order = {"zero_last": ("η/L", condition[zero]), "equal": ("m·η/L", (condition / table["layers"])[equal])}
    for name, (law, ratio) in first_order.items():
        worst = _farthest(ratio, np.log(ratio.where(ratio > 0)).fillna(math.inf))
        tests[f"With {name} the step is {law}, to 2 % for every m and L."] = equals(worst, 1, relative=0.02)
    outputs = table["output"]
    start = "With the last scalar at 0 the branch starts at F = 0, and with all equal it does not."
    numbers = {"largest_with_zero": outputs[zero].abs().max(), "smallest_with_equal": outputs[equal].min()}
    return {**tests, start: decided((outputs[zero] == 0).all() and (outputs[equal] > 0).all(), **numbers)}


def _farthest(values: pd.Series, distances: pd.Series) -> float:
    """Return the value with the largest distance."""
    return float(values.iloc[int(distances.abs().argmax())])


@artefact("fixup/theorem-4", basis="formula", checks=_theorem_4)
def theorem_4(context: Context, *, blocks: Network[tuple[int, ...]], layers: Network[tuple[int, ...]]) -> Evidence:
    rate = 1e-3
    table = scalar_branch_table(blocks, layers=layers, learning_rate=rate)
    slopes = update_slopes(table)
    means = slopes.groupby("option", sort=False)["slope"].mean()
    published = {"condition": "slopes " + ", ".join(f"{option} {slope:.4f}" for option, slope in means.items())}
    steps = table[table["blocks"] == max(blocks)].assign(quantity="one step")
    counts = {"L": ", ".join(map(str, blocks)), "m": ", ".join(map(str, layers))}
    return Evidence(
        measured=with_quantities(published, slopes.assign(quantity="slope of log|ΔF|"), steps),
        facts=(table, slopes),
        setup={"x and ∂l/∂F": "1", "η": f"{rate:g}", **counts},
        draw=lambda: SCALAR_STEPS(table),
    )


TRACES = Plot(
    "lines",
    lambda traces: traces[(traces["place"] == "branch") & (traces["position"] > 0)],
    x="block",
    y="trace",
    by="position",
    summary="sum",
    log="y?",
    y_limits=(0, None),
    name="layer {}",
    title="Branches update in sync",
    y_label="trace of J: change of the logits per step",
)

_OPTIONS = {"equal": "all equal", "zero_last": "last is 0", "ones": "all 1"}


def _per_rate(table: pd.DataFrame) -> pd.DataFrame:
    name = table["option"].replace(_OPTIONS) + ", m = " + table["layers"].astype(str)
    sizes = {column: table[column].abs() / table["learning_rate"] for column in ("update", "predicted_update")}
    return table.assign(name=name, **sizes)


# A step of a scalar branch of m layers, exact and to first order; 1/L per branch is Θ(η) for L branches (theorem 4).
SCALAR_STEPS = Plot(
    "measured_on_predicted",
    _per_rate,
    x="blocks",
    measured="update",
    by="name",
    inks={
        f"{name}, m = {m}": series_ink(place) for place, name in enumerate(_OPTIONS.values()) for m in range(1, 10)
    },
    log="xy",
    title="One step of a scalar branch",
    x_label="number of branches L",
    y_label="|ΔF| / η",
)
