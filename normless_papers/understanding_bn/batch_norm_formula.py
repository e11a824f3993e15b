"""Batch norm and its separable parts (equation 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normless.nn import PartialBatchNorm2d
from normless_papers.agreement import ROUNDING, Agreement, agreement, agreement_table
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check
from normless_papers.plots import AGREEMENT
from normless_papers.seeded_inputs import seeded
from normless_papers.understanding_bn.protocol import SUBSETS, parts_text
from normless_papers.understanding_bn.rate_search import in_symbols


def _equation_1(agreements: Sequence[Agreement]) -> list[Check]:
    return [one.check() for one in agreements]


@artefact("understanding-bn/equation-1", basis="formula", checks=_equation_1)
def separable_parts(context: Context, *, batch: int, channels: int, side: int) -> Evidence:
    """Equation 1 with each of the seven subsets of γ, β, μ and σ² that table 2 uses, in training and at test time."""
    with seeded(context.seed):
        x = 2 * torch.randn(batch, channels, side, side, dtype=torch.float64) + torch.randn(channels, 1, 1).double()
        agreements = [one for parts in SUBSETS for one in _by_definition(x, parts)]
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
        remarks=("Without μ the variance is still that about the mean; the paper does not say.",),
    )


def _layer(channels: int, parts: tuple[str, ...]) -> PartialBatchNorm2d:
    """The layer with these parts; its running averages are those of the last batch."""
    names = {"mean": "mu", "variance": "sigma2", "gamma": "gamma", "beta": "beta"}
    flags = {name: part in parts for name, part in names.items()}
    layer = PartialBatchNorm2d(channels, momentum=1.0, **flags).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def _by_definition(x: Tensor, parts: tuple[str, ...]) -> list[Agreement]:
    """The layer against the formula without the missing parts, in training and then at test time."""
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
    name = in_symbols(parts_text(parts))
    trained = layer(x)
    return [
        agreement(f"{name}: in training the output is the formula's", trained, outputs[0], ROUNDING),
        agreement(
            f"{name}: at test time it is that with the running averages, one of which is the unbiased variance",
            layer.eval()(x),
            outputs[1],
            ROUNDING,
        ),
    ]


def _moments(x: Tensor) -> list[Agreement]:
    """The moments after a layer with μ only, and after one with σ² only."""
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
