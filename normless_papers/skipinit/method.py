"""SkipInit and its regularized form as algorithms, and the scalar bias of the latter for ResNet-V1 (appendix F)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import sqrt

import pandas as pd
import torch
from torch import Tensor, nn

from normless import residual_map
from normless.models import build_model
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, Network, Seeds
from normless_papers.claims import Claim, Estimate, check, larger
from normless_papers.claims.agreement import (
    ROUNDING,
    Agreement,
    agreement,
    agreement_table,
    observed,
    unscaled_weights,
    worst_agreement,
)
from normless_papers.experiments.comparison import Comparison
from normless_papers.experiments.de_smith import (
    RESNET_V1,
    built_wide_resnet,
    compared_on_imagenet,
    on_imagenet,
    over_depths,
    scheme_of,
)
from normless_papers.experiments.de_smith_claims import compared
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.networks.reference_forward import (
    blocks_at_start,
    disturbed,
    multipliers,
    placement,
    regularized_facts,
)
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.plots import AGREEMENT
from normless_papers.published import published_as

# The methods of skipinit/table-1, whose runs are used here, by the initial α.
STARTS = {"0": "skipinit_alpha_0", "1/sqrt(L)": "skipinit_alpha_inv_sqrt_d", "1": "skipinit_alpha_1"}
UNTRAINABLE, DEEPEST = 100, 1000


def _skipinit_checks(facts: tuple[tuple[int, int], Sequence[Agreement], Comparison]) -> list[Claim]:
    """Check the numbers of norms before and after the conversion, the agreements with formulas, and the runs."""
    (before, after), agreements, runs = facts
    trains = [
        runs.trains(f"With α = {alpha}, {depth} layers train, as with batch norm.", STARTS[alpha], depth)
        for alpha in ("0", "1/sqrt(L)")
        for depth in sorted({*runs.sizes, DEEPEST})
    ]
    claim = f"With α = 1, {UNTRAINABLE} layers do not train, where batch norm does."
    return [
        check("No batch normalization is left.", after == 0 < before, before=before, after=after),
        *map(Agreement.check, agreements),
        *trains,
        runs.does_not_train(claim, STARTS["1"], UNTRAINABLE),
    ]


@artefact(
    "skipinit/skipinit",
    basis="training",
    checks=_skipinit_checks,
    trains=partial(over_depths, methods=("batch_norm", *STARTS.values()), column="variant"),
)
def skipinit(
    context: Context,
    own_runs: Runs,
    *,
    depth: Network[int],
    width: Network[int],
    depths: Network[Sequence[int]],
    effort: Effort,
) -> Evidence:
    with seeded(context.seed):
        original, images = built_wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
        agreements = (
            *_starts(original),
            *blocks_at_start(convert(original, "skipinit"), images),
            unscaled_weights(original, convert(original, "skipinit(keep_scale=False)")),
            *placement(convert(original, "zeroinit(dropout=0)"), images),
        )
    before, after = (
        sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
        for network in (original, convert(original, "skipinit"))
    )
    runs = compared(own_runs, effort)
    trained = runs.by_depth("SkipInit and batch norm")
    own = {
        "network of the algorithm": f"Wide-ResNet-{depth}-{width}",
        "d in 1/sqrt(d)": "the number of residual blocks L",
    }
    return replace(
        trained,
        measured=pd.concat([agreement_table(agreements), trained.measured], ignore_index=True),
        facts=((before, after), agreements, runs),
        setup={**own, **trained.setup},
        on=(),
        remarks=trained.remarks,
    )


def _starts(original: nn.Module) -> list[Agreement]:
    """Compare the multipliers with one per block at its initial value."""
    blocks = len(residual_map(original).blocks)
    agreements = []
    for (label, method), value in zip(STARTS.items(), (0.0, 1 / sqrt(blocks), 1.0), strict=True):
        starts = multipliers(convert(original, scheme_of(method)))
        # A wrong number of multipliers must not agree.
        starts = starts if len(starts) == blocks else torch.full((blocks,), torch.nan)
        quantity = f"α = {label} is the initial value of one scalar in each of {blocks} blocks"
        agreements.append(agreement(quantity, starts, torch.full((blocks,), value)))
    return agreements


# The methods of table 7, by the names of ZeroInit's schemes; its runs are those of zeroinit/table-5.
METHODS: Mapping[str, str] = published_as("skipinit/table-7").compares["methods"]
BIASED, PLAIN = "regularized_skipinit_scalar_bias", "regularized_skipinit"


_Algorithm = tuple[int, tuple[int, ...], tuple[Agreement, ...]]


def _scalar_bias_checks(facts: tuple[_Algorithm, int, Mapping[str, Estimate]]) -> list[Claim]:
    """Check `_algorithm`, and the optimal accuracies by method at the smallest batch size of the runs."""
    (blocks, biases, agreements), size, top1 = facts
    claim = f"With it there is no gap to Fixup at batch size {size}: it is less than half a point below."
    return [
        check("Each block has one scalar bias.", biases == (1,) * blocks, blocks=blocks, scalars=len(biases)),
        *map(Agreement.check, agreements),
        larger(f"At batch size {size} the bias raises the accuracy.", top1[BIASED], top1[PLAIN]),
        larger(claim, top1[BIASED], top1["fixup"], by=-0.5),
    ]


def _at_smallest_batch(context: Context, *, side: int, batch_sizes: Sequence[int], effort: Effort) -> TrainingSweeps:
    return on_imagenet(context, methods=METHODS, batch_sizes=batch_sizes[:1], model=RESNET_V1, effort=effort)


@artefact("skipinit/scalar-bias-v1", basis="training", checks=_scalar_bias_checks, trains=_at_smallest_batch)
def scalar_bias(
    context: Context, own_runs: Runs, *, side: Data[int], batch_sizes: Sequence[int], effort: Effort
) -> Evidence:
    with seeded(context.seed):
        algorithm = _algorithm(side)
    size = batch_sizes[0]
    runs = compared_on_imagenet(own_runs, effort)
    top1 = {method: runs.reached(method, size) for method in METHODS}
    table = agreement_table(algorithm[2])
    trained = pd.DataFrame(
        {"quantity": f"top-1 of {method}", "value": top.mean, "deviation_of_runs": top.deviation, "n": top.n}
        for method, top in top1.items()
    )
    return Evidence(
        measured=pd.concat([table, trained], ignore_index=True),
        facts=(algorithm, size, top1),
        setup={
            "network": f"ResNet-50-V1, random images of {side}×{side} pixels",
            "trained": f"{context.data_or(effort.data)}, {effort.epochs} epochs, batch size {size}, "
            f"{effort.replicates} run(s) at each rate; the runs of skipinit/table-7",
        },
        draw=lambda: AGREEMENT(table),
        reduction=runs.runs.reduction,
    )


def _algorithm(side: int) -> _Algorithm:
    """Return the number of blocks, the sizes of the biases after sums, and comparisons with the formula."""
    original = build_model(RESNET_V1)
    network, without = (convert(original, f"{name}(dropout=0)") for name in ("zeroinit_v1", "zeroinit"))
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        logits, plain = network.eval()(images), without.eval()(images)
    biases = [bias for name, bias in network.named_parameters() if name.endswith("input_bias")]
    values = torch.cat([torch.zeros(1), *biases])
    agreements = (
        agreement("The scalar biases start at 0", values, torch.zeros_like(values)),
        agreement("At the start the logits are those without the bias", logits, plain),
        _every_block(network, images),
    )
    return len(residual_map(network).blocks), tuple(bias.numel() for bias in biases), agreements


def _every_block(network: nn.Module, images: Tensor) -> Agreement:
    """Compare each block's output with relu(skip + branch + b), from the sum's inputs."""
    disturbed(network).eval()
    blocks = residual_map(network).blocks
    names = [name for block in blocks for name in (block.sum or "", block.name)]
    calls, _ = observed(network, [network.get_submodule(name) for name in names], images.double())
    pairs = []
    for block, ((skip, branch), _), (_, output) in zip(blocks, calls[::2], calls[1::2], strict=True):
        assert block.activation_after_sum is not None
        bias = float(network.get_submodule(block.activation_after_sum).get_parameter("input_bias").detach())
        pairs.append((output, torch.relu(skip + branch + bias)))
    quantity = "Each block's output is relu(skip + α branch + b), at perturbed parameters"
    return worst_agreement(quantity, pairs, ROUNDING)


ID = "skipinit/regularized-skipinit"
# The scheme that the tables of each data set use under this name.
SCHEMES = {
    "cifar100": scheme_of("regularized_skipinit"),
    "imagenet": METHODS["regularized_skipinit"],
}


@artefact(ID, basis="formula", checks=lambda facts: facts.checks(published_as(ID).quantities["drop_probability"]))
def regularized(context: Context, *, depth: Network[int], width: Network[int], draws: Seeds[int]) -> Evidence:
    with seeded(context.seed):
        facts = regularized_facts("zeroinit", depth, width, draws, SCHEMES, _differs_by_dropout)
    rows = [("drop_probability", name, share.mean) for name, share in facts.shares.items()]
    rows.append(("keep_prob_in_code", "imagenet", 1 - facts.shares["imagenet"].mean))
    published = pd.DataFrame(rows, columns=["quantity", "of", "value"])
    table = agreement_table(facts.agreements)
    return Evidence(
        measured=pd.concat([published, table], ignore_index=True),
        facts=facts,
        setup={"network": f"Wide-ResNet-{depth}-{width}", "dropout of": SCHEMES, "draws of dropout": draws},
        draw=lambda: AGREEMENT(table),
    )


def _differs_by_dropout(original: nn.Module, network: nn.Module, images: Tensor) -> Agreement:
    """Compare the network with SkipInit at test time, when nothing is dropped."""
    with torch.no_grad():
        ours, plain = network.eval()(images), convert(original, "skipinit").eval()(images)
    return agreement("Without dropout the logits are those of SkipInit with α = 0", ours, plain)
