"""The open table of artefacts: for each id its published claim, the function that measures it, and its checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from normless.errors import NormlessError
from normless.registry import Registry
from normless_papers.budgets import BUDGETS as BUDGETS, Aspect, Budget as Budget, aspects_of, typed
from normless_papers.claims import Basis, Claim, Tests, checks_by, qualified
from normless_papers.claims.declared import declared
from normless_papers.context import Context as Context
from normless_papers.evidence import Evidence as Evidence
from normless_papers.published import Published, UnknownArtefactError, entries_of, published, published_as

if TYPE_CHECKING:
    from normless_lab.sweeps import Laboratory
    from normless_papers.experiments.effort import TrainingSweeps
    from normless_papers.experiments.runs import Runs

# One training, or several by name.
Trainings: TypeAlias = "TrainingSweeps | Mapping[str, TrainingSweeps]"


class MissingRunsError(NormlessError):
    """Some runs of an artefact are not finished, and none are to be trained."""


@dataclass(frozen=True)
class Artefact:
    """An artefact of a paper: its published claim, what it trains, the function that measures it, and the checks.

    Attributes:
        basis: what its checks rest on, see `normless_papers.claims.Basis`.
        function: measures it, given the context, its finished runs if it trains any, and its settings.
        checks: of the claim, from the `facts` that the function measured and nothing else.
        trains: what it trains in a context at some settings; None if it trains nothing.
    """

    published: Published
    basis: Basis
    function: Callable[..., Evidence]
    checks: Callable[[Any], Sequence[Claim]]
    trains: Callable[..., Trainings] | None = None

    def __post_init__(self) -> None:
        names = {name: getattr(self.function, name, None) for name in ("__module__", "__name__", "__qualname__")}
        vars(self).update(names, __doc__=self.function.__doc__ or self.published.claim)

    def trainings(self, context: Context, **changes: Any) -> dict[str, TrainingSweeps]:
        """Return what it trains by name, at the settings of the context's budget, some of them changed."""
        if self.trains is None:
            return {}
        trainings = self.trains(context, **{**self.settings[context.budget], **changes})
        return dict(trainings) if isinstance(trainings, Mapping) else {"": trainings}

    def runs(
        self, context: Context, laboratory: Laboratory, *, missing: bool = True, **changes: Any
    ) -> dict[str, Runs]:
        """Return its runs by the names of `trainings`; those that are `missing` are trained.

        MissingRunsError if there are missing runs that are not to be trained.
        """
        # Most artefacts train nothing, and need no laboratory.
        from normless_papers.experiments.runs import carry_out, read

        trainings = self.trainings(context, **changes)
        if missing:
            return {name: carry_out(laboratory, training) for name, training in trainings.items()}
        found = {name: read(laboratory, training) for name, training in trainings.items()}
        if absent := sum(runs.missing for runs in found.values()):
            raise MissingRunsError(f"{absent} runs of {self.published.id} are missing.")
        return found

    def __call__(self, context: Context, runs: Mapping[str, Runs], /, **changes: Any) -> Evidence:
        """Call the function with its runs and the settings of the context's budget, some of them changed."""
        settings = {**self.settings[context.budget], **changes}
        if self.trains is None:
            return self.function(context, **settings)
        return self.function(context, runs[""] if [*runs] == [""] else runs, **settings)

    @cached_property
    def settings(self) -> Mapping[Budget, Mapping[str, Any]]:
        """Keyword arguments of the function at each budget, in the types of its annotations."""
        budgets = self.published.budgets
        if "small" in budgets:
            # Only some artefacts have designs for the campaign or are enlarged for a card.
            budgets = {**dict.fromkeys(("cpu", "deep", "gpu"), budgets["small"]), **budgets}
        return {budget: typed(self.function, budgets[budget]) for budget in BUDGETS if budget in budgets}

    @property
    def aspects(self) -> dict[str, Aspect]:
        """What its settings decide, as annotated."""
        return aspects_of(self.function)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that are printed with every result, from `remarks` beside the budgets."""
        return tuple(self.published.budgets.get("remarks", ()))

    def checks_of(self, evidence: Evidence) -> tuple[Claim, ...]:
        """Check the claim; failed checks state what is smaller than the paper's set-up. ValueError for no checks."""
        checks = self.checks(evidence.facts)
        if not checks:
            raise ValueError(f"The claim of {self.published.id} needs at least one check, and its function has none.")
        return qualified((*checks, *evidence.premises), evidence.reduction)


class _Artefacts(Registry[Artefact]):
    """The artefacts of the five papers, imported a paper at a time, and those registered by other packages."""

    def __getitem__(self, name: str) -> Artefact:
        if name in published():
            _import_paper(published()[name].paper)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return name in published() or super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*published(), *super().__iter__()]))

    def find(self, name: str) -> Artefact:
        """Return the artefact of an id, FILE.py:NAME or MODULE:NAME, importing only its paper.

        UnknownArtefactError if there is none.
        """
        if name not in self and ":" not in name:
            published_as(name)
        entry = super().find(name)
        if not isinstance(entry, Artefact):
            raise UnknownArtefactError(
                f"{name} is not an artefact; put @artefact(...) above the function that measures it."
            )
        return entry


@cache
def _import_paper(paper: str) -> None:
    """Import every module in the folder of a paper."""
    package = import_module(f"normless_papers.{paper.replace('-', '_')}")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


ARTEFACTS = _Artefacts("artefact")


def artefact(
    id: str,  # noqa: A002 - the papers' index uses this name
    *,
    basis: Basis,
    checks: Callable[[Any], Sequence[Claim] | Tests] | None = None,
    trains: Callable[..., Trainings] | None = None,
) -> Callable[[Callable[..., Evidence]], Artefact]:
    """Register the function that measures an artefact.

    The claim, the published numbers and the budgets are the id's entry in the YAML file of the same name beside the
    function's file.

    Args:
        id: `PAPER/NAME`.
        basis: what the checks rest on.
        checks: returns checks of the claim, or tests by claim, given the function's `Evidence.facts`; if None, they
            are those of the entry's `claims`.
        trains: returns what is trained, one `TrainingSweeps` or several by name, given a context and the settings;
            the function then takes its `Runs`, or these by name, after the context.

    Raises:
        UnknownArtefactError: the YAML file has no entry of this id.
        ValueError: the id is already registered.
    """

    def register(function: Callable[..., Evidence]) -> Artefact:
        entry = published().get(id) or _published_beside(function, id)
        made = partial(declared, entry.claims) if checks is None else checks_by(checks)
        return ARTEFACTS.register(id)(Artefact(entry, basis, function, made, trains))

    return register


def artefacts() -> Mapping[str, Artefact]:
    """Return every artefact of the five papers by its id, in the order of `published`."""
    return MappingProxyType({name: ARTEFACTS[name] for name in published()})


artefact_of = ARTEFACTS.find


def published_of(name: str) -> Published:
    """Return the published entry of an artefact, without importing those of the five papers; see `artefact_of`."""
    return published()[name] if name in published() else artefact_of(name).published


def _published_beside(function: Callable[..., Any], id: str) -> Published:  # noqa: A002 - as above
    """Read the entry of an artefact from the YAML file of the same name as the function's file."""
    path = Path(inspect.getfile(function)).with_suffix(".yaml")
    entries = entries_of(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return entries[id] if id in entries else published_as(id)
