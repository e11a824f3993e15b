"""Fixup's three rules and the block of its figure 1, counted, measured and written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless import residual_map
from normless.models import resnet, resnet_cifar
from normless.residual import ResidualMap
from normless.sweeps import convert
from normless_papers.agreement import ROUNDING, Agreement, agreement, agreement_table, observed
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check, close
from normless_papers.plots import AGREEMENT
from normless_papers.reference_forward import disturbed, gradients, resnet_by_fixup
from normless_papers.seeded_inputs import seeded

# Of ResNet-110: one multiplier a branch, and 4 biases a block, one after the stem and one before the classifier.
MULTIPLIERS, BIASES = 54, 4 * 54 + 2


@dataclass(frozen=True)
class Rules:
    """What rules 1 to 3 made of one network.

    Attributes:
        blocks: L.
        factor: of inner weights, to what they were before.
        deviation: of the standard initialization of the first weight on a branch.
        he: √(2/fan-out) of that weight.
        error: five standard errors of that deviation.
        multiplier: mean over multipliers.
        bias: the largest absolute scalar bias.
        multipliers: how many there are.
        biases: how many scalar biases there are.
        convolutions: how many there are.
        with_bias: how many of them have a bias of their own.
        agreements: of what is the same number everywhere.
    """

    blocks: int
    factor: float
    deviation: float
    he: float
    error: float
    multiplier: float
    bias: float
    multipliers: int
    biases: int
    convolutions: int
    with_bias: int
    agreements: tuple[Agreement, ...]


@dataclass(frozen=True)
class Method:
    """The rules in ResNet-110 for CIFAR (m = 2) and ResNet-50 (m = 3), and figure 1's block by its formula."""

    basic: Rules
    bottleneck: Rules
    formula: tuple[Agreement, ...]


def _checks(found: Method) -> list[Check]:
    basic, bottleneck = found.basic, found.bottleneck
    return [
        close("ResNet-110: inner weights are He's times 54^(-1/2).", basic.factor, 54**-0.5, relative=1e-6),
        close("ResNet-50: inner weights are He's times 16^(-1/4).", bottleneck.factor, 16**-0.25, relative=1e-6),
        *(one for rules in (basic, bottleneck) for one in _checks_of(rules)),
        check(
            f"ResNet-110 gains {MULTIPLIERS} multipliers and {BIASES} biases, one number each.",
            (basic.multipliers, basic.biases) == (MULTIPLIERS, BIASES),
            multipliers=basic.multipliers,
            biases=basic.biases,
        ),
        *(one.check() for one in (*basic.agreements, *bottleneck.agreements, *found.formula)),
    ]


def _checks_of(rules: Rules) -> list[Check]:
    return [
        close(
            f"L = {rules.blocks}: the standard initialization is He's, √(2/fan-out), within five standard errors.",
            rules.deviation, rules.he, absolute=rules.error,
        ),
        check(
            f"L = {rules.blocks}: no convolution has a bias of its own.",
            rules.convolutions > 0 and rules.with_bias == 0,
            convolutions=rules.convolutions,
            with_bias=rules.with_bias,
        ),
    ]  # fmt: skip


@artefact("fixup/fixup", basis="formula", checks=_checks)
def fixup(context: Context, *, written_out: int, images: int, side: int) -> Evidence:
    """Zero branches and logits; inner weights He's times L^(-1/(2m-2)); scalar multipliers at 1 and biases at 0."""
    with seeded(context.seed):
        basic, bottleneck = _rules(resnet_cifar(110), side, images), _rules(resnet(50), 2 * side, 1)
        formula = _written_out(convert(resnet_cifar(written_out), "fixup"), torch.randn(images, 3, side, side))
    examples = f"m=2 {basic.factor:.6g}, m=3 {bottleneck.factor:.6g}"
    quantities = pd.DataFrame(
        [
            {"quantity": "scale_of_inner_weights", "value": examples, "theory": "54^(-1/2), 16^(-1/4)"},
            {"quantity": "examples", "value": examples, "theory": f"{54**-0.5:.6g}, {16**-0.25:.6g}"},
            {"quantity": "multiplier_init", "value": basic.multiplier, "theory": 1},
            {"quantity": "bias_init", "value": basic.bias, "theory": 0},
        ]
    )
    table = agreement_table([*basic.agreements, *bottleneck.agreements, *formula])
    return Evidence(
        measured=pd.concat([quantities, table], ignore_index=True),
        facts=Method(basic, bottleneck, formula),
        setup={
            "networks": "ResNet-110 for CIFAR (m = 2, L = 54) and ResNet-50 (m = 3, L = 16), converted by fixup",
            "written out": f"ResNet-{written_out}, {images} random images of {side}×{side}, float64",
        },
        on=("quantity",),
        draw=lambda: AGREEMENT(table),
        remarks=(
            "Convolutions have no bias of their own; the classifier keeps its own, a number per class, besides the "
            "scalar one before it. No bias stands before the very first convolution, whose input is data.",
        ),
    )


