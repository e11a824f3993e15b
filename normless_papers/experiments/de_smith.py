"""The networks and methods of De & Smith, and their sweeps over depth and batch size.

All weights, including the classifier's, start from He's variance 2 / fan-in (SkipInit, appendices C and G). The
classifier of a Wide-ResNet has no bias: ZeroInit's second part introduces biases "to each convolution and the
classification layer", so the networks that it is compared with have no biases there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2
from typing import Any

from normless.models import WideResNet, wide_resnet
from normless_lab.sweeps import RateGrid, Sweep, axis_of
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check
from normless_papers.experiments.comparison import Comparison, compared
from normless_papers.experiments.effort import Effort, Training
from normless_papers.experiments.runs import Runs

BATCH_SIZE = 64
GHOST_BATCH_SIZE = 64

ACCURACY = "test_accuracy"
# The printed training losses are so large, given the accuracies, that they must include the L2 term.
LOSS = "training_loss_with_l2"

# The original of He et al. (2016a), without "the modifications to ResNet-50-V1 described by Goyal et al. (2017)"
# (ZeroInit, section 5): the stride is on the first 1×1 convolution and not on the 3×3, and the last γ starts at 1.
RESNET_V1 = "normless:resnet(depth=50, initialization=he_fan_in, stride_on=conv1)"
# `variance_scaling_initializer()` of appendix G's code truncates at two standard deviations.
RESNET_V2 = "normless:resnet_v2(depth=50, initialization=he_fan_in_truncated)"

# The settings of each method by the papers' names; two names of the same method share their runs.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "batch_norm": {"scheme": "batch_norm"},
    "without_batch_norm": {"scheme": "none"},
    "biases": {"scheme": "zeroinit(multiplier=False, dropout=0)"},
    "dropout": {"scheme": "zeroinit(multiplier=False, biases=False)"},
    "scalar_multiplier": {"scheme": "skipinit"},
    "biases_and_dropout": {"scheme": "zeroinit(multiplier=False)"},
    "zeroinit": {"scheme": "zeroinit"},
    "zeroinit_without_l2": {"scheme": "zeroinit", "weight_decay": 0.0},
    "skipinit": {"scheme": "skipinit"},
    "regularized_skipinit": {"scheme": "zeroinit"},
    "skipinit_alpha_1": {"scheme": "skipinit(alpha=1)"},
    "skipinit_alpha_inv_sqrt_d": {"scheme": "skipinit(alpha=1/sqrt(L))"},
    "skipinit_alpha_0": {"scheme": "skipinit"},
    "skipinit_alpha_0_without_l2": {"scheme": "skipinit", "weight_decay": 0.0},
    "divide_block_by_sqrt2": {"scheme": "sqrt2"},
    "batch_norm_divide_block_by_sqrt2": {"scheme": "batch_norm_sqrt2"},
    "batch_norm_plus_batch_norm_at_end_of_block": {"scheme": "norm_on_skip"},
    "only_final_batch_norm": {"scheme": "only_final_norm"},
}


def wide_resnet_text(depth: int, width: int) -> str:
    """Return the text of a Wide-ResNet n-k of the papers."""
    return f"normless:wide_resnet(depth={depth}, width={width}, initialization=he_fan_in, classifier_bias=False)"


def built_wide_resnet(depth: int, width: int, classes: int = 10, in_channels: int = 3) -> WideResNet:
    """Build a Wide-ResNet n-k of the papers."""
    return wide_resnet(depth, width, classes, in_channels, initialization="he_fan_in", classifier_bias=False)


def scheme_of(method: str) -> str:
    """Return the scheme of a method."""
    return str(METHODS[method]["scheme"])


def rates_at(effort: Effort, batch_size: int) -> RateGrid:
    """Return the grid at a batch size B; its upper end is proportional to B / 64, its lower end only below B = 64.

    The optimum is proportional to B until it saturates, at an unknown batch size, so larger batches are tried at
    every rate from the optimum at 64 up.
    """
    shift, grid = 2.0 ** round(log2(batch_size / BATCH_SIZE)), effort.rates
    moved = [shift * rate for rate in grid.rates]
    if len(moved) == 1:
        return RateGrid(tuple(moved), None)
    rates, between = {*moved, *(() if shift < 1 else grid.rates)}, grid.rates[-1] * effort.step
    while between < moved[0]:
        rates.add(between)
        between *= effort.step
    return RateGrid(tuple(sorted(rates)), grid.factor, grid.extensions)


def over_depths(
    context: Context,
    *,
    methods: Iterable[str],
    depths: Sequence[int],
    width: int,
    effort: Effort,
    metric: str = ACCURACY,
    column: str = "method",
    **_: Any,
) -> Training:
    """Declare Wide-ResNets n-k of depths n = 6b + 4 and width k at batch size 64; axes `column` (methods), `depth`."""
    axes = {
        column: {method: dict(METHODS[method]) for method in methods},
        "depth": {str(depth): {"model": wide_resnet_text(depth, width)} for depth in depths},
    }
    sweep = effort.sweep(context, f"depth-{metric}", axes, batch_size=BATCH_SIZE)
    return effort.training(context, sweep, metrics=(metric,), control={column: "batch_norm"})


def table_over_depths(
    id: str,  # noqa: A002 - as in `artefact`
    checks: Callable[[Comparison], Sequence[Check]],
    methods: Iterable[str],
    title: str,
    *,
    metric: str = ACCURACY,
    column: str = "method",
) -> None:
    """Register a table of the optima of some methods over depth; see `over_depths`.

    A budget may train some of the `methods` alone.
    """
    rows = tuple(methods)

    def trains(context: Context, *, methods: Sequence[str] = rows, **settings: Any) -> Training:
        return over_depths(context, methods=methods, metric=metric, column=column, **settings)

    @artefact(id, basis="training", checks=checks, trains=trains)
    def measure(
        context: Context,
        runs: Runs,
        *,
        depths: Sequence[int],
        width: int,
        effort: Effort,
        methods: Sequence[str] = rows,
    ) -> Evidence:
        return compared(runs, effort).by_depth(title)


def batch_sweeps(
    context: Context,
    name: str,
    methods: Iterable[str] | Mapping[str, Mapping[str, Any]],
    batch_sizes: Sequence[int],
    effort: Effort,
    *,
    model: str,
    ghost: int | None,
) -> list[Sweep]:
    """Make sweeps of a network, one for each batch size, a power of two; axes `method` and `batch_size`.

    `methods` are keys of `METHODS`, or settings by the method's name; `ghost` is the number of examples that share
    batch-norm statistics in larger batches, the whole batch if None.
    """
    settings = methods if isinstance(methods, Mapping) else {method: METHODS[method] for method in methods}
    sweeps = []
    for size in batch_sizes:
        ghosts = {"ghost_batch_size": ghost} if ghost and size > ghost else {}
        chosen = {
            method: dict(own) | (ghosts if own["scheme"] == "batch_norm" else {}) for method, own in settings.items()
        }
        axes = {"method": chosen, "batch_size": axis_of("batch_size", [size])}
        sweeps.append(effort.sweep(context, f"{name}-{size}", axes, rates=rates_at(effort, size), model=model))
    return sweeps


def over_batch_sizes(
    context: Context,
    name: str,
    methods: Iterable[str] | Mapping[str, Mapping[str, Any]],
    batch_sizes: Sequence[int],
    effort: Effort,
    *,
    metrics: tuple[str, ...] = (ACCURACY, LOSS),
    **network: Any,
) -> Training:
    """Declare `batch_sweeps`."""
    sweeps = batch_sweeps(context, name, methods, batch_sizes, effort, **network)
    return effort.training(context, *sweeps, metrics=metrics, control={"method": "batch_norm"})


def figure_over_batch_sizes(
    id: str,  # noqa: A002 - as in `artefact`
    checks: Callable[[Comparison], Sequence[Check]],
    methods: Iterable[str],
    title: str,
    *,
    name: str,
    ghost: int | None = None,
    metrics: tuple[str, ...] = (ACCURACY, LOSS),
    quantity: Callable[[Comparison], tuple[str, Any]] | None = None,
    rates: bool = False,
) -> None:
    """Register a figure of optima over batch sizes, or with `rates` of their learning rates.

    `name`, `methods` and `ghost` are those of `batch_sweeps`; learning rates are extended for the optima by
    `metrics`; `quantity` is the name and value of the single published number.
    """

    def trains(
        context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort, depth: int = 16
    ) -> Training:
        network = {"model": wide_resnet_text(depth, width), "ghost": ghost}
        return over_batch_sizes(context, name, methods, batch_sizes, effort, metrics=metrics, **network)

    @artefact(id, basis="training", checks=checks, trains=trains)
    def measure(
        context: Context, runs: Runs, *, batch_sizes: Sequence[int], width: int, effort: Effort, depth: int = 16
    ) -> Evidence:
        facts = compared(runs, effort)
        return facts.evidence(title, rates=rates, quantity=quantity(facts) if quantity else None)
