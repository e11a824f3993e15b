"""Findings of a diagnosis: cause, evidence, theory and cure; their texts are in `findings.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from normless.spec import jsonable

_TEXTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("findings.toml").read_text("utf-8"))

# Kinds of findings in the signal and the gradients of one pass.
OF_SIGNAL = {
    texts.get("kind", name)
    for name, texts in _TEXTS.items()
    if (_TEXTS.get(texts.get("like", ""), {}) | texts).get("signal")
}


def _named(word: str) -> dict[str, set[str]]:
    """Return by kind the kinds that its texts name under a word."""
    found: dict[str, set[str]] = {}
    for name, texts in _TEXTS.items():
        found.setdefault(texts.get("kind", name), set()).update(texts.get(word, ()))
    return found


# The kinds that a finding of a kind explains: where both are found, the consequence comes after the cause. Those of
# `explains_later` are explained where the order of layers is known, and the cause lies at an earlier one.
EXPLAINS, EXPLAINS_LATER = _named("explains"), _named("explains_later")
# Kinds that claim what trial steps refute if they fit the batch.
REFUTABLE = OF_SIGNAL | {texts.get("kind", name) for name, texts in _TEXTS.items() if texts.get("refutable")}

FindingEvidence = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Cure:
    """A repair of a finding.

    Attributes:
        words: what to do, with the call that does it.
        schemes: texts of the schemes that repair it and fit the network, the best one first; empty if no edit does.
        losses: the loss of each scheme after trial steps at its best rate; empty if no steps were made.
        settings: values for the groups of the optimizer that belong to it; `lr` is the largest rate of all groups.
        is_tried: whether trial steps were made with it; `words` says what became of the loss.
    """

    words: str
    schemes: tuple[str, ...] = ()
    losses: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_tried: bool = False


@dataclass(frozen=True)
class Finding:
    """A cause that keeps a network from training, now or later.

    Attributes:
        kind: an identifier, such as `growing_variance`.
        severity: a number from 0 to 1 by which findings are ranked.
        title: one sentence with the most important number.
        evidence: measured and predicted numbers by name.
        where: qualified names of the blocks, layers or parameters concerned.
        theory: the reason why it is a problem, with the paper.
        cure: the repair.
        advice: whether the network trains all the same.
        line: the line of the person's code at which the first of these modules is called, if it is known.
    """

    kind: str
    severity: float
    title: str
    evidence: FindingEvidence
    where: tuple[str, ...]
    theory: str
    cure: Cure
    advice: bool = False
    line: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as data for JSON."""
        data: dict[str, Any] = jsonable(asdict(self))
        return data


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        summary: the measurement in words and numbers, or the reason why it was not made.
        findings: the findings; empty if nothing is wrong.
        asked: False if the check does not apply or could not be made.
        blocks: whether its findings must be repaired before other checks can run.
        is_left_out: whether the budget did not suffice for it, or for a part of it.
    """

    name: str
    summary: str
    findings: tuple[Finding, ...] = ()
    asked: bool = True
    blocks: bool = False
    is_left_out: bool = False

    @property
    def verdict(self) -> str:
        """`wrong`, `advice`, `fine` or `not asked`."""
        if self.findings:
            return "advice" if all(finding.advice for finding in self.findings) else "wrong"
        return "fine" if self.asked else "not asked"


class NotAsked(Exception):  # noqa: N818
    """A check does not apply or cannot be made; the message is the reason."""


class OverBudget(NotAsked):
    """The steps that a diagnosis may make are used up."""


@dataclass
class ExperimentBudget:
    """The number of training steps that a diagnosis may make on copies, and those made; None is no limit.

    An experiment that has begun is finished.
    """

    most: float | None = None
    made: int = 0

    def require(self) -> None:
        """Raise OverBudget if no further experiment may begin."""
        if self.most is not None and self.made >= self.most:
            raise OverBudget(f"{self.made} of {self.most:g} steps were made; diagnose(…, budget=) allows more")

    def spend(self, steps: int) -> None:
        """Count the steps of an experiment that begins; raise OverBudget if none may begin."""
        self.require()
        self.made += steps


Steps = Generator[Finding, None, str]
Subject = TypeVar("Subject")

# What the checks of a diagnosis need, in the order in which it is there: a recorded pass without state of the pass
# before, a residual map with gradients, an optimizer, trial steps, and what all other checks have found.
STAGES = ("state", "pass", "map", "optimizer", "trial", "steps", "end", "experiments")


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """A check that can be made of an examination, or of a trained network.

    Attributes:
        steps: a generator that yields findings and returns a summary, or raises `NotAsked`.
        needs: the stage of a diagnosis in which it is made; empty for the checks of others.
        after: names of the checks of its stage whose findings it reads.
    """

    name: str
    steps: Callable[[Subject], Steps]
    needs: str = ""
    blocks: bool = False
    after: tuple[str, ...] = ()

    def __call__(self, subject: Subject) -> Check:
        """Make the check."""
        running, findings = self.steps(subject), list[Finding]()
        blocks = self.blocks
        try:
            while True:
                findings.append(next(running))
        except StopIteration as end:
            return Check(self.name, end.value, tuple(findings), blocks=blocks and bool(findings))
        except NotAsked as reason:
            is_left_out, is_asked = isinstance(reason, OverBudget), bool(findings)
            return Check(self.name, str(reason), tuple(findings), is_asked, blocks and is_asked, is_left_out)


RULES: dict[str, list[Rule[Any]]] = {stage: [] for stage in STAGES}


def check(
    name: str, *, needs: str = "", blocks: bool = False, after: tuple[str, ...] = ()
) -> Callable[[Callable[[Subject], Steps]], Rule[Subject]]:
    """Turn a generator that yields findings and returns a summary into a check, and register it if it has a stage."""

    def made(steps: Callable[[Subject], Steps]) -> Rule[Subject]:
        rule = Rule(name, steps, needs, blocks, after)
        if needs:
            RULES[needs].append(rule)
        return rule

    return made


def rules_of(stage: str) -> Iterator[Rule[Any]]:
    """Return the rules of a stage in the order of their files, each after those that it names."""
    waiting = [*RULES[stage]]
    while waiting:
        names = {rule.name for rule in waiting}
        ready = next(rule for rule in waiting if names.isdisjoint(rule.after))
        waiting.remove(ready)
        yield ready


def causes_of(own: Finding, findings: Iterable[Finding], order: Mapping[str, int] | None = None) -> list[Finding]:
    """Return the findings that explain one; `order` has the positions of places in execution."""

    def first(known: Finding) -> int:
        return min((order[place] for place in known.where if place in order), default=0) if order else 0

    return [
        cause
        for cause in findings
        if own.kind in EXPLAINS.get(cause.kind, ())
        or (own.kind in EXPLAINS_LATER.get(cause.kind, ()) and first(cause) < first(own))
    ]


def in_order(findings: Iterable[Finding], order: Mapping[str, int] | None = None) -> list[Finding]:
    """Return findings, causes before what they explain and the most severe first; advice explains nothing."""
    found = [*findings]
    wrong = [known for known in found if not known.advice]

    def steps_from_cause(own: Finding, *consequences: Finding) -> int:
        causes = (cause for cause in causes_of(own, wrong, order) if cause not in consequences)
        return max((1 + steps_from_cause(cause, own, *consequences) for cause in causes), default=0)

    return sorted(found, key=lambda known: (steps_from_cause(known), -known.severity))


def describe(kind: str, *, severity: float, title: str, theory: str, cure: str, explains: Sequence[str] = ()) -> None:
    """Add the texts of a kind of findings, as those in `findings.toml`; for rules in files of their own.

    Args:
        kind: an identifier, such as `growing_variance`.
        severity: from 0 to 1, by which findings are ranked that none explains.
        title, theory, cure: one sentence with the numbers of the evidence in braces, the reason, and the repair.
        explains: kinds that come after this one where both are found.

    Raises:
        ValueError: there is such a kind with other texts.
    """
    texts = {"severity": float(severity), "title": title, "theory": theory, "cure": cure, "explains": [*explains]}
    if _TEXTS.get(kind, texts) != texts:
        raise ValueError(f"There is a kind of findings {kind!r} with other texts: choose another name.")
    _TEXTS[kind] = texts
    EXPLAINS.setdefault(kind, set()).update(explains)


def finding(
    kind: str,
    where: Sequence[str],
    evidence: FindingEvidence,
    *,
    grade: float = 1.0,
    advice: Any = None,
    **words: Any,
) -> Finding:
    """Create a finding from the texts of its kind, formatted with its evidence and further `words`.

    A kind has a severity, or the least and the largest, between which `grade` from 0 to 1 decides. Whether it is
    advice is said by the kind unless `advice` says it.

    The word `norms` is the position of the norms in blocks, see `Examination.norms_placed`; some cures depend on it.
    The word `settings` are those of the cure.
    """
    texts = _TEXTS[kind]
    texts = _TEXTS.get(texts.get("like", ""), {}) | texts
    schemes = tuple(texts.get(f"schemes_{words.pop('norms', '')}", texts.get("schemes", ())))
    settings = words.pop("settings", texts.get("settings", {}))
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    # The network's own forward code has an empty name.
    where = tuple(name or "forward" for name in where)
    words |= {**evidence, "where": where, "place": words.get("place") or (*where, "")[0]}
    kind, title, cure = (text.format_map(words) for text in (texts.get("kind", kind), texts["title"], texts["cure"]))
    advice = bool(texts.get("advice")) if advice is None else bool(advice)
    theory = texts["theory"].format_map(words) if texts.get("formats_theory") else texts["theory"]
    least, largest = (texts["severity"],) * 2 if isinstance(texts["severity"], float) else texts["severity"]
    severity = least + min(max(grade, 0.0), 1.0) * (largest - least)
    return Finding(kind, severity, title, evidence, where, theory, Cure(cure, schemes, settings=settings), advice)
