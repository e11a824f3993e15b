"""Bjorck et al., equations (1) and (2): batch norm with its separable parts, and the noise of minibatch steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.nn import PartialBatchNorm2d
from normless_lab.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, DataName, Network, Seeds
from normless_papers.claims import Tests, decided
from normless_papers.claims.agreement import ROUNDING, Agreement, agreement, agreement_table
from normless_papers.networks.seeded_inputs import seeded
from normless_papers.plots import AGREEMENT
from normless_papers.probes.sgd_noise import noise_table
from normless_papers.understanding_bn.initializations import Initializations
from normless_papers.understanding_bn.rate_search import SUBSETS, in_symbols


@artefact("understanding-bn/equation-1", basis="formula", checks=lambda facts: list(map(Agreement.check, facts)))
def separable_parts(context: Context, *, batch: int, channels: Network[int], side: Data[int]) -> Evidence:
    with seeded(context.seed):
        x = 2 * torch.randn(batch, channels, side, side, dtype=torch.float64) + torch.randn(channels, 1, 1).double()
        agreements = [agreement for parts in SUBSETS for agreement in _by_definition(x, parts)]
        agreements += _moments(x)
    table = agreement_table(agreements)
    return Evidence(
        table,
        facts=agreements,
        setup={
            "inputs": f"independent normal, float64, {batch}×{channels}×{side}×{side}, another mean for each channel",
            "layer": "PartialBatchNorm2d, γ and β drawn from the normal distribution",
            "seed": context.seed,
        },
        draw=lambda: AGREEMENT(table),
    )


def _layer(channels: int, parts: tuple[str, ...]) -> PartialBatchNorm2d:
    """Build the layer with these parts; its running averages are those of the last batch."""
    names = {"mean": "mu", "variance": "sigma2", "gamma": "gamma", "beta": "beta"}
    flags = {name: part in parts for name, part in names.items()}
    layer = PartialBatchNorm2d(channels, momentum=1.0, **flags).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def _by_definition(x: Tensor, parts: tuple[str, ...]) -> list[Agreement]:
    """Compare the layer with the formula without the missing parts, in training and then at test time."""
    layer, count = _layer(x.shape[1], parts), x.shape[0] * x.shape[2] * x.shape[3]
    mean = x.sum((0, 2, 3), keepdim=True) / count
    variance = (x - mean).square().sum((0, 2, 3), keepdim=True) / count
    unbiased = variance * count / (count - 1)
    outputs = []
    for spread in (variance, unbiased):
        y = x - mean if "mu" in parts else x
        y = y / (spread + layer.eps).sqrt() if "sigma2" in parts else y
        for name, parameter in layer.named_parameters():
            shaped = parameter.detach().reshape(1, -1, 1, 1)
            y = y * shaped if name == "weight" else y + shaped
        outputs.append(y)
    name = in_symbols(", ".join(parts))
    trained = layer(x)
    return [
        agreement(f"{name}: in training the output is the formula's", trained, outputs[0], ROUNDING),
        agreement(
            f"{name}: at test time it uses the running averages, and that of the variance is unbiased",
            layer.eval()(x),
            outputs[1],
            ROUNDING,
        ),
    ]


def _moments(x: Tensor) -> list[Agreement]:
    """Compare the moments after a layer with μ only, and after one with σ² only."""
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    centred, scaled = (_layer(x.shape[1], (part,))(x) for part in ("mu", "sigma2"))
    epsilon = _layer(x.shape[1], ()).eps
    axes = (0, 2, 3)
    return [
        agreement("{μ}: every channel has mean 0", centred.mean(axes), torch.zeros_like(mean), ROUNDING),
        agreement("{μ}: variances are unchanged", centred.var(axes, correction=0), variance, ROUNDING),
        agreement(
            "{σ²}: every channel has variance σ²/(σ² + ε)",
            scaled.var(axes, correction=0),
            variance / (variance + epsilon),
            ROUNDING,
        ),
        agreement(
            "{σ²}: means are not 0 but μ/√(σ² + ε)", scaled.mean(axes), mean / (variance + epsilon).sqrt(), ROUNDING
        ),
    ]


_SQUARE, _BIAS = "E[||alpha grad f - alpha grad_SGD||^2]", "E[error term]"
_EXAMPLES = 5
_EXACT = 1e-9


def _equation_2(facts: tuple[pd.DataFrame, pd.DataFrame, int, int]) -> Tests:
    """Check exactly over every minibatch of a tiny network, and within errors over random ones of a ResNet.

    Both tables have `batch_size`, `learning_rate`, `noise`, `predicted_noise` and `bias`, the length of the mean
    error; the second is that of random minibatches. Depth and number of draws are those of the ResNet.
    """
    exact, drawn, depth, draws = facts
    noise = exact.set_index(["batch_size", "learning_rate"])["noise"]
    off = (exact["noise"] / exact["predicted_noise"] - 1).abs().max()
    scaled = exact["bias"] / np.sqrt(exact["predicted_noise"])
    errors = (drawn["noise"] - drawn["predicted_noise"]).abs() / drawn["standard_error"]
    return {
        "Over all possible minibatches the squared error is exactly α²M/|B|, to 1e-9.": decided(
            off <= _EXACT, deviation=off
        ),
        "The step is unbiased: the mean error is 0, to 1e-9 of its root mean square.": decided(
            scaled.max() <= _EXACT, deviation=scaled.max()
        ),
        "Doubling the batch halves the noise, to 1e-9.": decided(
            abs(noise[1, 0.1] / noise[2, 0.1] - 2) <= _EXACT, ratio=noise[1, 0.1] / noise[2, 0.1]
        ),
        "Doubling the learning rate quadruples it, to 1e-9.": decided(
            abs(noise[2, 0.2] / noise[2, 0.1] - 4) <= _EXACT, ratio=noise[2, 0.2] / noise[2, 0.1]
        ),
        f"In a ResNet-{depth} the mean over {draws} minibatches is α²M/|B| within four standard errors.": decided(
            (errors <= 4).all(), largest_in_standard_errors=errors.max()
        ),
        "There the mean error is at most three times that expected from as many unbiased draws.": decided(
            (drawn["bias"] <= 3 * drawn["predicted_bias"]).all(),
            largest_ratio=(drawn["bias"] / drawn["predicted_bias"]).max(),
        ),
    }


@artefact("understanding-bn/equation-2", basis="formula", checks=_equation_2)
def step_noise(
    context: Context,
    *,
    data: DataName[str],
    depth: Network[int],
    examples: Seeds[int],
    batch_sizes: Sequence[int],
    draws: Seeds[int],
) -> Evidence:
    exact = _every_minibatch(context.seed)
    setting = Initializations(context, data, examples, draws=1, depth=depth)
    (draw,) = setting.each(batch_norm=(False,))
    generator = torch.Generator().manual_seed(context.seed)
    minibatches = [(0.1, torch.randint(examples, (draws, size), generator=generator)) for size in batch_sizes]
    drawn = noise_table(draw.model, draw.inputs, draw.targets, F.cross_entropy, minibatches)
    both = pd.concat(
        [exact.assign(network="two layers, every minibatch"), drawn.assign(network=f"ResNet-{depth}, {draws} draws")]
    )
    evidence = setting.evidence_of(
        _quantities(both),
        (exact, drawn, depth, draws),
        draw=lambda: NOISE(drawn),
        learning_rates="0.1 and 0.2",
        exact=f"a tanh network of two layers in float64, {_EXAMPLES} examples, every minibatch with replacement",
        examples=examples,
        draws=draws,
    )
    # The equation holds for any network and data.
    return replace(evidence, reduction="")


def _every_minibatch(seed: int) -> pd.DataFrame:
    """Measure noise and bias over all minibatches of a tiny network, in float64."""
    with seeded(seed):
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        inputs, targets = torch.randn(_EXAMPLES, 3, dtype=torch.float64), torch.randint(3, (_EXAMPLES,))
    every = [
        (rate, torch.tensor(list(product(range(_EXAMPLES), repeat=size))))
        for size, rate in ((1, 0.1), (2, 0.1), (3, 0.1), (2, 0.2))
    ]
    return noise_table(network, inputs, targets, F.cross_entropy, every).assign(predicted_bias=0.0)


def _quantities(both: pd.DataFrame) -> pd.DataFrame:
    """Tabulate by network, batch size, rate and published quantity."""
    tables = []
    for quantity, measured, predicted in ((_SQUARE, "noise", "predicted_noise"), (_BIAS, "bias", "predicted_bias")):
        columns = ["network", "batch_size", "learning_rate", measured, predicted]
        table = both[columns].rename(columns={measured: "value", predicted: "predicted"})
        table.insert(0, "quantity", quantity)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


NOISE = Plot(
    "measured_on_predicted",
    x="batch_size",
    measured="noise",
    by="learning_rate",
    name="α = {:g}",
    log="xy",
    title="Noise of a minibatch step",
    x_label="minibatch size |B|",
    y_label="mean ‖step - α∇f‖²; line: α²M/|B|",
)
