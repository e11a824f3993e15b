"""Every artefact that measures something without training runs, carried out small: one case for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import product
from typing import Any

import pandas as pd
import pytest
import torch
from papers_helpers import assert_whole, carried_out, check_of

from normless_papers.artefact import Context, artefact_of
from normless_papers.claims.agreement import Agreement
from normless_papers.gamma.variance import _second_moment, _with_mean
from normless_papers.skipinit.appendix_c import MEAN_SQUARE

HOLDS, OPEN = frozenset({"holds"}), frozenset({"holds", "inconclusive"})
ANY = frozenset({"holds", "fails", "inconclusive"})


@dataclass(frozen=True)
class Case:
    """Settings that make an artefact small, and what it then measures.

    Attributes:
        verdicts: those that its checks may have: few draws of small networks need not decide each.
        rows: number of rows of published and measured numbers together.
        numbers: of the check whose claim has certain words, numbers by name.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    verdicts: Collection[str] = HOLDS
    rows: int | None = None
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


TINY = {"data": "correlated(image_shape=(3, 8, 8), train=64, test=8)", "batch_size": 4, "draws": 1}
# Smaller images do not make the network diverge.
IMAGES = {"data": "correlated(image_shape=(3, 16, 16))", "batch_size": 16}
DIVERGING = IMAGES | {"minibatches": 2, "points": 3, "draws": 1}
SMALL_IMAGES = {"side": 24, "examples": 8, "draws": 2}
BASIC, BOTTLENECKS = "normless:resnet(depth=18, channels=16)", "normless:resnet(depth=34, channels=8)"
TINY_BASIC = "normless:resnet(depth=18, channels=8)"

FAST = {
    "fixup/proposition-1": Case(),
    "fixup/figure-2": Case(numbers={"down-sampling": {"sets": 6}}),
    "fixup/theorem-3": Case({"depths": (8, 32), "depth": 8}),
    "fixup/theorem-4": Case(),
    "gamma/parameter-groups": Case(),
    "gamma/equation-6": Case({"draws": 2}, OPEN),
    "gamma/equation-11": Case({"model": BOTTLENECKS, "side": 64, "examples": 8, "draws": 2}, ANY),
    "gamma/equation-15": Case({"model": BASIC} | SMALL_IMAGES, OPEN),
    "gamma/equation-17": Case({"model": "normless:wide_resnet(depth=16, width=2)", "draws": 2}, OPEN),
    "gamma/equation-19": Case({"model": BASIC} | SMALL_IMAGES, OPEN),
    "gamma/equation-22": Case({"model": TINY_BASIC, "factors": (0.5, 3.0)}),
    "gamma/equation-24": Case({"model": TINY_BASIC}),
    "skipinit/batch-norm-definition": Case(),
    "skipinit/equation-1": Case(),
    "skipinit/regularized-skipinit": Case({"draws": 200}),
    "zeroinit/training-protocol": Case({"tables": 3}),
    "understanding-bn/equation-1": Case(),
    "understanding-bn/equation-2": Case({"draws": 20, "examples": 8}),
    "understanding-bn/theorem-1": Case({"size": 120, "runs": 2}),
    "understanding-bn/figure-8": Case({"size": 120, "factors": (1, 2), "runs": 3}),
    "understanding-bn/figure-9": Case({"points": 400}),
    "understanding-bn/figure-10": Case({"points": 2000}),
    "understanding-bn/figure-11": Case(),
    "understanding-bn/figure-12": Case(),
    "understanding-bn/scale-and-distribution-do-not-matter": Case({"size": 60, "factors": (1, 3), "runs": 3}),
    "understanding-bn/proposition-1": Case({"width": 5, "draws": 2, "conditions": (1.5, 3.0, 10.0)}),
    "understanding-bn/figure-5": Case(DIVERGING, ANY),
    "understanding-bn/dominating-channels": Case(TINY, ANY),
    **{f"understanding-bn/table-{number}": Case(TINY, ANY) for number in (1, 4)},
    **{f"understanding-bn/figure-{number}": Case(TINY, ANY) for number in (2, 3, 4, 7, 13, 14, 19, 20, 21, 22, 23)},
}
SLOW = {
    "fixup/equation-1": Case({"blocks": 6, "draws": 6}, OPEN),
    "skipinit/appendix-c-covariance": Case({"blocks": 2, "deep": 8}, rows=2 * 3 * 3),
    "skipinit/appendix-g-resnet50-v2": Case({"side": 32, "images": 1}),
    "zeroinit/linear-at-init": Case({"depths": (10, 40), "images": 8, "draws": 4}, ANY, rows=4),
    "understanding-bn/equation-4": Case(TINY | {"layers": (18,)}, ANY),
    "understanding-bn/figure-6": Case(DIVERGING, ANY),
    "understanding-bn/figure-18": Case(TINY | {"minibatches": 2}, ANY),
    "understanding-bn/figure-24": Case(TINY | {"factor": 64.0}, ANY),
    "understanding-bn/maximal-learning-rate": Case(TINY | {"minibatches": 2}, ANY),
    "fixup/fixup": Case(
        {"written_out": 14, "images": 2, "side": 8},
        numbers={"ResNet-110 gains": {"multipliers": 54, "biases": 218}, "54^(-1/2)": {"measured": 54**-0.5}},
    ),
    "fixup/theorem-1": Case({"depth": 20, "draws": 2}),
    "fixup/theorem-2": Case({"draws": 2, "classifiers": 60, "depths": (8, 56)}, ANY),
    "fixup/design-goal": Case({"depths": (2, 6), "width": 48, "draws": 2}, ANY),
    "fixup/multiplier-dynamics": Case({"steps": 80, "drop": 40, "draws": 2, "width": 12}, ANY),
    "skipinit/figure-2": Case({"blocks": 16}),
    "skipinit/figure-5": Case(),
    "understanding-bn/class-wise-mask": Case(TINY),
}
CASES = FAST | SLOW


