"""Batch norm and its separable parts (equation 1), and the mask over classes at the top layer (appendix L)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from normless.nn import PartialBatchNorm2d
from normless_papers.agreement import ROUNDING, Agreement, agreement, agreement_table
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check
from normless_papers.plots import AGREEMENT, GRADIENT_BY_CLASS
from normless_papers.probes.classwise import Gradients, for_each_class
from normless_papers.seeded_inputs import seeded
from normless_papers.understanding_bn.networks import Draw, Initializations
from normless_papers.understanding_bn.parts import in_symbols
from normless_papers.understanding_bn.protocol import SUBSETS, parts_text

# Sums of ten gradients in float64, each relative to the largest element of the parameter's.
_SUM_ROUNDING = 1e-9


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
    """The layer with these parts; its running averages take the last batch whole."""
    kept = {"mean": "mu", "variance": "sigma2", "gamma": "gamma", "beta": "beta"}
    layer = PartialBatchNorm2d(
        channels, momentum=1.0, **{name: part in parts for name, part in kept.items()}
    ).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def _by_definition(x: Tensor, parts: tuple[str, ...]) -> list[Agreement]:
    """The layer against the formula with what is not among the parts left out, in training and then at test time."""
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
    """What a layer with μ only, and one with σ² only, leave of the moments."""
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


def _class_wise_mask(sums: pd.DataFrame) -> list[Check]:
    kinds = sums["batch_norm"].astype(bool)
    return [
        check(
            f"The gradients of all classes sum to autograd's, {name} batch norm, for every parameter and draw, to "
            f"{_SUM_ROUNDING:g} of its largest element.",
            bool((rows["deviation"] <= _SUM_ROUNDING).all()) if len(rows) else None,
            largest_deviation=rows["deviation"].max(),
            parameters=rows["parameters"].max(),
        )
        for name, rows in (("without", sums[~kinds]), ("with", sums[kinds]))
    ]


@artefact("understanding-bn/class-wise-mask", basis="formula", checks=_class_wise_mask)
def masked_gradients(context: Context, *, data: str, batch_size: int, draws: int) -> Evidence:
    """Appendix L: gradients sent back from one class's logit at a time add up to the whole gradient."""
    setting = Initializations(context, data, batch_size, draws)
    measured = setting.measured(_sums)
    shown = measured[(measured["draw"] == 0) & ~measured["batch_norm"].astype(bool)]
    return Evidence(
        measured,
        facts=measured,
        setup=setting.setup(precision="float64"),
        draw=lambda: GRADIENT_BY_CLASS(shown),
        remarks=(
            "`deviation` is the largest over parameters of max|Σ over classes - whole| / max|whole|; `alone` is the "
            "same for one class in place of the sum, at its largest. `mean_abs` is of all parameters together.",
            "The figure shows the first draw without batch norm.",
        ),
    )


def _sums(draw: Draw) -> pd.DataFrame:
    """A row per class: the size of its gradients; how far their sum is from the whole, and the class alone."""
    model, inputs = draw.model.double().train(), draw.inputs.double()
    names, weights = zip(*model.named_parameters(), strict=True)
    whole = dict(zip(names, torch.autograd.grad(_loss(model, inputs, draw.targets), weights), strict=True))
    total = {name: torch.zeros_like(gradient) for name, gradient in whole.items()}
    rows = []

    def visit(index: int, predicted: float, gradients: Gradients) -> None:
        for name, gradient in gradients.items():
            total[name] += gradient
        sizes = torch.cat([gradient.flatten() for gradient in gradients.values()])
        rows.append({"class": index, "mean_abs": float(sizes.abs().mean()), "alone": _apart(gradients, whole)})

    for_each_class(model, inputs, draw.targets, visit)
    return pd.DataFrame(rows).assign(deviation=_apart(total, whole), parameters=len(whole))


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), targets)


def _apart(first: Gradients, whole: Gradients) -> float:
    """The largest over parameters of max|difference| / max|whole|; a parameter without gradient counts nothing."""
    ratios = [
        float((first[name] - gradient).abs().max() / gradient.abs().max())
        for name, gradient in whole.items()
        if gradient.abs().max() > 0
    ]
    return max(ratios)
