"""Fixup's three rules (section 3) and the block of figure 1, against their formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, sqrt

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless import residual_map
from normless.models import resnet, resnet_cifar
from normless.residual import ResidualMap
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, Network, Seeds
from normless_papers.claims import Claim, check, close
from normless_papers.claims.agreement import ROUNDING, Agreement, agreement, agreement_table, observed
from normless_papers.networks.reference_forward import disturbed, gradients, resnet_by_fixup
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.plots import AGREEMENT

# ResNet-110 has one multiplier per branch, and 4 biases per block, one after the stem and one before the classifier.
MULTIPLIERS, BIASES = 54, 4 * 54 + 2
# Measured, expected, tolerance.
Compared = tuple[Tensor, Tensor, float]
# Counts and sizes of a network that Fixup initialized, by name.
Numbers = Mapping[str, float]


def _checks(facts: tuple[Numbers, Numbers, Sequence[Agreement]]) -> list[Claim]:
    """Check the rules in ResNet-110 for CIFAR (m = 2) and ResNet-50 (m = 3), and all agreements."""
    basic, bottleneck, agreements = facts
    scalars = {name: basic[name] for name in ("multipliers", "biases")}
    gained = f"ResNet-110 gains {MULTIPLIERS} multipliers and {BIASES} biases, one number each."
    return [
        close("ResNet-110: inner weights are He's times 54^(-1/2).", basic["factor"], 54**-0.5, relative=1e-6),
        close("ResNet-50: inner weights are He's times 16^(-1/4).", bottleneck["factor"], 16**-0.25, relative=1e-6),
        *_standard(basic),
        *_standard(bottleneck),
        check(gained, scalars == {"multipliers": MULTIPLIERS, "biases": BIASES}, **scalars),
        *map(Agreement.check, agreements),
    ]


def _standard(rules: Numbers) -> list[Claim]:
    """Check the standard initialization, and that convolutions have no biases."""
    he = f"L = {rules['blocks']}: the standard initialization is He's, √(2/fan-out), within five standard errors."
    counts = {name: rules[name] for name in ("convolutions", "with_bias")}
    unbiased = rules["convolutions"] > 0 and rules["with_bias"] == 0
    return [
        close(he, rules["deviation"], rules["he"], absolute=rules["error"]),
        check(f"L = {rules['blocks']}: no convolution has its own bias.", unbiased, **counts),
    ]


@artefact("fixup/fixup", basis="formula", checks=_checks)
def fixup(context: Context, *, written_out: Network[int], images: Seeds[int], side: Data[int]) -> Evidence:
    with seeded(context.seed):
        basic, of_basic = _rules(resnet_cifar(110), side, images)
        bottleneck, of_bottleneck = _rules(resnet(50), 2 * side, 1)
        formula = _written_out(convert(resnet_cifar(written_out), "fixup"), torch.randn(images, 3, side, side))
    agreements = [*of_basic, *of_bottleneck, *formula]
    examples = f"m=2 {basic['factor']:.6g}, m=3 {bottleneck['factor']:.6g}"
    quantities = pd.DataFrame(
        [
            ("scale_of_inner_weights", examples, "54^(-1/2), 16^(-1/4)"),
            ("examples", examples, f"{54**-0.5:.6g}, {16**-0.25:.6g}"),
            ("multiplier_init", basic["multiplier"], 1),
            ("bias_init", basic["bias"], 0),
        ],
        columns=["quantity", "value", "theory"],
    )
    table = agreement_table(agreements)
    return Evidence(
        measured=pd.concat([quantities, table], ignore_index=True),
        facts=(basic, bottleneck, agreements),
        setup={
            "networks": "ResNet-110 for CIFAR (m = 2, L = 54) and ResNet-50 (m = 3, L = 16), converted by fixup",
            "written out": f"ResNet-{written_out}, {images} random images of {side}×{side}, float64",
        },
        draw=lambda: AGREEMENT(table),
    )


def _rules(original: nn.Module, side: int, images: int) -> tuple[Numbers, list[Agreement]]:
    before = residual_map(original)
    network = convert(original, "fixup").train()
    inputs = torch.randn(images, 3, side, side)
    inner = [path for block in before.blocks for path in block.branch[:-1]]
    scaled, standard = _weights(network, inner).double(), _weights(original, inner).double()
    factor = float(scaled.norm() / standard.norm())
    first = original.get_submodule(inner[0]).get_parameter("weight").detach()
    he = sqrt(2 / (first.shape[0] * first[0][0].numel()))
    multipliers, biases = _scalars(network, "multiplier"), _scalars(network, "input_bias", "output_bias")
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    same = {
        **_zeros(before, network, inputs),
        "inner weights are the standard ones times one factor": (scaled, factor * standard, 1e-5),
        "weights outside branches, except the classifier's, are not rescaled": _outside(before, original, network),
        "multipliers start at 1": (multipliers, torch.ones_like(multipliers), 0.0),
        "scalar biases start at 0": (biases, torch.zeros_like(biases), 0.0),
    }
    numbers = {
        "blocks": before.depth,
        "factor": factor,
        "deviation": float(first.std()),
        "he": he,
        "error": 5 * he / sqrt(2 * first.numel()),
        "multiplier": float(multipliers.mean()),
        "bias": float(biases.abs().max()),
        "multipliers": len(multipliers),
        "biases": len(biases),
        "convolutions": len(convolutions),
        "with_bias": sum(convolution.bias is not None for convolution in convolutions),
    }
    return numbers, [agreement(f"L = {before.depth}: {words}", *values) for words, values in same.items()]


def _scalars(network: nn.Module, *ends: str) -> Tensor:
    """Stack the scalar parameters whose names have these ends."""
    return torch.stack([scalar.detach() for name, scalar in network.named_parameters() if name.endswith(ends)])


def _weights(network: nn.Module, paths: Sequence[str]) -> Tensor:
    """Concatenate the flattened weights of some layers."""
    return torch.cat([network.get_submodule(path).get_parameter("weight").detach().flatten() for path in paths])


def _zeros(before: ResidualMap, network: nn.Module, inputs: Tensor) -> dict[str, Compared]:
    """Return what rule 1 sets to zero: last layers, classifier, branches and logits; and the resulting loss."""
    classifier = before.classifier or ""
    ends = [*(block.branch[-1] for block in before.blocks), classifier]
    bias = network.get_submodule(classifier).get_parameter("bias").detach()
    sums = [network.get_submodule(block.sum or "") for block in residual_map(network).blocks]
    calls, logits = observed(network, sums, inputs)
    zeros = {
        "the last layer of each branch and the classifier start at 0": torch.cat([_weights(network, ends), bias]),
        "all branches output 0": torch.cat([sides[1].flatten() for sides, _ in calls]),
        "all logits are 0": logits,
    }
    loss = F.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[1])
    uniform = torch.tensor(log(logits.shape[1]))
    return {words: (tensor, torch.zeros_like(tensor), 0.0) for words, tensor in zeros.items()} | {
        "the loss is the log of the number of classes": (loss, uniform, 1e-6)
    }


def _outside(before: ResidualMap, original: nn.Module, network: nn.Module) -> Compared:
    """Return the weights of the stem and the skip paths, which Fixup does not rescale."""
    layers = [*before.stem_layers, *(layer for block in before.blocks for layer in block.skip_layers)]
    paths = [layer.path for layer in layers if layer.kind == "weight"]
    return _weights(network, paths), _weights(original, paths), 0.0


def _written_out(network: nn.Module, images: Tensor) -> tuple[Agreement, ...]:
    """Compare logits and all gradients with the formula of figure 1's block, at perturbed parameters."""
    disturbed(network).eval()
    x = images.double()
    ours, formula = network(x), resnet_by_fixup(network, x)
    names = [name for name, _ in network.named_parameters()]
    by_autograd, by_formula = gradients(network, ours, names), gradients(network, formula, names)
    return (
        agreement("Logits are those of figure 1's blocks, at perturbed parameters", ours, formula, ROUNDING),
        agreement("So are the gradients of all parameters", by_autograd, by_formula, ROUNDING),
    )