# Numbers in the place of those that were measured.
WRONG: tuple[Callable[[float], float], ...] = (
    lambda x: 3 * x + 1,
    lambda x: x / 3,
    lambda x: -x - 1,
    lambda x: math.copysign(abs(x) ** 0.3, x),
    lambda x: 2 + math.sin(9e3 * x),
)


def columns_of(facts: Any) -> set[str]:
    """The columns of numbers of all tables among facts, and the names of single numbers."""
    if isinstance(facts, pd.DataFrame):
        return {str(name) for name in facts.select_dtypes("float").columns}
    named = (
        {str(key) for key, one in facts.items() if isinstance(one, float)} if isinstance(facts, Mapping) else set()
    )
    members = facts.values() if isinstance(facts, Mapping) else facts if isinstance(facts, tuple | list) else ()
    members = [getattr(facts, one.name) for one in fields(facts)] if is_dataclass(facts) else members
    return named.union(*map(columns_of, members))


def with_numbers(facts: Any, wrong: Callable[[float], float], column: str = "") -> Any:
    """Facts of the same form with other numbers, of all columns and names or one; truth values are reversed."""
    if isinstance(facts, bool):
        return not facts
    if isinstance(facts, int | float):
        return type(facts)(wrong(float(facts)))
    if isinstance(facts, pd.DataFrame):
        kept = [column] if column in facts else [] if column else facts.select_dtypes(("float", "bool")).columns
        return facts.assign(
            **{str(name): [with_numbers(one, wrong) for one in facts[name].tolist()] for name in kept}
        )
    if is_dataclass(facts) and not isinstance(facts, type):
        kept = {"tolerance"} if isinstance(facts, Agreement) else {"deviation", "n"}
        own = {one.name: getattr(facts, one.name) for one in fields(facts) if one.name not in kept}
        return replace(facts, **{name: with_numbers(one, wrong, column) for name, one in own.items()})
    if isinstance(facts, Mapping):
        numbers = (key for key, one in facts.items() if isinstance(one, int | float))
        left = {key for key in numbers if column not in ("", key)}
        return {key: one if key in left else with_numbers(one, wrong, column) for key, one in facts.items()}
    if isinstance(facts, tuple | list):
        return type(facts)(with_numbers(one, wrong, column) for one in facts)
    return facts


def assert_can_fail(name: str, facts: Any) -> None:
    """Every check that holds fails by some wrong numbers."""
    checks = artefact_of(name).checks
    verdicts: list[list[str]] = []
    for wrong, column in product(WRONG, ["", *columns_of(facts)]):
        # A rate or a size among the facts may have become one that nothing was measured at.
        with suppress(ValueError, LookupError, ArithmeticError, RuntimeWarning):
            verdicts.append([check.verdict for check in checks(with_numbers(facts, wrong, column))])
    for number, check in enumerate(checks(facts)):
        assert check.verdict != "holds" or "fails" in [row[number] for row in verdicts], check.claim


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_it_measures_what_is_published_and_draws(name: str, context: Context) -> None:
    case = CASES[name]
    evidence = carried_out(name, context, **case.settings)
    merged = assert_whole(name, evidence)
    assert [check.claim for check in evidence.checks if check.verdict not in case.verdicts] == []
    assert case.rows in (None, len(merged))
    if case.verdicts is not ANY:
        assert_can_fail(name, evidence.facts)
    for words, numbers in case.numbers.items():
        found = check_of(evidence, words).numbers
        assert {number: found[number] for number in numbers} == pytest.approx(dict(numbers))


@pytest.mark.slow
def test_the_printed_term_in_1_b_of_appendix_c_fails_at_small_batches(context: Context) -> None:
    """docs/probes.md has the same finding."""
    name, changes = "skipinit/appendix-c-batch-statistics", {"batches": (8, 300), "width": 300, "blocks": 2}
    evidence = carried_out(name, context, **changes)
    merged = assert_whole(name, evidence)
    failed = [check.claim.partition(",")[0] for check in evidence.checks if check.verdict != "holds"]
    assert failed == ["Batch size 8: μ² with its term in 1/b is 0.4035 of l"]
    small = merged[(merged["batch"] == 8) & (merged["quantity"] == MEAN_SQUARE)].iloc[0]
    assert small["value_measured"] == pytest.approx(1 / math.pi + 0.18 / 8, rel=0.05)


def test_the_mean_that_equation_11_ignores_is_what_a_stream_that_is_not_negative_keeps() -> None:
    """E[ReLU(x + f)²] against a draw of f for every x; centred x, the look-alike, have the half of the text."""
    gamma, centred = torch.tensor([0.3, 1.5]), torch.randn(2000, 2, 8, 8)
    f = gamma.view(1, 2, 1, 1) * torch.randn_like(centred)
    half = float(gamma.square().mean()) / 2
    for x, halves in ((centred, True), (centred.abs(), False)):
        drawn, formula = _second_moment(torch.relu(x + f)), (_second_moment(x) / 2 + half)
        assert _with_mean(x, gamma) == pytest.approx(drawn, rel=0.01)
        assert (formula == pytest.approx(drawn, rel=0.02)) == halves
