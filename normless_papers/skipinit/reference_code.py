"""SkipInit, appendix G: the reference code written out, against our ResNet-50-V2 with regularized SkipInit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless import residual_map
from normless.models import resnet_v2
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, Seeds
from normless_papers.claims import Claim, decided, stated
from normless_papers.claims.agreement import (
    ROUNDING,
    Agreement,
    agreement,
    agreement_table,
    observed,
    worst_agreement,
)
from normless_papers.evidence import with_quantities
from normless_papers.networks.reference_forward import Parts, blocks_at_start, disturbed, multipliers, scaled
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.plots import AGREEMENT

# (Output channels, bottleneck channels, stride) of every block of every group, as printed.
GROUPS = (
    ((256, 64, 1),) * 2 + ((256, 64, 2),),
    ((512, 128, 1),) * 3 + ((512, 128, 2),),
    ((1024, 256, 1),) * 5 + ((1024, 256, 2),),
    ((2048, 512, 1),) * 3,
)
BLOCKS = [block for group in GROUPS for block in group]
KEEP = 0.8


def _port_checks(facts: tuple[Mapping[str, Any], Sequence[Agreement]]) -> list[Claim]:
    """Check the structure of the network that was built, and its computations against the code's.

    Structure: `parameters`, their number; `multipliers`, the initial scalars; `groups`, the blocks of each; `sizes`,
    see `_map_sizes`; `dropouts`, all drop probabilities; `classes`, the number of logits.
    """
    built, agreements = facts
    groups, sizes, dropouts = (built[name] for name in ("groups", "sizes", "dropouts"))
    blocks, scalars, counted = sum(groups), torch.tensor(built["multipliers"]), expected_parameters()
    ends = [sizes[2 + sum(groups[: number + 1])] for number in range(3)]
    zero = agreement("Every scalar multiplier starts at 0", scalars, torch.zeros_like(scalars))
    shrunk = dict(zip(("stem", "pooled", "group_1", "group_2", "group_3"), (*sizes[1:3], *ends), strict=True))
    keep = 1 - (dropouts[0] if dropouts else float("nan"))
    tests = {
        "Each of 16 residual blocks has a scalar.": decided(
            len(scalars) == blocks == 16, scalars=len(scalars), blocks=blocks
        ),
        "The groups have 3, 4, 6 and 3 blocks.": decided(
            groups == (3, 4, 6, 3), **{f"group_{number}": count for number, count in enumerate(groups, 1)}
        ),
        "Maps of 224 pixels shrink to 112, 56, and 28, 14, 7 at the ends of groups 1 to 3.": decided(
            [*sizes[:3], *ends] == [224, 112, 56, 28, 14, 7], **shrunk
        ),
        "The number of parameters is that of the printed list of blocks.": decided(
            built["parameters"] == counted, parameters=built["parameters"], expected=counted
        ),
        "There are 1000 logits.": decided(built["classes"] == 1000, logits=built["classes"]),
        "One dropout before the classifier keeps 0.8 of the features.": decided(
            [round(drop, 9) for drop in dropouts] == [round(1 - KEEP, 9)], dropouts=len(dropouts), keep=keep
        ),
    }
    return [*stated(tests), *map(Agreement.check, (zero, *agreements))]


@artefact("skipinit/appendix-g-resnet50-v2", basis="formula", checks=_port_checks)
def reference_code(context: Context, *, side: Data[int], images: Seeds[int]) -> Evidence:
    with seeded(context.seed):
        network = convert(resnet_v2(50), f"zeroinit(dropout={1 - KEEP:g})")
        x = torch.randn(images, 3, side, side)
        sizes, scalars = _map_sizes(network), multipliers(network)
        agreements = [*blocks_at_start(network, x), _identities(network)]
        disturbed(network).eval()
        ours, code = network(x.double()), appendix_g(network, x.double())
        agreements.append(agreement("Logits are the code's, at perturbed parameters", ours, code, ROUNDING))
    groups = tuple(_blocks_per_group(residual_map(network).depth, sizes))
    dropouts = [module.p for module in network.modules() if isinstance(module, nn.Dropout)]
    built = {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "multipliers": scalars.tolist(),
        "groups": groups,
        "sizes": sizes,
        "dropouts": dropouts,
        "classes": int(network.get_submodule("classifier").out_features),  # type: ignore[arg-type]
    }
    values = {
        "keep_prob": 1 - dropouts[0] if dropouts else float("nan"),
        "res_multiplier_init": float(scalars.abs().max()),
        "blocks_per_group": ", ".join(map(str, groups)),
        "num_classes": built["classes"],
        "parameters": built["parameters"],
        "map sizes": ", ".join(map(str, sizes)),
    }
    table = agreement_table(agreements)
    return Evidence(
        measured=with_quantities(values, table),
        facts=(built, agreements),
        setup={
            "network": f"resnet_v2(50) by zeroinit(dropout={1 - KEEP:g})",
            "inputs": f"{images} random images of {side}×{side} pixels, map sizes at 224×224",
        },
        draw=lambda: AGREEMENT(table),
    )


def appendix_g(network: nn.Module, x: Tensor) -> Tensor:
    """Run the code's forward pass at test time on the weights of our network; images (B, 3, H, W) to logits."""

    def conv(path: str, h: Tensor, stride: int = 1) -> Tensor:
        parts = Parts(network, path)
        padded = _fixed_padding(h, parts.matrix.shape[-1])
        return scaled(F.conv2d(padded, parts.matrix, parts.bias, stride), parts.multiplier)

    x = F.max_pool2d(_fixed_padding(conv("stem", x, 2), 3), 3, stride=2)
    for index, (outputs, _, stride) in enumerate(BLOCKS):
        name = f"blocks.{index}"
        preact = F.relu(x)
        if outputs == x.shape[1]:
            shortcut = x if stride == 1 else F.max_pool2d(x, 1, stride=stride)
        else:
            shortcut = conv(f"{name}.shortcut", preact, stride)
        residual = F.relu(conv(f"{name}.conv1", preact))
        residual = F.relu(conv(f"{name}.conv2", residual, stride))
        x = shortcut + conv(f"{name}.conv3", residual)
    head = Parts(network, "classifier")
    return F.linear(F.relu(x).mean((2, 3)), head.matrix, head.bias)


