"""The reference code of appendix G written out line by line, against our ResNet-50-V2 with regularized SkipInit."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless import residual_map
from normless.models import resnet_v2
from normless.sweeps import convert
from normless_papers.agreement import ROUNDING, Agreement, agreement, agreement_table, observed, worst_agreement
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check
from normless_papers.multiplier_agreements import blocks_at_start
from normless_papers.plots import AGREEMENT
from normless_papers.reference_forward import Parts, disturbed, multipliers, scaled
from normless_papers.seeded_inputs import seeded

# (output channels, bottleneck channels, stride) of every block of every group, as printed.
GROUPS = (
    ((256, 64, 1),) * 2 + ((256, 64, 2),),
    ((512, 128, 1),) * 3 + ((512, 128, 2),),
    ((1024, 256, 1),) * 5 + ((1024, 256, 2),),
    ((2048, 512, 1),) * 3,
)
BLOCKS = [block for group in GROUPS for block in group]
KEEP = 0.8


@dataclass(frozen=True)
class Port:
    """Counts in the network that was built, and its computations compared with the code's.

    Attributes:
        parameters: how many numbers are trained.
        multipliers: the scalars' values at the start.
        groups: blocks in each group.
        sizes: sides of the maps of a 224-pixel image: input, stem, pooled, after every block.
        dropouts: the drop probability of every dropout layer.
        classes: logits.
        agreements: with the code written out.
    """

    parameters: int
    multipliers: tuple[float, ...]
    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    dropouts: tuple[float, ...]
    classes: int
    agreements: tuple[Agreement, ...]


def _port_checks(facts: Port) -> list[Check]:
    blocks, sizes, scalars = sum(facts.groups), facts.sizes, torch.tensor(facts.multipliers)
    stem, pooled = sizes[1:3]
    ends = [sizes[2 + sum(facts.groups[: number + 1])] for number in range(3)]
    drop = facts.dropouts[0] if facts.dropouts else float("nan")
    counted = expected_parameters()
    zero = agreement("Every scalar multiplier starts at 0", scalars, torch.zeros_like(scalars))
    return [
        check(
            "16 residual blocks have a scalar each.",
            len(scalars) == blocks == 16,
            scalars=len(scalars),
            blocks=blocks,
        ),
        check(
            "The groups have 3, 4, 6 and 3 blocks.",
            facts.groups == (3, 4, 6, 3),
            **{f"group_{number}": count for number, count in enumerate(facts.groups, 1)},
        ),
        check(
            "Maps of 224 pixels shrink to 112, 56, and 28, 14, 7 at the ends of groups 1 to 3.",
            [*sizes[:3], *ends] == [224, 112, 56, 28, 14, 7],
            stem=stem,
            pooled=pooled,
            group_1=ends[0],
            group_2=ends[1],
            group_3=ends[2],
        ),
        check(
            "The number of parameters is that of the printed list of blocks.",
            facts.parameters == counted,
            parameters=facts.parameters,
            expected=counted,
        ),
        check("There are 1000 logits.", facts.classes == 1000, logits=facts.classes),
        check(
            "One dropout before the classifier keeps 0.8 of the features.",
            [round(one, 9) for one in facts.dropouts] == [round(1 - KEEP, 9)],
            dropouts=len(facts.dropouts),
            keep=1 - drop,
        ),
        zero.check(),
        *(one.check() for one in facts.agreements),
    ]


@artefact("skipinit/appendix-g-resnet50-v2", basis="formula", checks=_port_checks)
def reference_code(context: Context, *, side: int, images: int) -> Evidence:
    """16 blocks and scalars; maps of 224, 112, 56, 28, 14 and 7 pixels; logits those of the code line by line."""
    with seeded(context.seed):
        network = convert(resnet_v2(50), f"zeroinit(dropout={1 - KEEP:g})")
        x = torch.randn(images, 3, side, side)
        sizes, scalars = _map_sizes(network), multipliers(network)
        agreements = [*blocks_at_start(network, x), _identities(network)]
        disturbed(network).eval()
        ours, code = network(x.double()), appendix_g(network, x.double())
        agreements.append(agreement("Logits are the code's, everything off its start", ours, code, ROUNDING))
    port = Port(
        parameters=sum(one.numel() for one in network.parameters()),
        multipliers=tuple(scalars.tolist()),
        groups=tuple(_blocks_per_group(residual_map(network).depth, sizes)),
        sizes=tuple(sizes),
        dropouts=tuple(module.p for module in network.modules() if isinstance(module, nn.Dropout)),
        classes=int(network.get_submodule("classifier").out_features),  # type: ignore[arg-type]
        agreements=tuple(agreements),
    )
    values = {
        "keep_prob": 1 - port.dropouts[0] if port.dropouts else float("nan"),
        "res_multiplier_init": max(map(abs, port.multipliers)),
        "blocks_per_group": ", ".join(map(str, port.groups)),
        "num_classes": port.classes,
        "parameters": port.parameters,
        "map sizes": ", ".join(map(str, port.sizes)),
    }
    table = agreement_table(agreements)
    quantities = pd.DataFrame({"quantity": list(values), "value": list(values.values())})
    return Evidence(
        measured=pd.concat([quantities, table], ignore_index=True),
        facts=port,
        setup={
            "network": f"resnet_v2(50) by zeroinit(dropout={1 - KEEP:g})",
            "inputs": f"{images} random images of {side}×{side} pixels, map sizes at 224×224",
        },
        on=("quantity",),
        draw=lambda: AGREEMENT(table),
    )


def appendix_g(network: nn.Module, x: Tensor) -> Tensor:
    """The code's forward pass at test time on the weights of our network; images (B, 3, H, W) to logits."""

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
    """Zeros around both spatial axes: size - 1 in all, the smaller half in front."""
    before = (size - 1) // 2
    after = size - 1 - before
    return F.pad(x, (before, after, before, after))


def expected_parameters() -> int:
    """Counted from the printed list of blocks: weights, a bias for every output and a scalar for every block."""
    total, inputs = (7 * 7 * 3 + 1) * 64, 64
    for outputs, width, _ in BLOCKS:
        total += (inputs + 1) * width + (9 * width + 1) * width + (width + 1) * outputs + 1
        total += (inputs + 1) * outputs if inputs != outputs else 0
        inputs = outputs
    return total + (inputs + 1) * 1000


def _map_sizes(network: nn.Module) -> list[int]:
    """The sides of the feature maps of a 224-pixel image: input, stem, pooled, after every block."""
    layers = [network.get_submodule(name) for name in ("stem", "max_pool")]
    calls, _ = observed(network, [*layers, *network.get_submodule("blocks").children()], torch.randn(1, 3, 224, 224))
    return [224, *(int(output.shape[-1]) for _, output in calls)]


def _identities(network: nn.Module) -> Agreement:
    """Blocks from the second of their group on are the identity, or every second position, at the start."""
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
    """A group ends with the block that halves the resolution, the last one with the last block."""
    after = sizes[2:]
    ends = [index for index in range(1, len(after)) if after[index] < after[index - 1]] + [blocks]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
