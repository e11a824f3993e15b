"""Kim et al., cases 1 to 4: γ_last accumulates on the stream, and downsampling blocks and the stem reset it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless.residual import ResidualMap
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, Network, NetworkName, Seeds
from normless_papers.claims import over_draws
from normless_papers.claims.agreement import observed
from normless_papers.gamma.analysed_networks import (
    analysis,
    beside_formula,
    gammas_of,
    largest_change,
    mean_ratio,
    over_drawn_networks,
    set_gammas,
    stream_of,
)
from normless_papers.networks.seeded_inputs import MeasuredBatch, noise_batch, training_batch

# γ_last of the first and the last block; it rises from block to block.
FIRST, LAST = 0.3, 2.0
SMALL, LARGE = 0.5, 3.0
# Factor on the input, which a reset should cancel.
INPUT_SCALE = 7.0
NEXT = "Var[x_{l+1}]"


@artefact(
    "gamma/equation-6",
    basis="measurement",
)
def full_accumulation(
    context: Context, *, model: NetworkName[str], features: Network[int], examples: Seeds[int], draws: Seeds[int]
) -> Evidence:
    batch = training_batch(context, f"gaussian(image_shape=({features},), train={examples})", examples)

    def measure(network: nn.Module, structure: ResidualMap) -> Sequence[pd.DataFrame]:
        last = gammas_of(network, structure, "last")
        step = (LAST - FIRST) / max(1, len(last) - 1)
        set_gammas(last, [FIRST + step * index for index in range(len(last))])
        rising = stream_of(network, structure, batch.inputs)
        _disturb_inside(network, structure)
        disturbed = stream_of(network, structure, batch.inputs)
        return rising, disturbed, _domination(network, batch, structure)

    table, disturbed, dominance = over_drawn_networks(context, model, batch, draws, measure)
    squares, skip = table["gamma_last"] ** 2, table["skip_variance"]
    starts = table.groupby("draw")["skip_variance"].transform("first")
    before = squares.groupby(table["draw"]).cumsum() - squares
    parts = [
        beside_formula("Var[f_l]", table, table["branch_variance"], squares, "gamma_last"),
        beside_formula(NEXT, table, table["stream_variance"], skip + squares, "gamma_last"),
        beside_formula("Var[x_l]", table, skip, starts + before, "gamma_last"),
        beside_formula(
            "dominance_condition", dominance, dominance["share"], dominance["expected_share"], "gamma_last"
        ),
    ]
    rows = pd.concat(parts, ignore_index=True)
    shares = dominance.groupby("gamma_last")["share"].agg(tuple)
    facts = {
        "branch": mean_ratio(rows, "Var[f_l]"),
        "stream": mean_ratio(rows, "Var[x_l]"),
        "change": largest_change(disturbed["branch_variance"], table["branch_variance"]),
        "largest_share_small": max(shares[SMALL]),
        "least_largest_share_large": min(shares[LARGE]),
    }
    rises = f"rising from {FIRST:g} in the first block to {LAST:g} in the last"
    return analysis(context, batch, rows, facts, table, network=model, gamma_last=rises)


@torch.no_grad()
def _disturb_inside(network: nn.Module, structure: ResidualMap) -> None:
    """Enlarge the weights before the last norm of every branch, and the γ within branches."""
    for block in structure.blocks:
        kinds = [layer.kind for layer in block.branch_layers]
        last_norm = len(kinds) - 1 - kinds[::-1].index("norm")
        for layer in block.branch_layers[:last_norm]:
            if layer.kind == "weight":
                network.get_parameter(f"{layer.path}.weight").mul_(10.0)
    for gamma in gammas_of(network, structure, "other"):
        gamma.mul_(3.0)


def _domination(network: nn.Module, batch: MeasuredBatch, structure: ResidualMap) -> pd.DataFrame:
    """Return the largest share of a branch in its sum, with every γ_last small and with every γ_last large."""
    last, rows = gammas_of(network, structure, "last"), []
    for value in (SMALL, LARGE):
        set_gammas(last, [value] * len(last))
        table = stream_of(network, structure, batch.inputs)
        share = table["branch_variance"] / table["skip_variance"]
        worst = int(share.to_numpy().argmax())
        expected = value**2 / (float(table["skip_variance"].iloc[0]) + worst * value**2)
        rows.append((table["name"].iloc[worst], value, float(share.iloc[worst]), expected))
    return pd.DataFrame(rows, columns=["name", "gamma_last", "share", "expected_share"])


# Factor on the input of a stage, by which what is left of it is measured.
ENLARGED = 2.0


@artefact(
    "gamma/equation-11",
    basis="measurement",
)
def half_accumulation(
    context: Context, *, model: NetworkName[str], side: Data[int], examples: Seeds[int], draws: Seeds[int]
) -> Evidence:
    """Measure equations 10 and 11 in networks whose blocks read what the blocks before them made.

    The mean that the text ignores is not 0 there.

    "Ignoring E[x_l]" (section 2, case 2) makes E[ReLU(x + f)²] = ½E[(x + f)²]. But x_l is itself the output of a
    ReLU. For f ~ N(0, γ²), independent of x, and the distribution function Φ and density φ of the standard normal,

        E[ReLU(x + f)²] = ½(E[x²] + γ²) + E[(x² + γ²)(Φ(x/γ) - ½) + xγφ(x/γ)],

    and the second term, odd in x, vanishes only for x that are symmetric about 0. For x ≥ 0 it is positive, up to
    ½E[x²] where x ≫ γ: such a stream passes the ReLU whole, and nothing of it is halved.
    """
    batch = noise_batch(context, side, examples)

    def measure(network: nn.Module, structure: ResidualMap) -> Sequence[pd.DataFrame]:
        return stream_of(network, structure, batch.inputs), _through_stages(network, structure, batch)

    stream, blocks = over_drawn_networks(context, model, batch, draws, measure)
    inside = stream[stream["equation"] == 11]
    parts = [
        beside_formula("Var[f_l]", inside, inside["branch_second_moment"], inside["gamma_last"] ** 2),
        beside_formula(NEXT, blocks, blocks["measured"], blocks["by_step"]),
        beside_formula("Var[x_l]", blocks, blocks["measured"], blocks["by_recursion"]),
        beside_formula(f"{NEXT} with the mean", blocks, blocks["measured"], blocks["with_mean"]),
    ]
    rows = pd.concat(parts, ignore_index=True)
    second = blocks[blocks["place"] == 2]
    facts = {
        "branch": largest_change(stream["branch_second_moment"], stream["gamma_last"] ** 2),
        "step": mean_ratio(rows, NEXT),
        "recursion": mean_ratio(rows, "Var[x_l]"),
        "left_after_two": over_draws(second.groupby("draw")["left"].mean()),
    }
    return analysis(context, batch, rows, facts, stream, network=model, enlarged=ENLARGED)


@torch.no_grad()
def _through_stages(network: nn.Module, structure: ResidualMap, batch: MeasuredBatch) -> pd.DataFrame:
    """Run the blocks with an identity skip path, stage by stage, on their own inputs and on enlarged ones.

    Columns: `name`, `place` in the stage from 1, the second moment `measured` after the block, that by equation 10
    from its input (`by_step`), by equation 11 from the start of the stage (`by_recursion`), and `with_mean` by the
    equation with the term that the text neglects; `left`, the share of what was added at the start of the stage.
    """
    calls, _ = observed(network, [network.get_submodule(block.module) for block in structure.blocks], batch.inputs)
    gammas = gammas_of(network, structure, "last")
    rows: list[dict[str, Any]] = []
    place = 0
    for block, gamma, ((x,), _) in zip(structure.blocks, gammas, calls, strict=True):
        if not block.identity_skip:
            place = 0
            continue
        place += 1
        if place == 1:
            larger, start = ENLARGED * x, _second_moment(x)
            recursion = start
        square = float(gamma.double().square().mean())
        module = network.get_submodule(block.module)
        after, larger = module(x), module(larger)
        recursion = (recursion + square) / 2
        rows.append(
            {
                "name": block.name,
                "place": place,
                "measured": _second_moment(after),
                "by_step": (_second_moment(x) + square) / 2,
                "by_recursion": recursion,
                "with_mean": _with_mean(x, gamma),
                "left": (_second_moment(larger) - _second_moment(after)) / ((ENLARGED**2 - 1) * start),
            }
        )
    return pd.DataFrame(rows)


def _second_moment(x: Tensor) -> float:
    return float(x.double().square().mean())


def _with_mean(x: Tensor, gamma: Tensor) -> float:
    """Return E[ReLU(x + f)²] for f ~ N(0, γ²) by channel, over the values of x."""
    deviation = gamma.detach().double().abs().view(1, -1, 1, 1).clamp_min(torch.finfo(torch.float64).tiny)
    x = x.double()
    score = x / deviation
    density = torch.exp(-(score**2) / 2) / math.sqrt(2 * math.pi)
    second = (x**2 + deviation**2) * torch.special.ndtr(score) + x * deviation * density
    return float(second.mean())


@artefact(
    "gamma/equation-15",
    basis="measurement",
)
def reset_of_original_networks(
    context: Context, *, model: NetworkName[str], side: Data[int], examples: Seeds[int], draws: Seeds[int]
) -> Evidence:
    batch = noise_batch(context, side, examples)
    stream, scaled = _by_input(context, model, batch, draws)
    resets, again = (table[table["equation"] == 15] for table in (stream, scaled))
    down, last, after = resets["gamma_down"] ** 2, resets["gamma_last"] ** 2, resets["stream_second_moment"]
    sides = [
        beside_formula("Var[g]", resets, resets["skip_second_moment"], down),
        beside_formula("Var[f]", resets, resets["branch_second_moment"], last),
    ]
    rows = pd.concat([*sides, beside_formula(NEXT, resets, after, (down + last) / 2)], ignore_index=True)
    facts = {
        "ratio": mean_ratio(rows, NEXT),
        "change": largest_change(again["stream_second_moment"], after),
        "sides": max(largest_change(side["ratio"]) for side in sides),
    }
    return analysis(context, batch, rows, facts, stream, network=model, input_scale=INPUT_SCALE)


@artefact("gamma/equation-17", basis="measurement")
def reset_of_pre_activation_networks(
    context: Context, *, model: NetworkName[str], side: Data[int], examples: Seeds[int], draws: Seeds[int]
) -> Evidence:
    batch = noise_batch(context, side, examples)
    stream, scaled = _by_input(context, model, batch, draws)
    # The first block's norm reads the small variance of the stem, for which ε matters.
    resets, again = (table[(table["equation"] == 17) & (table["block"] > 1)] for table in (stream, scaled))
    after = resets["stream_variance"]
    rows = beside_formula(NEXT, resets, after, resets["gamma_down"] ** 2 + resets["gamma_last"] ** 2)
    facts = {"ratio": mean_ratio(rows, NEXT), "change": largest_change(again["stream_variance"], after)}
    return analysis(context, batch, rows, facts, stream, network=model, input_scale=INPUT_SCALE)


def _by_input(context: Context, model: str, batch: MeasuredBatch, draws: int) -> list[pd.DataFrame]:
    """Measure the moments of the blocks of all draws, and those with a larger input."""

    def measure(network: nn.Module, structure: ResidualMap) -> Sequence[pd.DataFrame]:
        return [stream_of(network, structure, scale * batch.inputs) for scale in (1.0, INPUT_SCALE)]

    return over_drawn_networks(context, model, batch, draws, measure)


@artefact("gamma/equation-19", basis="measurement")
def stem(
    context: Context, *, model: NetworkName[str], side: Data[int], examples: Seeds[int], draws: Seeds[int]
) -> Evidence:
    batch = noise_batch(context, side, examples)

    def measure(network: nn.Module, structure: ResidualMap) -> Sequence[pd.DataFrame]:
        (gamma,) = gammas_of(network, structure, "stem")
        half = float(gamma.detach().double().square().mean()) / 2
        stream = stream_of(network, structure, batch.inputs)
        plain, scaled = (_after_stem(network, structure, scale * batch.inputs) for scale in (1.0, INPUT_SCALE))
        rows = [
            ("stem", 1.0, plain, half),
            ("stem", INPUT_SCALE, scaled, half),
            ("after the pooling", 1.0, float(stream["skip_second_moment"].iloc[0]), half),
        ]
        return stream, pd.DataFrame(rows, columns=["name", "scale", "after", "half"])

    stream, table = over_drawn_networks(context, model, batch, draws, measure)
    rows = beside_formula("Var[x_1]", table, table["after"], table["half"], "scale")
    at_stem = rows[rows["block"] == "stem"]
    by_scale = at_stem.pivot_table(index="draw", columns="scale", values="measured")
    facts = {"ratio": mean_ratio(at_stem, "Var[x_1]"), "change": largest_change(by_scale[INPUT_SCALE], by_scale[1.0])}
    return analysis(context, batch, rows, facts, stream, network=model, input_scale=INPUT_SCALE)


@torch.no_grad()
def _after_stem(network: nn.Module, structure: ResidualMap, inputs: Tensor) -> float:
    """Return the second moment after the stem's ReLU."""
    h = inputs
    for layer in structure.stem_layers:
        h = network.get_submodule(layer.path)(h)
        if layer.kind == "activation":
            break
    return float(h.double().square().mean())