def _rules(original: nn.Module, side: int, images: int) -> Rules:
    found = residual_map(original)
    network = convert(original, "fixup").train()
    inputs = torch.randn(images, 3, side, side)
    branches, logits = _branches_and_logits(network, inputs)
    paths = [path for block in found.blocks for path in block.branch[:-1]]
    ends = [block.branch[-1] for block in found.blocks]
    scaled, plain = _weights(network, paths).double(), _weights(original, paths).double()
    factor = float(scaled.norm() / plain.norm())
    first = original.get_submodule(paths[0]).get_parameter("weight").detach()
    he = sqrt(2 / (first.shape[0] * first[0][0].numel()))
    named = dict(network.named_parameters())
    multipliers = torch.stack([one.detach() for path, one in named.items() if path.endswith("multiplier")])
    biases = torch.stack(
        [one.detach() for path, one in named.items() if path.endswith(("input_bias", "output_bias"))]
    )
    convolutions = [one for one in network.modules() if isinstance(one, nn.Conv2d)]
    return Rules(
        blocks=found.depth,
        factor=factor,
        deviation=float(first.std()),
        he=he,
        error=5 * he / sqrt(2 * first.numel()),
        multiplier=float(multipliers.mean()),
        bias=float(biases.abs().max()),
        multipliers=len(multipliers),
        biases=len(biases),
        convolutions=len(convolutions),
        with_bias=sum(one.bias is not None for one in convolutions),
        agreements=(
            *_zeros(f"L = {found.depth}", network, [*ends, found.classifier or ""], branches, logits),
            agreement(
                f"L = {found.depth}: inner weights are the standard ones times one factor",
                scaled,
                factor * plain,
                1e-5,
            ),
            _outside(found, original, network),
            agreement(f"L = {found.depth}: multipliers start at 1", multipliers, torch.ones_like(multipliers)),
            agreement(f"L = {found.depth}: scalar biases start at 0", biases, torch.zeros_like(biases)),
        ),
    )


def _weights(network: nn.Module, paths: Sequence[str]) -> Tensor:
    """Of some layers, flattened one after the other."""
    return torch.cat([network.get_submodule(path).get_parameter("weight").detach().flatten() for path in paths])


def _zeros(
    name: str, network: nn.Module, ends: Sequence[str], branches: Tensor, logits: Tensor
) -> tuple[Agreement, ...]:
    """What rule 1 makes zero: layers (the classifier is the last of them), branches and logits; and the loss."""
    bias = network.get_submodule(ends[-1]).get_parameter("bias").detach()
    zeros = torch.cat([_weights(network, ends), bias])
    targets = torch.arange(len(logits)) % logits.shape[1]
    distance = (F.cross_entropy(logits, targets) - log(logits.shape[1])).abs()
    return (
        agreement(
            f"{name}: the last layer of each branch and the classifier start at 0", zeros, torch.zeros_like(zeros)
        ),
        agreement(f"{name}: all branches put out 0", branches, torch.zeros_like(branches)),
        agreement(f"{name}: all logits are 0", logits, torch.zeros_like(logits)),
        Agreement(f"{name}: the loss is the log of the number of classes", float(distance), 1e-6),
    )


def _outside(found: ResidualMap, original: nn.Module, network: nn.Module) -> Agreement:
    """Weights of stem and skip paths, which only the standard method initializes."""
    layers = [*found.stem_layers, *(layer for block in found.blocks for layer in block.skip_layers)]
    paths = [layer.path for layer in layers if layer.kind == "weight"]
    return agreement(
        f"L = {found.depth}: weights outside branches, but the classifier's, are not rescaled",
        _weights(network, paths),
        _weights(original, paths),
    )


def _branches_and_logits(network: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What every branch adds, flattened one after the other, and the logits."""
    sums = [network.get_submodule(block.sum or "") for block in residual_map(network).blocks]
    calls, logits = observed(network, sums, inputs)
    return torch.cat([sides[1].flatten() for sides, _ in calls]), logits


def _written_out(network: nn.Module, images: Tensor) -> tuple[Agreement, ...]:
    """Figure 1's block by the formula, every parameter off its start; logits, and gradients of all parameters."""
    disturbed(network).eval()
    x = images.double()
    ours, formula = network(x), resnet_by_fixup(network, x)
    names = [name for name, _ in network.named_parameters()]
    return (
        agreement("Logits are those of figure 1's blocks, everything off its start", ours, formula, ROUNDING),
        agreement(
            "So are the gradients of all parameters",
            gradients(network, ours, names),
            gradients(network, formula, names),
            ROUNDING,
        ),
    )
