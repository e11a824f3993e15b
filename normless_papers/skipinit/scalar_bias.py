"""The scalar bias that regularized SkipInit needs on ResNet-V1, after the sum and before the ReLU; table 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from normless import residual_map
from normless.models import build_model
from normless.sweeps import convert
from normless_papers.agreement import ROUNDING, Agreement, agreement, agreement_table, observed, worst_agreement
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, larger
from normless_papers.de_smith import RESNET_V1
from normless_papers.effort import Effort
from normless_papers.imagenet_comparison import ImageNetComparison, imagenet_table, on_imagenet
from normless_papers.plots import AGREEMENT
from normless_papers.reference_forward import disturbed
from normless_papers.seeded_inputs import seeded

# The methods of table 7: ZeroInit's by other names.
METHODS = {
    "batch_norm": "batch_norm",
    "fixup": "fixup",
    "regularized_skipinit": "zeroinit(dropout=0.2)",
    "regularized_skipinit_scalar_bias": "zeroinit_v1(dropout=0.2)",
}
BIASED, PLAIN = "regularized_skipinit_scalar_bias", "regularized_skipinit"


def _table_7(facts: ImageNetComparison) -> list[Check]:
    return facts.without_identity(PLAIN, BIASED)


# The runs of zeroinit/table-5 by other names, its numbers rounded.
imagenet_table("skipinit/table-7", _table_7, METHODS, RESNET_V1, "ResNet-50-V1")


@dataclass(frozen=True)
class ScalarBiasFacts:
    """The algorithm compared with its formula, and accuracies with and without the bias.

    Attributes:
        blocks: of the network.
        biases: the number of elements of every bias that follows a sum.
        agreements: with the formula.
        size: the smallest batch size that was trained at.
        top1: optimal accuracies there in percent, by method.
    """

    blocks: int
    biases: tuple[int, ...]
    agreements: tuple[Agreement, ...]
    size: int
    top1: Mapping[str, Estimate]


def _scalar_bias_checks(facts: ScalarBiasFacts) -> list[Check]:
    biased, plain, fixup = (facts.top1[method] for method in (BIASED, PLAIN, "fixup"))
    single = facts.biases == (1,) * facts.blocks
    claim = f"With it there is no gap to Fixup at batch size {facts.size}: it is less than half a point below."
    return [
        check("Each block has one scalar bias.", single, blocks=facts.blocks, scalars=len(facts.biases)),
        *(one.check() for one in facts.agreements),
        larger(f"At batch size {facts.size} the bias raises the accuracy.", biased, plain),
        larger(claim, biased, fixup, by=-0.5),
    ]


@artefact("skipinit/scalar-bias-v1", basis="training", checks=_scalar_bias_checks)
def scalar_bias(context: Context, *, side: int, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """relu(skip + α branch + b), one scalar b per block, zero at the start; on ResNet-50-V1 it closes the gap."""
    with seeded(context.seed):
        blocks, biases, agreements = _algorithm(side)
    size = batch_sizes[0]
    runs = on_imagenet(context, METHODS, [size], model=RESNET_V1, effort=effort)
    top1 = {method: runs.reached(method, size) for method in METHODS}
    table = agreement_table(agreements)
    trained = pd.DataFrame(
        {"quantity": f"top-1 of {method}", "value": one.mean, "deviation_of_runs": one.deviation, "n": one.n}
        for method, one in top1.items()
    )
    return Evidence(
        measured=pd.concat([table, trained], ignore_index=True),
        facts=ScalarBiasFacts(blocks, biases, agreements, size, top1),
        setup={
            "network": f"ResNet-50-V1, random images of {side}×{side} pixels",
            "trained": f"{context.data_or(effort.data)}, {effort.epochs} epochs, batch size {size}, "
            f"{effort.replicates} run(s) at each rate; the runs of skipinit/table-7",
        },
        draw=lambda: AGREEMENT(table),
        remarks=("Published at batch size 256: Fixup 74.4, without the bias 70.0, with it 75.2.",),
        reduction=runs.runs.reduction,
    )


def _algorithm(side: int) -> tuple[int, tuple[int, ...], tuple[Agreement, ...]]:
    """One scalar bias for every block, zero at the start, and where it is added."""
    original = build_model(RESNET_V1)
    network, without = (convert(original, f"{name}(dropout=0)") for name in ("zeroinit_v1", "zeroinit"))
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        logits, plain = network.eval()(images), without.eval()(images)
    biases = [one for name, one in network.named_parameters() if name.endswith("output_bias")]
    values = torch.cat([torch.zeros(1), *biases])
    agreements = (
        agreement("The scalar biases start at 0", values, torch.zeros_like(values)),
        agreement("At the start the logits are those without it", logits, plain),
        _every_block(network, images),
    )
    return len(residual_map(network).blocks), tuple(one.numel() for one in biases), agreements


def _every_block(network: nn.Module, images: Tensor) -> Agreement:
    """Each block's output against relu(skip + branch + b), branch and skip path taken before the sum."""
    disturbed(network).eval()
    blocks = residual_map(network).blocks
    names = [name for block in blocks for name in (block.sum or "", block.name)]
    calls, _ = observed(network, [network.get_submodule(name) for name in names], images.double())
    pairs = []
    for block, ((skip, branch), _), (_, output) in zip(blocks, calls[::2], calls[1::2], strict=True):
        bias = float(network.get_submodule(block.branch[-1]).get_parameter("output_bias").detach())
        # The bias is added at the branch's end, so that it is taken off before the sum.
        pairs.append((output, torch.relu(skip + (branch - bias) + bias)))
    quantity = "Each block's output is relu(skip + α branch + b), everything off its start"
    return worst_agreement(quantity, pairs, ROUNDING)
