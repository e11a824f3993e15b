"""The headline claims, from `headline.yaml`: the checks that decide each, its verdict, effect and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from normless_lab.process import read_yaml
from normless_papers.budgets import BUDGETS, Budget
from normless_papers.claims import Check
from normless_papers.results.reproduction import Reproduction

Outcome = Literal["refuted", "holds", "open"]
# Where we disagree comes first.
OUTCOMES: tuple[Outcome, ...] = ("refuted", "holds", "open")
# The verdict of a check that an outcome is shown as.
SHOWN_AS = MappingProxyType({"refuted": "fails", "holds": "holds", "open": "inconclusive"})
# Smoke decides no headline.
DECIDING: tuple[Budget, ...] = tuple(one for one in BUDGETS if one != "smoke")


@dataclass(frozen=True)
class Headline:
    """A claim of a paper that is decided by some checks.

    Attributes:
        printed: the paper's number, in words.
        small: the set-up at the small budget.
        checks: by artefact, how the sentences of the checks that decide it begin, as patterns of `fnmatch`; the first
            is the effect shown.
        refuted_if: what refutes it, as its design has it.
        to_decide: what would decide it where it is open, as its design has it; empty if that says nothing.
        note: what else to know; empty if nothing.
    """

    claim: str
    printed: str
    small: str
    checks: Mapping[str, Sequence[str]]
    refuted_if: str
    to_decide: str = ""
    note: str = ""

    @property
    def paper(self) -> str:
        """The key of the paper of its first artefact."""
        return next(iter(self.checks)).partition("/")[0]


@dataclass(frozen=True)
class Decided:
    """A headline with what was measured.

    Attributes:
        results: of its artefacts, those that were carried out, at the largest budget of each.
        checks: those that decide it, in its order.
        missing: artefacts that were not carried out, or ended in an error.
    """

    headline: Headline
    results: Sequence[Reproduction]
    checks: Sequence[Check]
    missing: Sequence[str]

    @property
    def outcome(self) -> Outcome:
        """Refuted if a check fails, holds if all that are named do, else open."""
        verdicts = {one.verdict for one in self.checks}
        return "refuted" if "fails" in verdicts else "holds" if verdicts == {"holds"} and not self.missing else "open"

    @property
    def deciding(self) -> Check | None:
        """The check whose effect is shown: the first that fails, or else that is undecided, or else the first."""
        order = ("fails", "inconclusive", "holds")
        return min(self.checks, key=lambda one: order.index(one.verdict), default=None)

    @property
    def shown(self) -> Reproduction | None:
        """The result whose figure is shown: that of the check whose effect is."""
        return next((one for one in self.results if self.deciding in one.checks), next(iter(self.results), None))

    @property
    def why(self) -> str:
        """The verdict in words, with the sentence of the check that decides it."""
        holding = sum(one.verdict == "holds" for one in self.checks)
        words = {"refuted": "Fails: ", "holds": "", "open": "Undecided: "}
        said = [f"{holding} of {len(self.checks)} checks hold."] if self.checks else []
        if self.outcome != "holds" and self.deciding and self.deciding.verdict != "holds":
            said.append(words[self.outcome] + _sentence(self.deciding))
        said += [f"Not carried out: {', '.join(self.missing)}."] if self.missing else []
        said.append(self.headline.small if self.budget == "small" else f"At the {self.budget} budget.")
        return " ".join([*said, self.headline.note]).strip()

    @property
    def budget(self) -> Budget:
        """The largest at which one of its artefacts was carried out, or that to begin with."""
        return max((one.budget for one in self.results), key=DECIDING.index, default=DECIDING[0])

    @property
    def command(self) -> str:
        """That repeats it."""
        return f"normless reproduce {' '.join(self.headline.checks)} --budget {self.budget}"

    @property
    def runs(self) -> set[str]:
        """The hashes of its training runs."""
        return {name for one in self.results for name in one.runs}


@cache
def headlines() -> tuple[Headline, ...]:
    """Every headline claim, in the order of the file."""
    return tuple(Headline(**entry) for entry in read_yaml(Path(__file__).with_suffix(".yaml")))


def headline_artefacts() -> list[str]:
    """The ids of all artefacts that a headline rests on, in its order."""
    return list(dict.fromkeys(name for one in headlines() for name in one.checks))


def decide(result_of: Callable[[str, Budget], Reproduction | None]) -> list[Decided]:
    """Every headline with its results, each at the largest budget that is there; those refuted first, then held."""
    decided = [_decided(one, result_of) for one in headlines()]
    return sorted(decided, key=lambda one: OUTCOMES.index(one.outcome))


def _decided(headline: Headline, result_of: Callable[[str, Budget], Reproduction | None]) -> Decided:
    results, checks, missing = [], [], []
    for name, starts in headline.checks.items():
        there = (result_of(name, budget) for budget in reversed(DECIDING))
        result = next((one for one in there if one is not None and not one.error), None)
        if result is None:
            missing.append(name)
            continue
        results.append(result)
        checks += [check for start in starts for check in result.checks if fnmatchcase(check.claim, f"{start}*")]
    return Decided(headline, results, list({one.claim: one for one in checks}.values()), missing)


def _sentence(one: Check) -> str:
    """A check's claim without what was added on the set-up."""
    return one.claim.partition(" Smaller than ")[0].partition(" Not asked")[0]