def _fixed_padding(x: Tensor, size: int) -> Tensor:
    """Pad both spatial axes with size - 1 zeros in all, the smaller half in front."""
    before = (size - 1) // 2
    after = size - 1 - before
    return F.pad(x, (before, after, before, after))


def expected_parameters() -> int:
    """Count parameters from the printed blocks: weights, a bias for every output, a scalar for every block."""
    total, inputs = (7 * 7 * 3 + 1) * 64, 64
    for outputs, width, _ in BLOCKS:
        total += (inputs + 1) * width + (9 * width + 1) * width + (width + 1) * outputs + 1
        total += (inputs + 1) * outputs if inputs != outputs else 0
        inputs = outputs
    return total + (inputs + 1) * 1000


def _map_sizes(network: nn.Module) -> list[int]:
    """Return the sides of the feature maps of a 224-pixel image: input, stem, pooled, after every block."""
    layers = [network.get_submodule(name) for name in ("stem", "max_pool")]
    calls, _ = observed(network, [*layers, *network.get_submodule("blocks").children()], torch.randn(1, 3, 224, 224))
    return [224, *(int(output.shape[-1]) for _, output in calls)]


def _identities(network: nn.Module) -> Agreement:
    """Compare later blocks of each group with the identity, or with every second position, at initialization."""
    pairs = []
    network.eval()
    for index, (outputs, _, stride) in enumerate(BLOCKS):
        block = network.get_submodule(f"blocks.{index}")
        if isinstance(block.get_submodule("shortcut"), nn.Conv2d):
            continue
        x = torch.randn(1, outputs, 8, 8)
        with torch.no_grad():
            pairs.append((block(x), x[:, :, ::stride, ::stride]))
    return worst_agreement("Blocks after the first of their group are the identity or a subsampling", pairs)


def _blocks_per_group(blocks: int, sizes: list[int]) -> list[int]:
    """Count blocks by group; a group ends with the block that halves the resolution, the last group with the last."""
    after = sizes[2:]
    ends = [index for index in range(1, len(after)) if after[index] < after[index - 1]] + [blocks]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
