"""Cases of the benchmark: broken trainings with their repaired twins, broken loops, and healthy odd trainings."""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.faults.sources import Source
from benchmarks.faults.truth import NOT_FITTED, SAME_OUTPUT, Truth

Half = Literal["seen", "held"]
Batch = tuple[Any, Any]
LossFunction = Callable[..., Tensor]

MODULES = (
    "outputs",
    "losses",
    "inputs",
    "initialization",
    "structure",
    "connections",
    "attention",
    "optimization",
    "numerics",
    "loops",
    "loop_state",
    "healthy",
    "healthy_structures",
    "healthy_workloads",
)


@dataclass
class Training:
    """Hold what a user passes to a diagnoser, and how success is measured.

    Attributes:
        model: the network, in training mode.
        batch: (inputs, targets); inputs are a tensor, a tuple of arguments or a dictionary of arguments.
        loss: called as `loss(outputs, targets)`.
        optimizer: the optimizer of the training.
        success: returns a number, 1 at best and 0 for guessing, of the network as it is now.
        stream: returns the batch of step i; the same batch at every step if None.
    """

    model: nn.Module
    batch: Batch
    loss: LossFunction
    optimizer: Optimizer
    success: Callable[[], float]
    stream: Callable[[int], Batch] | None = None


@dataclass
class Loop:
    """Hold a training whose fault is in its loop.

    Attributes:
        model: the network, in training mode.
        batches: pairs of inputs and targets, in the order of the loop.
        optimizer: the optimizer, as it is before the loop.
        run: called as `run(model, batches, optimizer, observe)`; it calls `observe(loss)` once per batch.
        success: returns a number, 1 at best and 0 for guessing, of the network as it is now.
    """

    model: nn.Module
    batches: Sequence[tuple[Tensor, Tensor]]
    optimizer: Optimizer
    run: Callable[[nn.Module, Sequence[tuple[Tensor, Tensor]], Optimizer, Callable[[Tensor], None]], None]
    success: Callable[[], float]


@dataclass(frozen=True)
class Case:
    """Describe one case of the benchmark.

    Attributes:
        name: the name of its builder.
        kind: the family of the fault.
        source: where the fault was published.
        description: what is wrong, in words.
        builder: called with True for the broken and with False for the repaired training.
        truth: what an answer must name; None for a healthy training.
        steps: the number of steps after which success is measured, at most 200.
        reaches: what the repaired training reaches.
        below: what the broken training stays below.
    """

    name: str
    kind: str
    source: Source
    description: str
    builder: Callable[[bool], Training | Loop] = field(repr=False)
    truth: Truth | None
    steps: int
    reaches: float
    below: float

    @property
    def half(self) -> Half:
        """Return the half of the benchmark, decided by a hash of the name."""
        return "held" if hashlib.sha256(self.name.encode()).digest()[0] % 2 else "seen"

    @property
    def in_loop(self) -> bool:
        """Return whether the fault is visible in the loop only."""
        return self.kind == "loop"

    def build(self, broken: bool) -> Training | Loop:
        """Return the training, the same at every call."""
        torch.manual_seed(0)
        return self.builder(broken)


CASES: dict[str, Case] = {}


def _add(case: Case) -> None:
    if case.name in CASES and CASES[case.name].builder.__module__ != case.builder.__module__:
        raise ValueError(f"Two cases are called {case.name!r}; rename one of them.")
    CASES[case.name] = case


def fault(
    kind: str,
    source: Source,
    cause: str,
    *,
    modules: tuple[str, ...] = (),
    symptom: str = NOT_FITTED,
    constant_outputs: bool = False,
    steps: int = 200,
    reaches: float = 0.9,
    below: float = 0.6,
) -> Callable[[Callable[[bool], Training | Loop]], Callable[[bool], Training | Loop]]:
    """Add a builder of a broken training and its twin; its docstring describes the fault.

    Args:
        kind: the family of the fault; "loop" if it is visible in the loop only.
        source: where the fault was published.
        cause: a regular expression that the text of a finding must match to name the cause.
        modules: names of modules, one of which the finding must contain as well.
        symptom: a regular expression of a finding that is right but names only a symptom; that the batch is not
            fitted counts as a symptom of everything but a leak.
        constant_outputs: whether equal outputs for all examples are a symptom of the fault.
        steps: the number of steps after which success is measured.
        reaches: the success that the repaired training reaches.
        below: the success that the broken training stays below.
    """

    def add(builder: Callable[[bool], Training | Loop]) -> Callable[[bool], Training | Loop]:
        description = " ".join((builder.__doc__ or "").split())
        parts = [symptom] if kind == "leak" else [symptom, NOT_FITTED]
        truth = Truth(cause, modules, "|".join([*parts, SAME_OUTPUT] if constant_outputs else parts))
        _add(Case(builder.__name__, kind, source, description, builder, truth, steps, reaches, below))
        return builder

    return add


def healthy(
    source: Source, *, steps: int = 200, reaches: float = 0.5
) -> Callable[[Callable[[], Training]], Callable[[], Training]]:
    """Add a builder of a healthy training that looks like a broken one; its docstring says why it is right."""

    def add(builder: Callable[[], Training]) -> Callable[[], Training]:
        description = " ".join((builder.__doc__ or "").split())

        def build(broken: bool) -> Training:
            return builder()

        build.__module__ = builder.__module__
        _add(Case(builder.__name__, "healthy", source, description, build, None, steps, reaches, below=2.0))
        return builder

    return add


def all_cases(half: Literal["seen", "held", "all"] = "all", names: Sequence[str] = ()) -> list[Case]:
    """Return the cases of one half, or those whose names are given.

    Raises:
        ValueError: a name is not the name of a case.
    """
    for module in MODULES:
        importlib.import_module(f"benchmarks.faults.{module}")
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise ValueError(f"No case is called {', '.join(unknown)}; the names are {', '.join(sorted(CASES))}.")
    return [case for name, case in CASES.items() if half in (case.half, "all") and (not names or name in names)]
