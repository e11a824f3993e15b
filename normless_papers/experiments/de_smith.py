"""The networks and methods of De & Smith, and their comparisons over depth, batch size and on ImageNet.

All weights, including the classifier's, start from He's variance 2 / fan-in (SkipInit, appendices C and G). The
classifier of a Wide-ResNet has no bias: ZeroInit's second part introduces biases "to each convolution and the
classification layer", so the networks that it is compared with have no biases there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import log2
from types import MappingProxyType
from typing import Any

from normless.models import WideResNet, wide_resnet
from normless_lab.sweeps import RateGrid, Sweep, axis_of
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network
from normless_papers.claims import UNKNOWN, Claim, Estimate, difference, near, single_run
from normless_papers.claims.training import chance_of, is_control
from normless_papers.experiments.de_smith_claims import DeclaredComparison, compared
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.published import published

BATCH_SIZE = 64
GHOST_BATCH_SIZE = 64

ACCURACY = "test_accuracy"
# The printed training losses are so large, given the accuracies, that they must include the L2 term.
LOSS = "training_loss_with_l2"

# The original of He et al. (2016a), without "the modifications to ResNet-50-V1 described by Goyal et al. (2017)"
# (ZeroInit, section 5): the stride is on the first 1×1 convolution and not on the 3×3, and the last γ starts at 1.
RESNET_V1 = "normless:resnet(depth=50, initialization=he_fan_in, stride_on=conv1)"

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
) -> TrainingSweeps:
    """Declare Wide-ResNets n-k, depths n = 6b + 4 and width k, at batch size 64; axes `column` (methods), `depth`."""
    axes = {
        column: {method: dict(METHODS[method]) for method in methods},
        "depth": {str(depth): {"model": wide_resnet_text(depth, width)} for depth in depths},
    }
    sweep = effort.sweep(context, f"depth-{metric}", axes, batch_size=BATCH_SIZE)
    return effort.training(context, sweep, metrics=(metric,), control={column: "batch_norm"})


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
) -> TrainingSweeps:
    """Declare `batch_sweeps`."""
    sweeps = batch_sweeps(context, name, methods, batch_sizes, effort, **network)
    return effort.training(context, *sweeps, metrics=metrics, control={"method": "batch_norm"})


IMAGENET_GHOST_BATCH_SIZE = 256
# The usual value of He et al.; the papers do not state theirs for ImageNet.
WEIGHT_DECAY = 1e-4
# The texts describe Fixup by its rules (ZeroInit, section 2) and are silent about the rate of its scalars, which its
# authors' code for ImageNet divides by 10. Of α and the scalar bias after the sum neither text names a rate of their
# own, nor does appendix G's code, so that the one of the grid is theirs too.
FIXUP = {"scalar_rate_scale": 0.1}


class ImageNetComparison(DeclaredComparison):
    """Methods compared at several batch sizes: `large` has the largest and `small` the others."""

    @property
    def small(self) -> list[int]:
        """All batch sizes but the largest, 256 and 1024 in the papers."""
        return self.sizes[:-1]

    @property
    def large(self) -> list[int]:
        """The largest batch size, 4096 in the papers."""
        return self.sizes[-1:]

    def reached(self, method: str, size: int, metric: str = "") -> Estimate:
        """Return the optimal top-1 accuracy in percent; single runs of the papers' set-up have the known deviation.

        NaN at a batch size at which batch norm learned too little to be a control.
        """
        control = self.runs.accuracy(**self.labels("batch_norm", size))
        if not is_control(control, chance_of(self.runs.table)):
            return UNKNOWN
        top1 = super().reached(method, size, metric)
        return single_run(top1.mean) if top1.n == 1 and not self.runs.reduction else top1

    def within_points(self, first: str, second: str, sizes: Sequence[int], points: float) -> list[Claim]:
        """Check that the first method is less than `points` below the second, at each batch size of the papers."""
        claim = f"{first} is less than {points:g} points below {second}"
        return list(map(self.as_printed, self.above(claim, first, second, sizes, by=-points)))

    def better_by(
        self, first: str, second: str, sizes: Sequence[int] | None = None, points: float = 0.0
    ) -> list[Claim]:
        """Check that the first method is above the second by `points`; above 0, only for the papers' set-up."""
        gap = f"more than {points:g} points above" if points > 0 else "above"
        checks = self.above(f"{first} is {gap} {second}", first, second, sizes, by=points)
        return list(map(self.as_printed, checks)) if points > 0 else checks

    def differ_by_less(self, first: str, second: str, sizes: Sequence[int], points: float) -> list[Claim]:
        """Check that two methods differ by less than `points`, at each batch size of the papers."""
        claim, gaps = f"{first} and {second} differ by less than {points:g} points", []
        for size in sizes:
            gap = difference(self.reached(first, size), self.reached(second, size))
            gaps.append(self.as_printed(near(f"{claim} {self.at(size)}.", gap, 0.0, points)))
        return gaps

    def flat(self, method: str, points: float) -> list[Claim]:
        """Check that a method loses less than `points` from the smallest batch size to any other of the papers."""
        first, *others = self.sizes
        claim = f"is less than {points:g} points below that at {first}."
        checks = [
            self.exceeds(f"{method} {self.at(size)} {claim}", (method, size), (method, first), by=-points)
            for size in others
        ]
        return list(map(self.as_printed, checks))

    def accuracies(self, title: str) -> Evidence:
        """Return the evidence of a table of top-1 and top-5 accuracies by method and batch size."""
        table = self.runs.printed(ACCURACY, "top1")
        table["top5"] = [self._top5(row) for row in table.to_dict("records")]
        return self.evidence(title, measured=table, on=("method", "batch_size"))

    def _top5(self, row: Mapping[Any, Any]) -> float:
        """Return the mean top-5 accuracy in percent of the runs that an optimum's top-1 accuracy averages."""
        if math.isnan(row["lr_log2"]):
            return math.nan
        runs = self.runs.chosen(**self.labels(row["method"], row["batch_size"]), rate=2.0 ** row["lr_log2"])
        return float(runs.nlargest(int(row["n"]), ACCURACY)["test_accuracy_top5"].mean())


