"""The table of artefacts: for each id the function that carries it out, and its settings at each budget."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from normless.papers.budget import BUDGETS as BUDGETS
from normless.papers.budget import Budget as Budget
from normless.papers.evidence import Evidence
from normless.papers.published import Published, published, published_as

if TYPE_CHECKING:
    from normless.lab.laboratory import Laboratory

# A file or package per paper; each registers its artefacts when it is imported.
MODULES = MappingProxyType(
    {
        "skipinit": "normless.papers.skipinit",
        "zeroinit": "normless.papers.zeroinit",
        "understanding-bn": "normless.papers.understanding_bn",
        "fixup": "normless.papers.fixup",
        "gamma": "normless.papers.gamma",
    }
)

Settings = ParamSpec("Settings")


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

    def data_or(self, usual: str) -> str:
        """The user's data set, or else the budget's."""
        return self.data or usual


@dataclass(frozen=True)
class Artefact:
    """An artefact of a paper that can be carried out.

    Attributes:
        published: what the paper has.
        settings: keyword arguments of the function at each budget.
        function: given the context and the settings, measures and checks.
    """

    published: Published
    settings: Mapping[Budget, Mapping[str, Any]]
    function: Callable[..., Evidence]


_registered: dict[str, Artefact] = {}


def artefact(
    id: str,  # noqa: A002 - what the papers' index calls it
    *,
    smoke: Mapping[str, Any],
    small: Mapping[str, Any],
    paper: Mapping[str, Any],
) -> Callable[
    [Callable[Concatenate[Context, Settings], Evidence]], Callable[Concatenate[Context, Settings], Evidence]
]:
    """Register a function as the one that carries out an artefact.

    Args:
        id: of `published.yaml`.
        smoke: keyword arguments for at most 60 s on 2 cores, on digits or generated inputs.
        small: for at most 30 minutes on 2 cores, or minutes on a GPU.
        paper: the published setup.

    Raises:
        UnknownArtefactError: there is no such artefact.
        ValueError: it has a function already.
    """
    settings: dict[Budget, Mapping[str, Any]] = {"smoke": smoke, "small": small, "paper": paper}
    entry = published_as(id)

    def register(
        function: Callable[Concatenate[Context, Settings], Evidence],
    ) -> Callable[Concatenate[Context, Settings], Evidence]:
        if id in _registered:
            raise ValueError(f"{id} is carried out by two functions.")
        _registered[id] = Artefact(entry, MappingProxyType(settings), function)
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
