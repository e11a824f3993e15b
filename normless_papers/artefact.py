"""The open table of artefacts: for each id its published claim, the function that measures it, and its checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from normless.registry import Registry
from normless_lab.process import read_yaml
from normless_papers.budgets import BUDGETS as BUDGETS
from normless_papers.budgets import Budget as Budget
from normless_papers.budgets import budget_table, typed
from normless_papers.claims import Basis, Check, Tests, checks_by, qualified
from normless_papers.evidence import Evidence as Evidence
from normless_papers.published import Published, UnknownArtefactError, published, published_as

if TYPE_CHECKING:
    from normless_lab.sweeps import Laboratory


@dataclass(frozen=True)
class Context:
    """The arguments of an artefact's function besides its settings.

    Attributes:
        lab: carries out runs and whole sweeps; finished ones are not run again.
        directory: for files of the artefact; exists.
        data: the user's data set in place of the budget's, as text such as cifar10.
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

    def data_or(self, default: str) -> str:
        """The user's data set, or else the budget's."""
        return self.data or default


@dataclass(frozen=True)
class Artefact:
    """An artefact of a paper: what is published, the function that measures it, and the checks of its claim.

    Attributes:
        basis: what its checks rest on, see `normless_papers.claims.Basis`.
        checks: of the claim, made of the `facts` that the function measured and of nothing else.
        budgets: keyword arguments of the function at each budget, and `remarks`; of `budgets.yaml` if None.
    """

    published: Published
    basis: Basis
    function: Callable[..., Evidence]
    checks: Callable[[Any], Sequence[Check]]
    budgets: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        names = {name: getattr(self.function, name, None) for name in ("__module__", "__name__", "__qualname__")}
        vars(self).update(names, __doc__=self.function.__doc__ or self.published.claim)

    def __call__(self, context: Context, **settings: Any) -> Evidence:
        """Measure."""
        return self.function(context, **settings)

    @cached_property
    def settings(self) -> Mapping[Budget, Mapping[str, Any]]:
        """Keyword arguments of the function at each budget, of the types that it is annotated with."""
        return {one: typed(self.function, self._entry[one]) for one in BUDGETS if one in self._entry}

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know to interpret any result, from `remarks` beside the budgets."""
        return tuple(self._entry.get("remarks", ()))

    @property
    def _entry(self) -> Mapping[str, Any]:
        entry = budget_table()[self.published.id] if self.budgets is None else self.budgets
        # What decides no headline is not enlarged for a card.
        return {"gpu": entry["small"], **entry} if "small" in entry else entry

    def checks_of(self, evidence: Evidence) -> tuple[Check, ...]:
        """The checks of the claim; failed ones say what is smaller than the paper's set-up. ValueError for none."""
        checks = self.checks(evidence.facts)
        if not checks:
            raise ValueError(f"The claim of {self.published.id} needs at least one check, and its function has none.")
        return qualified(checks, evidence.reduction)


class _Artefacts(Registry[Artefact]):
    """The artefacts of the five papers, imported a paper at a time, and those of others."""

    def __getitem__(self, name: str) -> Artefact:
        if name in published():
            _import_paper(published()[name].paper)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return name in published() or super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*published(), *super().__iter__()]))

    def find(self, name: str) -> Artefact:
        """The artefact of an id, FILE.py:NAME or MODULE:NAME, else UnknownArtefactError; imports only its paper."""
        if name not in self and ":" not in name:
            published_as(name)
        entry = super().find(name)
        if not isinstance(entry, Artefact):
            raise UnknownArtefactError(
                f"{name} is no artefact; put @artefact(...) above the function that measures it."
            )
        return entry


@cache
def _import_paper(paper: str) -> None:
    """Import every file in the folder of a paper."""
    package = import_module(f"normless_papers.{paper.replace('-', '_')}")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


ARTEFACTS = _Artefacts("artefact")


def artefact(
    id: str,  # noqa: A002 - what the papers' index calls it
    *,
    basis: Basis,
    checks: Callable[[Any], Sequence[Check] | Tests],
    entry: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Evidence]], Artefact]:
    """Register the function that measures an artefact, ValueError for a second one.

    Args:
        id: `PAPER/NAME`.
        basis: what the checks rest on.
        checks: of the claim, or the tests of its parts, given the function's `Evidence.facts`.
        entry: of an artefact of another paper than the five of `published.yaml` and `budgets.yaml`: a `claim`,
            `budgets` (keyword arguments by budget), and as in `published.yaml` what the paper has of `kind`, `title`,
            `where`, `setup`, `published` and `note`; read from the file's YAML namesake, by id, if None, and
            UnknownArtefactError where there is none.
    """

    def register(function: Callable[..., Evidence]) -> Artefact:
        known, budgets = published().get(id), None
        if known is None:
            own = entry or _entry_beside(function, id)
            known, budgets = Published.from_entry({"id": id, **own}), own["budgets"]
        return ARTEFACTS.register(id)(Artefact(known, basis, function, checks_by(checks), budgets))

    return register


def artefacts() -> Mapping[str, Artefact]:
    """Every artefact of the five papers by its id, in their order."""
    return MappingProxyType({name: ARTEFACTS[name] for name in published()})


artefact_of = ARTEFACTS.find


def published_of(name: str) -> Published:
    """What is published of an artefact, without importing those of the five papers; see `artefact_of`."""
    return published()[name] if name in published() else artefact_of(name).published


def _entry_beside(function: Callable[..., Any], id: str) -> Mapping[str, Any]:  # noqa: A002 - as above
    """The entry of an artefact in the YAML file of the same name as its function's."""
    path = Path(inspect.getfile(function)).with_suffix(".yaml")
    entries = read_yaml(path) if path.is_file() else {}
    if id not in entries:
        published_as(id)
    own: Mapping[str, Any] = entries[id]
    return own
