"""The headline claims, from `headline.yaml`: checks, verdict, effect and cost of each, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from normless_lab.process import read_yaml
from normless_lab.sweeps import RunState
from normless_papers.budgets import BUDGETS, Budget
from normless_papers.claims import Claim, Verdict, conclusion_of
from normless_papers.pages.tables import (
    ASPECTS,
    NOTHING,
    as_text,
    counted,
    deciding_of,
    effect_of,
    found_by,
    heading_of,
    row_of,
)
from normless_papers.published import PAPERS
from normless_papers.results.reproduce import laboratory_in
from normless_papers.results.reproduction import Reproduction, load

HeadlineOutcome = Literal["contradicted", "reproduced", "not seen here", "not run"]
# In the order of the table: disagreement comes first.
OUTCOMES: tuple[HeadlineOutcome, ...] = get_args(HeadlineOutcome)
_ENDED: Mapping[Verdict, str] = {"fails": "fail", "inconclusive": "are undecided", "holds": "hold"}
# Smoke decides no headline.
DECIDING: tuple[Budget, ...] = tuple(budget for budget in BUDGETS if budget != "smoke")


@dataclass(frozen=True)
class Headline:
    """A claim of a paper and the checks that decide it.

    Attributes:
        printed: the paper's number, in words.
        checks: the beginnings of the claims of these checks by artefact, as patterns of `fnmatch`; the first is the
            effect shown.
        contradicted_if: the condition for a contradiction in its design, in the paper's set-up.
        to_decide: what would decide it besides the runs of a card; empty if the design does not say.
        minutes: expected of one H100 for its runs at the budget of a card, computed from them by
            `normless_papers.planning.plan.claim_minutes`; None if it has none.
        note: a further remark; may be empty.
    """

    claim: str
    printed: str
    checks: Mapping[str, Sequence[str]]
    contradicted_if: str
    to_decide: str = ""
    note: str = ""
    minutes: int | None = None

    @property
    def paper(self) -> str:
        """The key of the paper of its first artefact."""
        return next(iter(self.checks)).partition("/")[0]

    @property
    def anchor(self) -> str:
        """Its id on its paper's page: its number in the file, which no verdict changes."""
        return f"claim-{headlines().index(self) + 1}"


@dataclass(frozen=True)
class Decided:
    """A headline and its decision.

    Attributes:
        results: the results of its artefacts, each at its largest budget.
        checks: the checks that decide it, in its order.
        missing: artefacts that were not carried out, or ended in an error.
    """

    headline: Headline
    results: Sequence[Reproduction]
    checks: Sequence[Claim]
    missing: Sequence[str]

    @property
    def outcome(self) -> HeadlineOutcome:
        """The verdict by the named checks; a claim of which an artefact is missing is not reproduced."""
        if not self.results:
            return "not run"
        named = [replace(check, of="shape") for check in self.checks]
        outcome = conclusion_of(named, "shape", decisive=not any(result.obstacle for result in self.results))
        # No headline rests on a formula.
        assert outcome != "implemented"
        return "not seen here" if outcome is None or (self.missing and outcome == "reproduced") else outcome

    @property
    def whole(self) -> str:
        """The verdicts on the whole artefacts."""
        parts = [f"{result.id}: {result.verdicts}" for result in self.results]
        return "; ".join([*parts, *(f"{name}: not run" for name in self.missing)])

    @property
    def demonstrates(self) -> bool:
        """Whether one of its results does; see `Reproduction.demonstrates`."""
        return any(result.demonstrates for result in self.results)

    @property
    def left_out(self) -> Sequence[Claim]:
        """The checks of its artefacts that it does not name, premises aside."""
        named = {check.claim for check in self.checks}
        others = (check for result in self.results for check in result.checks if check.of != "premise")
        return [check for check in others if check.claim not in named]

    @property
    def distance(self) -> tuple[str, str, str, str]:
        """How data, network, length and seeds differ from the paper's: that of the result with the deciding check."""
        if not self.results:
            return (NOTHING,) * 4
        place = self.places[0]
        return next(result.distance.columns for result in self.results if (result.id, result.budget) == place)

    @property
    def deciding(self) -> Claim | None:
        """The check whose effect is shown; see `deciding_of`."""
        return deciding_of(self.checks)

    @property
    def places(self) -> list[tuple[str, str]]:
        """The id and the budget of each result, that of the deciding check first."""
        places = [(result.id, result.budget) for result in self.results]
        deciding = {(result.id, result.budget) for result in self.results if self.deciding in result.checks}
        return sorted(places, key=lambda place: place not in deciding)

    @property
    def ours(self) -> str:
        """The effect that decides, in words."""
        return effect_of(self.deciding) if self.deciding else NOTHING

    @property
    def why(self) -> str:
        """The verdict in words: how many checks hold, the claim of the one that decides, and what is left out."""
        parts = [found_by(self.checks)] if self.checks else []
        if self.left_out:
            counts = Counter(check.verdict for check in self.left_out)
            listed = ", ".join(f"{counts[name]} {_ENDED[name]}" for name in _ENDED if counts[name])
            parts.append(f"Left out of {len(self.left_out)} further checks of the artefacts: {listed}.")
        parts += [f"Not run: {', '.join(self.missing)}."] if self.missing else []
        minutes, other = self.headline.minutes, self.headline.to_decide
        smaller = minutes is None or BUDGETS.index(self.budget) < BUDGETS.index("gpu")
        if not self.results or (self.demonstrates and smaller):
            parts.append(f"Not run at the paper's kind; {other if minutes is None else f'{minutes} min on an H100'}.")
        return " ".join([*parts, self.headline.note if self.results else ""]).strip()

    @property
    def budget(self) -> Budget:
        """The largest budget of its results; without results the smallest that decides."""
        return max((result.budget for result in self.results), key=DECIDING.index, default=DECIDING[0])

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return f"normless reproduce {' '.join(self.headline.checks)} --budget {self.budget}"

    @property
    def runs(self) -> set[str]:
        """The hashes of its training runs."""
        return {name for result in self.results for name in result.runs}