def on_imagenet(
    context: Context, *, methods: Mapping[str, str], batch_sizes: Sequence[int], model: str, effort: Effort
) -> TrainingSweeps:
    """Declare a table's methods, given as schemes by name, with a network given as text."""
    settings = {
        method: {"scheme": scheme, "weight_decay": WEIGHT_DECAY} | (FIXUP if scheme == "fixup" else {})
        for method, scheme in methods.items()
    }
    channels = "" if effort.channels is None else f", channels={effort.channels}"
    network: dict[str, Any] = {"model": f"{model.removesuffix(')')}{channels})", "ghost": IMAGENET_GHOST_BATCH_SIZE}
    return over_batch_sizes(context, "imagenet", settings, batch_sizes, effort, metrics=(ACCURACY,), **network)


def compared_on_imagenet(runs: Runs, effort: Effort) -> ImageNetComparison:
    """Return the comparison of runs on ImageNet."""
    return ImageNetComparison(**vars(compared(runs, effort)))


def register(paper: str) -> None:
    """Register the tables and figures of a paper that compare methods, as their entries say.

    `compares` has `over`, the sizes that are compared, the `methods`, and the `title` of the figure. Over `depth`,
    the name of the methods' `column`, and the `metric`; a budget may train some of the methods alone. Over
    `batch_size`, the `name` and `ghost` of `batch_sweeps`, the `metrics` for whose optima rates are extended, whether
    the figure is of `rates`, and perhaps a `quantity`, the name of the single published number and the method that
    returns it. On `imagenet`, the `model`; the methods are schemes by name.
    """
    kinds: dict[str, Callable[..., None]] = {
        "depth": _over_depths,
        "batch_size": _over_batch_sizes,
        "imagenet": _on_imagenet,
    }
    for entry in published().values():
        if entry.paper == paper and entry.compares:
            how = dict(entry.compares)
            kinds[how.pop("over")](entry.id, **how)


def _over_depths(
    id: str,  # noqa: A002 - as in `artefact`
    title: str,
    *,
    methods: Sequence[str],
    metric: str,
    column: str,
) -> None:
    rows = methods

    def trains(context: Context, *, methods: Sequence[str] = rows, **settings: Any) -> TrainingSweeps:
        return over_depths(context, methods=methods, metric=metric, column=column, **settings)

    @artefact(id, basis="training", trains=trains)
    def measure(
        context: Context,
        runs: Runs,
        *,
        depths: Network[Sequence[int]],
        width: Network[int],
        effort: Effort,
        methods: Sequence[str] = rows,
    ) -> Evidence:
        return compared(runs, effort).by_depth(title)


def _over_batch_sizes(
    id: str,  # noqa: A002 - as in `artefact`
    title: str,
    *,
    methods: Sequence[str],
    name: str,
    ghost: int | None,
    metrics: Sequence[str],
    rates: bool,
    quantity: Mapping[str, str] = MappingProxyType({}),
) -> None:
    def trains(
        context: Context, *, batch_sizes: Sequence[int], width: int, effort: Effort, depth: int = 16
    ) -> TrainingSweeps:
        network = {"model": wide_resnet_text(depth, width), "ghost": ghost}
        return over_batch_sizes(context, name, methods, batch_sizes, effort, metrics=tuple(metrics), **network)

    @artefact(id, basis="training", trains=trains)
    def measure(
        context: Context,
        runs: Runs,
        *,
        batch_sizes: Sequence[int],
        width: Network[int],
        effort: Effort,
        depth: Network[int] = 16,
    ) -> Evidence:
        facts = compared(runs, effort)
        single = next(((name, getattr(facts, of)()) for name, of in quantity.items()), None)
        return facts.evidence(title, rates=rates, quantity=single)


def _on_imagenet(id: str, title: str, *, methods: Mapping[str, str], model: str) -> None:  # noqa: A002 - as above
    @artefact(id, basis="training", trains=partial(on_imagenet, methods=methods, model=model))
    def measure(context: Context, runs: Runs, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
        return compared_on_imagenet(runs, effort).accuracies(title)
