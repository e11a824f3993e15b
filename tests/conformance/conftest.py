"""After the suite, one table: schemes by networks, and whether each pair passed or is refused as it should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conformance_cases import NETWORKS, SCHEME_TEXTS

_outcomes: dict[tuple[str, str], str] = {}


@pytest.fixture(autouse=True)
def _pair(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Let the report of a test carry its scheme and network."""
    parameters = getattr(request.node, "callspec", None)
    if parameters is not None and {"scheme", "network"} <= parameters.params.keys():
        record_property("pair", (parameters.params["scheme"], parameters.params["network"]))
        record_property("refusal", request.node.originalname == "test_refusals")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties: dict[str, Any] = dict(report.user_properties)
    if "pair" not in properties:
        return
    pair = tuple(properties["pair"])
    if report.failed:
        _outcomes[pair] = "FAILED"
    elif report.when == "call" and report.passed:
        _outcomes.setdefault(pair, "refused" if properties["refusal"] else "pass")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _outcomes:
        return
    width = max(map(len, SCHEME_TEXTS)) + 2
    columns = [max(len(network), 7) + 2 for network in NETWORKS]
    terminalreporter.section("schemes × networks")
    header = "".join(network.ljust(column) for network, column in zip(NETWORKS, columns, strict=True))
    terminalreporter.write_line(" " * width + header.rstrip())
    for scheme in SCHEME_TEXTS:
        cells = [_outcomes.get((scheme, network), "-") for network in NETWORKS]
        row = "".join(cell.ljust(column) for cell, column in zip(cells, columns, strict=True))
        terminalreporter.write_line(scheme.ljust(width) + row.rstrip())