@cache
def headlines() -> tuple[Headline, ...]:
    """Return every headline claim, in the order of the file."""
    return tuple(Headline(**entry) for entry in read_yaml(Path(__file__).with_suffix(".yaml")))


def headline_artefacts() -> list[str]:
    """Return the ids of all artefacts that a headline rests on."""
    return list(dict.fromkeys(name for headline in headlines() for name in headline.checks))


def decide(result_of: Callable[[str, Budget], Reproduction | None]) -> list[Decided]:
    """Decide every headline by results at the largest budget that there is.

    They are in the order of `OUTCOMES`, those with the paper's kind of data and network first.
    """
    decided = [_decided(headline, result_of) for headline in headlines()]
    return sorted(decided, key=lambda row: (OUTCOMES.index(row.outcome), row.demonstrates))


def _decided(headline: Headline, result_of: Callable[[str, Budget], Reproduction | None]) -> Decided:
    results, checks, missing = [], [], []
    for name, starts in headline.checks.items():
        found = (result_of(name, budget) for budget in reversed(DECIDING))
        result = next((result for result in found if result is not None and not result.error), None)
        if result is None:
            missing.append(name)
            continue
        results.append(result)
        checks += [check for start in starts for check in result.checks if fnmatchcase(check.claim, f"{start}*")]
    return Decided(headline, results, list({check.claim: check for check in checks}.values()), missing)


_SECONDS_AN_HOUR = 3600
_INTRODUCTION = """# The headline claims

<!-- Written by normless report; do not edit. -->
Fifteen claims of five papers, each decided by the checks that its design names ([`decisive.md`](decisive.md)). A
verdict is about the set-up in which it was measured, whose distance from the paper's is in four columns.
*Reproduced*: all named checks hold there. *Contradicted*: one fails, data and network are of the paper's kind, and
the control reached what it reaches when trained on. *Not seen here*: everything else. A *demonstration* has other
data or another network than the paper, such as scikit-learn's digits: it shows that the machinery works on two
cores, and says nothing about the paper. "Ours" is the effect that decides, with its 95 % interval. The verdict on
the whole artefact stands below that on the claim. Core-hours are those of the training runs. Their rows are in
[`runs.parquet`](runs.parquet), from which `normless report --from docs/reproduction/runs.parquet` makes this table
and [the pages with the figures](claims.html) without training. `make evidence` repeats everything, and resumes if
it was interrupted.
"""


def decided_in(out: Path) -> list[Decided]:
    """Decide every headline by a folder of results; none if no artefact of a headline was carried out."""
    decided = decide(lambda name, budget: load(out, name, budget))
    return decided if any(row.results for row in decided) else []


def front_page_of(out: Path) -> str:
    """Return the table of the headline claims of a folder of results, as Markdown."""
    decided = decide(lambda name, budget: load(out, name, budget))
    with laboratory_in(out) as laboratory:
        rows = [_markdown(place, row, laboratory.state) for place, row in enumerate(decided, 1)]
    counts = counted({name: [row.demonstrates for row in decided if row.outcome == name] for name in OUTCOMES})
    names = ("", "claim", "paper", "ours", "verdict", *ASPECTS, "runs", "core-hours", "why", "repeat")
    heading = heading_of(names, right=("", "runs", "core-hours"))
    return "\n".join([_INTRODUCTION, f"Of {len(decided)} claims: {counts}.", "", *heading, *rows, ""])


def _markdown(place: int, row: Decided, state: RunState) -> str:
    headline = row.headline
    hours = sum(run.seconds for run in state.read(row.runs).values()) / _SECONDS_AN_HOUR
    cost = [str(len(row.runs)), f"{hours:.2f}"] if row.runs else [NOTHING, NOTHING]
    authors = PAPERS[headline.paper].partition(",")[0]
    details = f" ([details]({headline.paper}.html#{headline.anchor}))" if row.results else ""
    verdict = f"**{row.outcome}**{', a demonstration' if row.demonstrates else ''}<br>{as_text(row.whole)}"
    distance = map(as_text, row.distance)
    cells = [f"{headline.claim} ({authors})", headline.printed, f"{as_text(row.ours)}{details}", verdict, *distance]
    return row_of([str(place), *cells, *cost, as_text(row.why), f"`{row.command}`"])
