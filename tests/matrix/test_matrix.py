"""Gallery × schemes × what holds for all: a sample by a fixed design in `make test`, all in `make test-slow`."""

from __future__ import annotations

from functools import lru_cache

import pytest
from gallery import ROWS, zoo
from torch import nn

from matrix import design, refusals, row_properties
from matrix.case import Case, Subject
from matrix.properties import PROPERTIES, property_names
from matrix.scheme_facts import SCHEMES
from normless.errors import NormlessError

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # remarks of conversions, and those of the compiler and the exporter
]
SAMPLE, REFUSALS = design.sample(), design.sampled_refusals()


@lru_cache(maxsize=2)
def subject(name: str) -> Subject:
    """The network of a row, mapped once for the tests that follow one another."""
    return Subject(ROWS[name])


def marked(names: list[str], marker: str) -> list[object]:
    """Parameters of tests with a marker."""
    return [pytest.param(name, marks=getattr(pytest.mark, marker)) for name in names]


def check(case: Case, properties: list[str]) -> None:
    """A conversion is whole and has the properties, or is refused for the reason that is listed."""
    row, text, outcome = case.row, case.scheme.text, case.outcome
    why = refusals.listed()[text].get(row.name)
    if isinstance(outcome, NormlessError):
        assert refusals.reason(outcome) == why, f"{text} refuses {row.name}: {outcome}"
        assert refusals.named_module(outcome, case), f"the refusal names no module: {outcome}"
        assert str(outcome).endswith((".", ")")), outcome
        assert row.refused.get(case.scheme.name, "") in str(outcome)
        return
    assert why is None, f"{text} does not refuse {row.name}, though {why}"
    assert text not in row.refused, f"{row.name} states that {text} refuses it"
    assert isinstance(outcome, type(case.subject.model))
    wrong = []
    for name in properties:
        try:
            PROPERTIES[name][0](case)
        except Exception as error:  # all properties are reported, not the first that fails
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join([f"{row.name} by {text}", *wrong])


@pytest.mark.parametrize("name", design.QUICK)
def test_a_row_is_as_stated_and_converts_or_is_refused(name: str) -> None:
    """The map and the snapshot of a row, the properties of one conversion, and refusals."""
    one = subject(name)
    for quick in row_properties.QUICK:
        quick(one)
    scheme, properties = SAMPLE[name]
    check(Case(one, SCHEMES[scheme]), [*properties])
    for refusing in REFUSALS[name]:
        check(Case(one, SCHEMES[refusing]), [])


def test_the_sample_meets_every_row_scheme_and_property() -> None:
    assert {*SAMPLE} == {*design.QUICK}
    assert {scheme for scheme, _ in SAMPLE.values()} == {*SCHEMES}
    pairs = {(scheme, name) for scheme, properties in SAMPLE.values() for name in properties}
    assert {name for _, name in pairs} == {*property_names(slow=False)}


@pytest.mark.slow
@pytest.mark.parametrize("name", design.SMALL + design.LARGE)
def test_a_row_before_any_scheme(name: str) -> None:
    one = subject(name)
    for holds in row_properties.QUICK + row_properties.SLOW:
        holds(one)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scheme"), design.whole())
def test_every_row_by_every_scheme(name: str, scheme: str) -> None:
    check(Case(subject(name), SCHEMES[scheme]), [*property_names(slow=False)])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scheme"), design.compiled())
def test_compiler_and_exporters(name: str, scheme: str) -> None:
    check(Case(subject(name), SCHEMES[scheme]), [*property_names(slow=True)])


@pytest.mark.parametrize("name", [*design.QUICK_ZOO, *marked([*design.ZOO], "zoo")])
def test_a_network_of_the_zoo(name: str) -> None:
    """The map in both modes and what calls leave alone; skipinit converts and trains, or has no block to convert."""
    one = Subject(ROWS[name])
    row_properties.map_is_as_stated(one)
    row_properties.both_modes_show_the_same_blocks(one)
    row_properties.fold_is_the_network_in_evaluation(one)
    case = Case(one, SCHEMES["skipinit"])
    if isinstance(case.outcome, nn.Module):
        check(case, ["every_parameter_learns", "branches_are_shut_at_the_start", "nothing_of_the_original_changes"])
    else:
        assert one.row.refused.get("skipinit", "it has no residual block") in str(case.outcome)


@pytest.mark.zoo
def test_every_architecture_module_of_timm_has_a_network() -> None:
    """A newer timm has more: add a network of each to the table, with its blocks counted."""
    timm = pytest.importorskip("timm")
    assert set(timm.list_modules()) == {*zoo.MODULES.values()}
