"""The catalogue of faults: broken trainings with their repaired twins, broken loops, and healthy odd trainings."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.faults.sources import OLDER, Source
from tests.faults.truth import NOT_FITTED, SAME_OUTPUT, Truth

Half = Literal["seen", "held"]
Batch = tuple[Any, Any]
LossFunction = Callable[..., Tensor]
Observe = Callable[[Tensor], None]

MODULES = (
    *(
        f"published.{name}"
        for name in (
            *("outputs", "losses", "loss_terms", "inputs", "initialization", "structure", "connections", "attention"),
            *("optimization", "numerics", "loops", "loop_state", "healthy", "healthy_structures"),
        )
    ),
    *(f"kinds.{name}" for name in ("batches", "gradients", "depth", "training", "healthy")),
    "reports",
    *(
        f"checks.{name}"
        for name in (
            *(
                "axes",
                "direction",
                "losses",
                "outputs",
                "leaks",
                "data",
                "information",
                "modes",
                "weights",
                "settings",
            ),
            *("not_finite", "odd_forms", "odd_networks", "odd_objectives", "loops", "loop_steps"),
        )
    ),
)


@dataclass
class Training:
    """Hold what a user passes to a diagnoser, and how success is measured.

    Attributes:
        model: the network, in training mode.
        batch: (inputs, targets); inputs are a tensor, a tuple of arguments or a dictionary of arguments.
        loss: called as `loss(outputs, targets)`.
        optimizer: the optimizer of the training; some rows have none.
        success: returns a number, 1 at best and 0 for guessing, of the network as it is now.
        stream: returns the batch of step i; the same batch at every step if None.
        options: further arguments of `normless.diagnose`.
    """

    model: nn.Module
    batch: Batch
    loss: LossFunction
    optimizer: Optimizer | None
    success: Callable[[], float]
    stream: Callable[[int], Batch] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Loop:
    """Hold a training whose fault is in its loop.

    Attributes:
        model: the network, in training mode.
        batches: pairs of inputs and targets, in the order of the loop.
        optimizer: the optimizer, as it is before the loop.
        run: called as `run(model, batches, optimizer, observe)`; it calls `observe(loss)` once per batch.
        success: returns a number, 1 at best and 0 for guessing, of the network as it is now.
        by_findings: whether the findings of a watch are its answer, except for those of the size of updates, and
            not its messages.
    """

    model: nn.Module
    batches: Sequence[Batch]
    optimizer: Optimizer | None
    run: Callable[[nn.Module, Sequence[Batch], Optimizer, Observe], None]
    success: Callable[[], float]
    by_findings: bool = False


Builder = Callable[[bool], Training | Loop]


@dataclass(frozen=True)
class Case:
    """Describe one row of the catalogue.

    Attributes:
        name: the name of its builder.
        kind: the family of the fault.
        source: where the fault was published.
        description: what is wrong, in words.
        builder: called with True for the broken and with False for the repaired training.
        truth: what an answer must name; None for a healthy training.
        half: `held` rows are counted, and not looked at.
        has_twin: whether there is a repaired training.
        steps: the number of steps after which success is measured, at most 200.
        reaches: what the repaired training reaches.
        below: what the broken training stays below.
    """

    name: str
    kind: str
    source: Source
    description: str
    builder: Builder = field(repr=False)
    truth: Truth | None
    half: Half
    has_twin: bool
    steps: int
    reaches: float
    below: float

    @property
    def in_loop(self) -> bool:
        """Return whether the fault is visible in the loop only."""
        return self.kind == "loop"

    @property
    def set(self) -> str:
        """Return `published`, `kinds`, `reports` or `checks`."""
        return self.builder.__module__.split(".")[2]

    @property
    def variants(self) -> tuple[Literal["broken", "twin", "healthy"], ...]:
        """Return the trainings of the row."""
        if self.truth is None:
            return ("healthy",)
        return ("broken", "twin") if self.has_twin else ("broken",)

    def build(self, broken: bool) -> Training | Loop:
        """Return the training, the same at every call."""
        torch.manual_seed(0)
        return self.builder(broken)


CASES: dict[str, Case] = {}


def add(case: Case) -> None:
    """Add a row, under a name of its own."""
    known = CASES.setdefault(case.name, case)
    if known.builder.__module__ != case.builder.__module__:
        raise ValueError(f"Two rows are called {case.name!r}; rename one of them.")


def half_of(name: str) -> Half:
    """Return the half of a published row, decided by a hash of its name."""
    return "held" if hashlib.sha256(name.encode()).digest()[0] % 2 else "seen"


def fault(
    kind: str,
    source: Source,
    cause: str | tuple[str, ...],
    symptom: str = NOT_FITTED,
    *,
    modules: tuple[str, ...] = (),
    constant_outputs: bool = False,
    steps: int = 200,
    bars: tuple[float, float] = (0.9, 0.6),
) -> Callable[[Builder], Builder]:
    """Add a builder of a broken training and its twin; its docstring describes the fault.

    Args:
        kind: the family of the fault; "loop" if it is visible in the loop only.
        source: where the fault was published.
        cause: a regular expression that a finding must match to name the cause, or the kinds of findings that do.
        symptom: a regular expression of a finding that is right but names only a symptom; that the batch is not
            fitted counts as a symptom of everything but a leak.
        modules: names of modules, one of which the finding must contain as well.
        constant_outputs: whether equal outputs for all examples are a symptom of the fault.
        steps: the number of steps after which success is measured.
        bars: the success that the repaired training reaches, and that which the broken training stays below.
    """

    def added(builder: Builder) -> Builder:
        description = " ".join((builder.__doc__ or "").split())
        parts = [symptom] if kind == "leak" else [symptom, NOT_FITTED]
        words = "|".join([*parts, SAME_OUTPUT] if constant_outputs else parts)
        truth = Truth(cause, modules, words) if isinstance(cause, str) else Truth.of_kinds(cause)
        half: Half = half_of(builder.__name__) if isinstance(cause, str) else "seen"
        add(Case(builder.__name__, kind, source, description, builder, truth, half, True, steps, *bars))
        return builder

    return added


def healthy(
    source: Source, *, steps: int = 200, reaches: float = 0.5
) -> Callable[[Callable[[], Training]], Callable[[], Training]]:
    """Add a builder of a healthy training that looks like a broken one; its docstring says why it is right."""

    def added(builder: Callable[[], Training]) -> Callable[[], Training]:
        name, description = builder.__name__, " ".join((builder.__doc__ or "").split())

        def build(broken: bool) -> Training:
            return builder()

        build.__module__ = builder.__module__
        add(Case(name, "healthy", source, description, build, None, half_of(name), False, steps, reaches, 2.0))
        return builder

    return added


def row_of_kinds(
    name: str,
    causes: tuple[str, ...],
    half: Half,
    build: Callable[[], Training | Loop],
    twin: Callable[[], Training | Loop] | None = None,
    says: str = "",
    in_loop: bool = False,
) -> None:
    """Add a broken training whose causes are kinds of findings, or a healthy one if there are none.

    Its success is 1 - loss / loss at the start, after 60 steps. `says` is a regular expression of what the finding
    must say as well.
    """

    def builder(broken: bool) -> Training | Loop:
        return build() if broken or twin is None else twin()

    builder.__module__ = build.__module__
    truth = Truth.of_kinds(causes, says) if causes else None
    kind = "loop" if in_loop else causes[0] if causes else "healthy"
    add(Case(name, kind, OLDER, build.__doc__ or "", builder, truth, half, twin is not None, 60, 0.0, 0.5))


def catalogue(half: Half | Literal["all"] = "all", names: Sequence[str] = ()) -> list[Case]:
    """Return the rows of one half, or those that are named.

    Raises:
        ValueError: a name is not the name of a row.
    """
    for module in MODULES:
        importlib.import_module(f"tests.faults.{module}")
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise ValueError(f"No row is called {', '.join(unknown)}; the names are {', '.join(sorted(CASES))}.")
    return [case for name, case in CASES.items() if half in (case.half, "all") and (not names or name in names)]
