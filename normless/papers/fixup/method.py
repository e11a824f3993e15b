"""Fixup's three rules and the block of its figure 1, counted, measured and written out."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless import convert, residual_map
from normless.models import resnet, resnet_cifar
from normless.papers.agreement import ROUNDING, Agreement, agreement, agreement_table
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.verdict import Check, check, close
from normless.papers.written_out import disturbed, gradients, resnet_by_fixup
from normless.report.agreement import agreement_of_quantities

# Of ResNet-110: one multiplier a branch, and 4 biases a block, one behind the stem and one before the classifier.
MULTIPLIERS, BIASES = 54, 4 * 54 + 2


@artefact("fixup/fixup", basis="formula")
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
        checks=(
            close("ResNet-110: inner weights are He's times 54^(-1/2).", basic.factor, 54**-0.5, relative=1e-6),
            close("ResNet-50: inner weights are He's times 16^(-1/4).", bottleneck.factor, 16**-0.25, relative=1e-6),
            *basic.checks,
            *bottleneck.checks,
            _counts(basic),
            *(one.check() for one in (*basic.agreements, *bottleneck.agreements, *formula)),
        ),
        setup={
            "networks": "ResNet-110 for CIFAR (m = 2, L = 54) and ResNet-50 (m = 3, L = 16), converted by fixup",
            "written out": f"ResNet-{written_out}, {images} random images of {side}×{side}, float64",
            "seed": context.seed,
        },
        on=("quantity",),
        draw=lambda: agreement_of_quantities(table),
        remarks=(
            "Convolutions have no bias of their own; the classifier keeps its own, a number per class, beside the "
            "scalar one before it. No bias stands before the very first convolution, whose input is data.",
        ),
    )


@dataclass(frozen=True)
class _Rules:
    """What rules 1 to 3 made of one network."""

    factor: float
    multiplier: float
    bias: float
    multipliers: int
    biases: int
    agreements: tuple[Agreement, ...]
    checks: tuple[Check, ...]


def _rules(original: nn.Module, side: int, images: int) -> _Rules:
    found = residual_map(original)
    name, network = f"L = {found.depth}", convert(original, "fixup").train()
    inputs = torch.randn(images, 3, side, side)
    branches, logits = _branches_and_logits(network, inputs)
    inner, before, ends = [], [], []
    for block in found.blocks:
        *first, last = block.branch
        ends.append(network.get_submodule(last).get_parameter("weight").detach().flatten())
        for path in first:
            inner.append(network.get_submodule(path).get_parameter("weight").detach().flatten())
            before.append(original.get_submodule(path).get_parameter("weight").detach().flatten())
    scaled, plain = torch.cat(inner).double(), torch.cat(before).double()
    factor = float(scaled.norm() / plain.norm())
    classifier = network.get_submodule(found.classifier or "")
    zeros = torch.cat([*ends, *(one.detach().flatten() for one in classifier.parameters())])
    held = dict(network.named_parameters())
    multipliers = torch.stack([one.detach() for path, one in held.items() if path.endswith("multiplier")])
    biases = torch.stack([one.detach() for path, one in held.items() if path.endswith(("input_bias", "output_bias"))])
    targets = torch.arange(images) % logits.shape[1]
    deviation = (F.cross_entropy(logits, targets) - log(logits.shape[1])).abs()
    agreements = (
        agreement(
            f"{name}: the last layer of each branch and the classifier start at 0", zeros, torch.zeros_like(zeros)
        ),
        agreement(f"{name}: all branches put out 0", branches, torch.zeros_like(branches)),
        agreement(f"{name}: all logits are 0", logits, torch.zeros_like(logits)),
        Agreement(f"{name}: the loss is the log of the number of classes", float(deviation), 1e-6),
        agreement(f"{name}: inner weights are the standard ones times one factor", scaled, factor * plain, 1e-5),
        agreement(f"{name}: multipliers start at 1", multipliers, torch.ones_like(multipliers)),
        agreement(f"{name}: scalar biases start at 0", biases, torch.zeros_like(biases)),
    )
    return _Rules(
        factor=factor,
        multiplier=float(multipliers.mean()),
        bias=float(biases.abs().max()),
        multipliers=len(multipliers),
        biases=len(biases),
        agreements=agreements,
        checks=(_he(name, original, found.blocks[0].branch[0]), _no_layer_biases(name, network)),
    )


def _branches_and_logits(network: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What every branch adds, flattened one after the other, and the logits."""
    branches: list[Tensor] = []
    handles = [
        network.get_submodule(block.sum or "").register_forward_hook(
            lambda _, sides, __: branches.append(sides[1].flatten())
        )
        for block in residual_map(network).blocks
    ]
    with torch.no_grad():
        logits = network(inputs)
    for handle in handles:
        handle.remove()
    return torch.cat(branches), logits


def _he(name: str, original: nn.Module, path: str) -> Check:
    """That the standard method is He's, fan-out, by the first weight on a branch."""
    weight = original.get_submodule(path).get_parameter("weight").detach()
    expected = sqrt(2 / (weight.shape[0] * weight[0][0].numel()))
    error = 5 * expected / sqrt(2 * weight.numel())
    return close(
        f"{name}: the standard initialization is He's, √(2/fan-out), within five standard errors.",
        float(weight.std()), expected, absolute=error,
    )  # fmt: skip


def _no_layer_biases(name: str, network: nn.Module) -> Check:
    kept = [one for one in network.modules() if isinstance(one, nn.Conv2d) and one.bias is not None]
    count = sum(isinstance(one, nn.Conv2d) for one in network.modules())
    return check(f"{name}: no convolution has a bias of its own.", not kept, convolutions=count, with_bias=len(kept))


def _counts(basic: _Rules) -> Check:
    return check(
        f"ResNet-110 gains {MULTIPLIERS} multipliers and {BIASES} biases, one number each.",
        (basic.multipliers, basic.biases) == (MULTIPLIERS, BIASES),
        multipliers=basic.multipliers,
        biases=basic.biases,
    )


def _written_out(network: nn.Module, images: Tensor) -> list[Agreement]:
    """Figure 1's block by the formula, every parameter off its start; logits, and gradients of all parameters."""
    disturbed(network).eval()
    x = images.double()
    ours, formula = network(x), resnet_by_fixup(network, x)
    names = [name for name, _ in network.named_parameters()]
    return [
        agreement("Logits are those of figure 1's blocks, everything off its start", ours, formula, ROUNDING),
        agreement(
            "So are the gradients of all parameters",
            gradients(network, ours, names),
            gradients(network, formula, names),
            ROUNDING,
        ),
    ]
