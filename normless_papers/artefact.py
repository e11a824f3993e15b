"""The table of artefacts: for each id the function that measures it, and the checks of its claim."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from normless_papers.budgets import BUDGETS as BUDGETS
from normless_papers.budgets import Budget as Budget
from normless_papers.budgets import settings_at
from normless_papers.estimates import qualified
from normless_papers.evidence import Evidence
from normless_papers.published import Published, published, published_as
from normless_papers.verdict import Basis, Check

if TYPE_CHECKING:
    from normless.sweeps import Laboratory

# A file or package per paper; each registers its artefacts when it is imported.
MODULES = MappingProxyType(
    {
        "skipinit": "normless_papers.skipinit",
        "zeroinit": "normless_papers.zeroinit",
        "understanding-bn": "normless_papers.understanding_bn",
        "fixup": "normless_papers.fixup",
        "gamma": "normless_papers.gamma",
    }
)

Measure = TypeVar("Measure", bound=Callable[..., "Evidence"])


@dataclass(frozen=True)
class Context:
    """What an artefact's function is given besides its settings.

    Attributes:
        budget: which of the budgets its settings are.
        lab: carries out runs and whole sweeps; finished ones are not run again.
        directory: for files of the artefact's own; exists.
        data: the data set that the user asks for instead of the budget's, as text such as cifar10; or None.
        data_root: folder of the data sets; the usual place if None.
        seed: the first seed; replicates count up from it.
    """

    budget: Budget
    lab: Laboratory
    directory: Path
    data: str | None = None
    data_root: str | None = None
    seed: int = 0

    def keeps(self, data: str) -> bool:
        """Whether the data are those of the budget, and not others that the user asks for."""
        return self.data in (None, data)

    def data_or(self, usual: str) -> str:
        """The user's data set, or else the budget's."""
        return self.data or usual


@dataclass(frozen=True)
class Artefact:
    """An artefact of a paper that can be carried out.

    Attributes:
        published: what the paper has.
        basis: what its checks rest on, see `normless_papers.verdict.Basis`.
        function: given the context and the settings, measures.
        checks: of the claim, made of the `facts` that the function measured and of nothing else.
    """

    published: Published
    basis: Basis
    function: Callable[..., Evidence]
    checks: Callable[[Any], Sequence[Check]]

    @cached_property
    def settings(self) -> Mapping[Budget, Mapping[str, Any]]:
        """Keyword arguments of the function at each budget, of `budgets.yaml`."""
        return MappingProxyType({budget: settings_at(self.published.id, budget, self.function) for budget in BUDGETS})

    def checks_of(self, evidence: Evidence) -> tuple[Check, ...]:
        """The claim, checked on what was measured; failed checks name what is smaller than the paper's set-up.

        Raises:
            ValueError: there is no check.
        """
        checks = self.checks(evidence.facts)
        if not checks:
            raise ValueError(f"The claim of {self.published.id} needs at least one check, and its function has none.")
        return qualified(checks, evidence.reduction)


_registered: dict[str, Artefact] = {}


def artefact(
    id: str,  # noqa: A002 - what the papers' index calls it
    *,
    basis: Basis,
    checks: Callable[[Any], Sequence[Check]],
) -> Callable[[Measure], Measure]:
    """Register a function as the one that measures an artefact; its settings are in `budgets.yaml`.

    Args:
        id: of `published.yaml`.
        basis: what the checks rest on.
        checks: of the claim, given the function's `Evidence.facts`.

    Raises:
        UnknownArtefactError: there is no such artefact.
        ValueError: it has a function already.
    """
    entry = published_as(id)

    def register(function: Measure) -> Measure:
        if id in _registered:
            raise ValueError(f"{id} is carried out by two functions.")
        _registered[id] = Artefact(entry, basis, function, checks)
        return function

    return register


@cache
def artefacts() -> Mapping[str, Artefact]:
    """Every artefact by its id, in the order of the papers."""
    for module in MODULES.values():
        importlib.import_module(module)
    return MappingProxyType({name: _registered[name] for name in published() if name in _registered})


def artefact_of(id: str) -> Artefact:  # noqa: A002 - what the papers' index calls it
    """The artefact of an id; only its paper's functions are imported.

    Raises:
        UnknownArtefactError: there is none.
    """
    importlib.import_module(MODULES[published_as(id).paper])
    return _registered[id]
