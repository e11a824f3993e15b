"""The scalar bias that regularized SkipInit needs on ResNet-V1, behind the sum and in front of the ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from normless import residual_map
from normless.models.spec import build_model
from normless.papers.agreement import ROUNDING, Agreement, agreement, agreement_table
from normless.papers.artefact import Context, artefact
from normless.papers.as_printed import convert
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.imagenet import Comparison, compared
from normless.papers.networks import RESNET_V1
from normless.papers.protocol import Effort
from normless.papers.verdict import Check, check, larger
from normless.papers.written_out import disturbed
from normless.report.agreement import agreement_of_quantities

# As in skipinit/table-7, whose runs these are.
METHODS = {
    "fixup": "fixup",
    "regularized_skipinit": "zeroinit(dropout=0.2)",
    "regularized_skipinit_scalar_bias": "zeroinit_v1(dropout=0.2)",
}


@artefact("skipinit/scalar-bias-v1", basis="formula")
def scalar_bias(context: Context, *, side: int, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """relu(skip + α branch + b), one scalar b per block, zero at the start; on ResNet-50-V1 it closes the gap."""
    with seeded(context.seed):
        one_each, agreements = _algorithm(side)
    found = compared(context, METHODS, batch_sizes[:1], model=RESNET_V1, effort=effort)
    table = agreement_table(agreements)
    accuracies = [(method, found.top1(method, batch_sizes[0])) for method in METHODS]
    trained = pd.DataFrame(
        {"quantity": f"top-1 of {method}", "value": one.mean, "deviation_of_runs": one.deviation, "n": one.n}
        for method, one in accuracies
    )
    return Evidence(
        measured=pd.concat([table, trained], ignore_index=True),
        checks=(one_each, *(one.check() for one in agreements), *_gap(found, batch_sizes[0])),
        setup={
            "network": f"ResNet-50-V1, random images of {side}×{side} pixels",
            "trained": f"{context.data_or(effort.data)}, {effort.epochs} epochs, batch size {batch_sizes[0]}, "
            f"{effort.replicates} run(s) at each rate; the runs of skipinit/table-7",
            "seed": context.seed,
        },
        draw=lambda: agreement_of_quantities(table),
        remarks=("Published at batch size 256: Fixup 74.4, without the bias 70.0, with it 75.2.",),
    )


def _gap(found: Comparison, size: int) -> list[Check]:
    """With the bias the method is above that without, and less than a point below Fixup."""
    biased, plain, fixup = (
        found.top1(method, size) for method in ("regularized_skipinit_scalar_bias", "regularized_skipinit", "fixup")
    )
    return [
        larger(f"At batch size {size} the bias raises the accuracy.", biased, plain),
        larger(f"With it, it is less than a point below Fixup's at batch size {size}.", biased, fixup, by=-1.0),
    ]


def _algorithm(side: int) -> tuple[Check, list[Agreement]]:
    """One scalar bias for every block, zero at the start, and where it is added."""
    original = build_model(RESNET_V1)
    network, without = (convert(original, f"{name}(dropout=0)") for name in ("zeroinit_v1", "zeroinit"))
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        logits, plain = network.eval()(images), without.eval()(images)
    scalars = [one for name, one in network.named_parameters() if name.endswith("output_bias")]
    values = torch.cat([torch.zeros(1), *scalars])
    blocks = len(residual_map(network).blocks)
    one_each = check(
        f"Each of the {blocks} blocks has one scalar bias.",
        len(scalars) == blocks and all(one.numel() == 1 for one in scalars),
        blocks=blocks,
        scalars=len(scalars),
    )
    return one_each, [
        agreement("The scalar biases start at 0", values, torch.zeros_like(values)),
        agreement("At the start the logits are those without it", logits, plain),
        _every_block(network, images),
    ]


def _every_block(network: nn.Module, images: Tensor) -> Agreement:
    """Each block's output against relu(skip + branch + b), branch and skip taken in front of the sum."""
    found = residual_map(network)
    disturbed(network).eval()
    what = "Each block's output is relu(skip + α branch + b), everything off its start"
    worst = Agreement(what, 0.0, ROUNDING)
    sides: list[Tensor] = []
    biases: dict[str, float] = {}

    def note(name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sides[:] = [inputs[0], inputs[1] - biases[name]]

    def compare(name: str, _: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal worst
        formula = torch.relu(sides[0] + sides[1] + biases[name])
        worst = max(worst, agreement(what, output, formula, ROUNDING), key=lambda one: one.deviation)

    for block in found.blocks:
        biases[block.name] = float(network.get_submodule(block.branch[-1]).get_parameter("output_bias").detach())
        network.get_submodule(block.sum or "").register_forward_hook(partial(note, block.name))
        network.get_submodule(block.name).register_forward_hook(partial(compare, block.name))
    with torch.no_grad():
        network(images.double())
    return worst
