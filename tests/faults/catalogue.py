"""The catalogue of faults: broken trainings with their repaired twins, broken loops, and healthy odd trainings."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.faults import truth as truths
from tests.faults.sources import OLDER, Source, source
from tests.faults.truth import Truth

Half = Literal["seen", "held"]
Batch = tuple[Any, Any]
LossFunction = Callable[..., Tensor]
Observe = Callable[[Tensor], None]


@dataclass
class Training:
    """Hold what a user passes to a diagnoser, and how success is measured.

    The inputs of the batch are a tensor, a tuple of arguments or a dictionary of arguments. `success` returns a
    number, 1 at best and 0 for guessing, of the network as it is now. `stream` returns the batch of a step; without
    it, all steps have the same batch. `options` are further arguments of `normless.diagnose`.
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
    """Hold a training whose fault is in its loop: `run(model, batches, optimizer, observe)`.

    It calls `observe(loss)` once per batch. With `by_findings`, the answer of a watch is its findings, except for
    those of the size of updates, and not its messages.
    """

    model: nn.Module
    batches: Sequence[Batch]
    optimizer: Optimizer | None
    run: Callable[[nn.Module, Sequence[Batch], Optimizer, Observe], None]
    success: Callable[[], float]
    by_findings: bool = False


Builder = Callable[[bool], Training | Loop]
Make = Callable[[], Training]
SETS = ("published", "kinds", "checks")


@dataclass(frozen=True)
class Case:
    """Describe one row of the catalogue: its builder is called with True for the broken training, False for its twin.

    A healthy training has no truth. Rows of the half `held` are counted, and not looked at. After `steps` steps the
    success of the twin is `reaches` or more, and that of the broken training less than `below`.
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


TRUTHS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("truths.yaml").read_text("utf-8"))
WORDS: dict[str, str] = TRUTHS.pop("words")


def in_full(pattern: str) -> str:
    """Return a pattern of truths.yaml with the words that it refers to."""
    while found := re.search("<([A-Z_]+)>", pattern):
        pattern = pattern.replace(found[0], WORDS.get(found[1]) or str(getattr(truths, found[1])))
    return pattern


def truth_of(row: Mapping[str, Any]) -> Truth:
    """Return what truths.yaml states of a row; a batch that is not fitted is a symptom of everything but a leak."""
    if "kinds" in row:
        return Truth.of_kinds(row["kinds"])
    given = row["cause"]
    cause = given if isinstance(given, str) else truths.both(*given)
    symptoms = [row.get("symptom", "<NOT_FITTED>")]
    symptoms += [] if row["kind"] == "leak" else ["<NOT_FITTED>"]
    symptoms += ["<SAME_OUTPUT>"] if row.get("constant_outputs") else []
    return Truth(in_full(cause), tuple(row.get("modules", ())), in_full("|".join(symptoms)))


def row(name: str, description: str, builder: Builder) -> None:
    """Add a broken training and its twin, of which truths.yaml says the rest."""
    stated = TRUTHS[name]
    half = "seen" if "kinds" in stated else half_of(name)
    bars = stated.get("bars", (0.9, 0.6))
    origin = source(*stated["source"])
    add(Case(name, stated["kind"], origin, description, builder, truth_of(stated), half, True, 200, *bars))


def fault(builder: Builder) -> Builder:
    """Add a row by its builder, whose docstring describes the fault."""
    row(builder.__name__, " ".join((builder.__doc__ or "").split()), builder)
    return builder


def looks_odd(name: str, description: str, origin: Sequence[str], make: Make, steps: int = 200) -> None:
    """Add a healthy training that looks like a broken one; the description says why it is right."""

    def build(broken: bool) -> Training:
        return make()

    build.__module__ = make.__module__
    add(Case(name, "healthy", source(*origin), description, build, None, half_of(name), False, steps, 0.5, 2.0))


def healthy(*origin: str, steps: int = 200) -> Callable[[Make], Make]:
    """Add a healthy training by the function that makes it, whose docstring says why it is right."""

    def added(make: Make) -> Make:
        looks_odd(make.__name__, " ".join((make.__doc__ or "").split()), origin, make, steps)
        return make

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


def modules() -> list[str]:
    """Return the names of the modules that hold rows."""
    folder = Path(__file__).parent
    files = [*(file for name in SETS for file in sorted((folder / name).glob("*.py"))), folder / "reports.py"]
    return [".".join(("tests.faults", *file.relative_to(folder).with_suffix("").parts)) for file in files]


def catalogue(half: Half | Literal["all"] = "all", names: Sequence[str] = ()) -> list[Case]:
    """Return the rows of one half, or those that are named.

    Raises:
        ValueError: a name is not the name of a row.
    """
    for module in modules():
        importlib.import_module(module)
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise ValueError(f"No row is called {', '.join(unknown)}; the names are {', '.join(sorted(CASES))}.")
    return [case for name, case in CASES.items() if half in (case.half, "all") and (not names or name in names)]
