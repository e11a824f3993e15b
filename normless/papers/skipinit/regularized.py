"""Regularized SkipInit, which is ZeroInit, and its scalar bias for ResNet-V1."""

from __future__ import annotations

from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from normless import convert, residual_map
from normless.models import resnet, wide_resnet
from normless.papers.agreement import ROUNDING, Agreement, agreement, agreement_table
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.multipliers import blocks_at_start, placement
from normless.papers.regularization import biases, drop_check, dropped_share
from normless.papers.verdict import check
from normless.papers.written_out import disturbed
from normless.report.agreement import agreement_of_quantities
from normless.schemes import parse_scheme

# Drop probabilities of the papers by data set.
DROPS = {"cifar100": 0.6, "imagenet": 0.2}


@artefact(
    "skipinit/regularized-skipinit",
    smoke={"depth": 16, "width": 2, "draws": 400},
    small={"depth": 100, "width": 2, "draws": 4000},
    paper={"depth": 100, "width": 2, "draws": 20000},
)
def regularized(context: Context, *, depth: int, width: int, draws: int) -> Evidence:
    """α = 0, biases on all convolutions and the classifier, dropout before that; ZeroInit by another name."""
    with seeded(context.seed):
        original, images = wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
        network = convert(original, "regularized_skipinit")
        biased, start = biases(original, network)
        agreements = [
            start,
            _differs_by_dropout(original, network, images),
            *blocks_at_start(network, images),
            *placement(convert(original, "regularized_skipinit(dropout=0)"), images),
        ]
        rates = {name: dropped_share(original, drop, draws) for name, drop in DROPS.items()}
    same = parse_scheme("regularized_skipinit").edits == parse_scheme("zeroinit").edits
    published = pd.DataFrame(
        [
            *({"quantity": "drop_probability", "of": name, "value": float(rates[name].mean())} for name in DROPS),
            {"quantity": "keep_prob_in_code", "of": "imagenet", "value": float(1 - rates["imagenet"].mean())},
        ]
    )
    table = agreement_table(agreements)
    return Evidence(
        measured=pd.concat([published, table], ignore_index=True),
        checks=(
            biased,
            *(one.check() for one in agreements),
            *(drop_check(name, drop, rates[name]) for name, drop in DROPS.items()),
            check(
                "The edits are those of ZeroInit, so that its ablations are this method's.", same, same=float(same)
            ),
        ),
        setup={"network": f"Wide-ResNet-{depth}-{width}", "draws of dropout": draws, "seed": context.seed},
        on=("quantity",),
        draw=lambda: agreement_of_quantities(table),
    )


def _differs_by_dropout(original: nn.Module, network: nn.Module, images: Tensor) -> Agreement:
    """At test time, where nothing is dropped, it is SkipInit."""
    with torch.no_grad():
        ours, plain = network.eval()(images), convert(original, "skipinit").eval()(images)
    return agreement("Without dropout the logits are those of SkipInit with α = 0", ours, plain)


@artefact(
    "skipinit/scalar-bias-v1",
    smoke={"depth": 50, "side": 32},
    small={"depth": 50, "side": 64},
    paper={"depth": 50, "side": 224},
)
def scalar_bias(context: Context, *, depth: int, side: int) -> Evidence:
    """relu(skip + α branch + b) with one scalar b per block, zero at the start, on ResNet-V1."""
    with seeded(context.seed):
        original = resnet(depth)
        network, without = (convert(original, f"{name}(dropout=0)") for name in ("zeroinit_v1", "zeroinit"))
        images = torch.randn(2, 3, side, side)
        with torch.no_grad():
            start = agreement(
                "At the start the logits are those without it", network.eval()(images), without.eval()(images)
            )
        scalars = [one for name, one in network.named_parameters() if name.endswith("output_bias")]
        blocks = len(residual_map(network).blocks)
        agreements = [
            agreement(
                "The scalar biases start at 0", torch.cat([torch.zeros(1), *scalars]), torch.zeros(len(scalars) + 1)
            ),
            start,
            _every_block(network, images),
        ]
    table = agreement_table(agreements)
    one_each = check(
        f"Each of the {blocks} blocks has one scalar bias.",
        len(scalars) == blocks and all(one.numel() == 1 for one in scalars),
        blocks=blocks,
        scalars=len(scalars),
    )
    gap = check(
        "On ImageNet the bias closes the gap to Fixup at small batch size: measured by skipinit/table-7, not here.",
        None,
        published_without=70.0,
        published_with=75.2,
        published_fixup=74.4,
    )
    return Evidence(
        measured=table,
        checks=(one_each, *(one.check() for one in agreements), gap),
        setup={"network": f"ResNet-{depth}-V1, random images of {side}×{side} pixels", "seed": context.seed},
        draw=lambda: agreement_of_quantities(table),
    )


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
