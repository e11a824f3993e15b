"""How De & Smith train (section 3 of the ZeroInit paper), and how much of that a budget carries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log2
from types import MappingProxyType
from typing import Any

from normless.sweeps import RateGrid, Sweep, axes_as_printed, axis_of
from normless_papers.artefact import Context
from normless_papers.networks import wide_resnet_text

BATCH_SIZE = 64
GHOST_BATCH_SIZE = 64
REPLICATES = 15
BEST = 12
EPOCHS = 200

# L2 is on the weights alone: the code of SkipInit's appendix G has one regularizer, of "w"; not on biases, scalars, γ
# and β, of which the texts do not speak.
PROTOCOL: Mapping[str, Any] = MappingProxyType(
    {"momentum": 0.9, "schedule": "hold_then_halve", "weight_decay": 5e-4, "decay_policy": "weights"}
)

# Every method by the papers' names, and the settings that make it; two names of one method share their runs.
METHODS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
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
)


@dataclass(frozen=True)
class Effort:
    """How much of the protocol is carried out; by default all of it.

    Attributes:
        data: the data set as text.
        epochs: of every run.
        exponents: of two, the learning rates at batch size 64, increasing.
        replicates: R, runs at each rate.
        best: k, how many of them count.
        extensions: how many rates may be added at each end of the grid where an optimum lies there.
        crop: zero padding before the random crop of `data`, in pixels; its default if None.
        channels: of the first stage of a ResNet-50, all others in proportion; the published 64 if None.
        whole: whether it is what the papers did, so that their very numbers can be asked of it, and a network that
            stays at chance cannot be trained.
    """

    data: str = "cifar10"
    epochs: int = EPOCHS
    exponents: tuple[int, ...] = tuple(range(-6, 1))
    replicates: int = REPLICATES
    best: int = BEST
    extensions: int = 8
    crop: int | None = None
    channels: int | None = None
    whole: bool = True

    @property
    def step(self) -> float:
        """The factor between neighbouring learning rates, to which an optimum is known; ∞ of a single rate."""
        return 2.0 ** min((high - low for low, high in pairwise(self.exponents)), default=inf)

    def rates(self, batch_size: int = BATCH_SIZE) -> RateGrid:
        """The grid at a batch size B: its upper end grows with B / 64, its lower end falls with it but never rises.

        The optimum is proportional to B until it saturates, at a batch size that is not known beforehand, so every
        rate from the optimum at 64 on is tried at larger batches. Rates added at an end are as far apart as those of
        the grid.
        """
        shift = round(log2(batch_size / BATCH_SIZE))
        if len(self.exponents) == 1:
            return RateGrid((2.0 ** (self.exponents[0] + shift),), None)
        moved = {exponent + shift for exponent in self.exponents}
        exponents = sorted(moved if shift < 0 else moved | set(self.exponents))
        return RateGrid(tuple(2.0**exponent for exponent in exponents), self.step, self.extensions)


def depth_sweep(
    context: Context,
    name: str,
    methods: Sequence[str],
    depths: Sequence[int],
    *,
    width: int,
    effort: Effort,
    column: str = "method",
) -> Sweep:
    """Wide-ResNets of one width at some depths, batch size 64, by each method; axes `column` and `depth`.

    Args:
        context: of the artefact.
        name: of the sweep.
        methods: keys of `METHODS`.
        depths: numbers of layers, 6b + 4.
        width: width factor.
        effort: how much of the protocol.
        column: what the methods are called, as the published rows call them.
    """
    networks = {str(depth): {"model": wide_resnet_text(depth, width)} for depth in depths}
    axes = {column: method_axis(methods), "depth": networks}
    return _sweep(context, name, {"batch_size": BATCH_SIZE}, axes, effort, effort.rates())


def batch_sweeps(
    context: Context,
    name: str,
    methods: Mapping[str, Mapping[str, Any]],
    batch_sizes: Sequence[int],
    *,
    model: str,
    effort: Effort,
    ghost: int | None,
) -> tuple[Sweep, ...]:
    """One network at some batch sizes by each method, a sweep per batch size; axes `method` and `batch_size`.

    Args:
        context: of the artefact.
        name: of the sweeps.
        methods: what each method sets, by its name.
        batch_sizes: powers of two.
        model: the network as text.
        effort: how much of the protocol.
        ghost: examples that share batch-norm statistics where the batch is larger; the whole batch if None.
    """
    sweeps = []
    for size in batch_sizes:
        chosen = {
            method: dict(settings)
            | ({"ghost_batch_size": ghost} if ghost and size > ghost and settings["scheme"] == "batch_norm" else {})
            for method, settings in methods.items()
        }
        axes = {"method": chosen, "batch_size": axis_of("batch_size", [size])}
        sweeps.append(_sweep(context, f"{name}-{size}", {"model": model}, axes, effort, effort.rates(size)))
    return tuple(sweeps)


def method_axis(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The axis of some methods: what each of them sets, by its name."""
    return {method: dict(METHODS[method]) for method in methods}


def _sweep(
    context: Context,
    name: str,
    settings: Mapping[str, Any],
    axes: Mapping[str, Mapping[str, Mapping[str, Any]]],
    effort: Effort,
    rates: RateGrid,
) -> Sweep:
    return Sweep(
        name=name,
        base={
            **PROTOCOL,
            **settings,
            "data": context.data_or(effort.data),
            "data_root": context.data_root,
            "epochs": effort.epochs,
            "crop": effort.crop if context.data is None else None,
        },
        axes=axes_as_printed(axes),
        rates=rates,
        replicates=effort.replicates,
        best=effort.best,
        seed=context.seed,
    )
