"""After the suite, its tables: schemes by networks, passed or refused as they should be; what conversions survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conformance_cases import NETWORKS, SCHEME_TEXTS

_outcomes: dict[tuple[str, str], str] = {}
# Of every property and network, whether each conversion kept it.
_survivals: dict[tuple[str, str], dict[str, bool]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a scheme on a reference network after each other, since they share its conversion."""
    order: dict[Any, int] = {}
    places = []
    for place, item in enumerate(items):
        chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.path.name == "test_schemes.py" and {"scheme", "network"} <= chosen.keys():
            order.setdefault((chosen["scheme"], chosen["network"]), len(order))
            places.append((order[chosen["scheme"], chosen["network"]], place))
    sorted_items = [items[place] for _, place in sorted(places)]
    for (_, place), item in zip(places, sorted_items, strict=True):
        items[place] = item


@pytest.fixture(autouse=True)
def _pair(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Let the report of a test carry its scheme and network."""
    parameters = getattr(request.node, "callspec", None)
    if parameters is not None and {"scheme", "network"} <= parameters.params.keys():
        record_property("pair", (parameters.params["scheme"], parameters.params["network"]))
        record_property("refusal", request.node.originalname == "test_refusals")
    if parameters is not None and {"converted_by", "network"} <= parameters.params.keys():
        chosen = parameters.params
        record_property("survival", (request.node.originalname, chosen["network"], chosen["converted_by"]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties: dict[str, Any] = dict(report.user_properties)
    if "survival" in properties:
        name, network, scheme = properties["survival"]
        kept = _survivals.setdefault((name.removeprefix("test_").replace("_", " "), network), {})
        kept[scheme] = report.passed and kept.get(scheme, True)
    if "pair" not in properties:
        return
    pair = tuple(properties["pair"])
    if report.failed:
        _outcomes[pair] = "FAILED"
    elif report.when == "call" and report.passed:
        _outcomes.setdefault(pair, "refused" if properties["refusal"] else "pass")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _outcomes:
        # The reference networks come first, then those of others; what this run left out is left out.
        tried = {network: None for _, network in _outcomes}
        networks = [name for name in NETWORKS if name in tried] + [name for name in tried if name not in NETWORKS]
        schemes = [text for text in SCHEME_TEXTS if any(text == scheme for scheme, _ in _outcomes)]
        _write(terminalreporter, "schemes × networks", schemes, networks, _outcomes)
    if _survivals:
        cells = {
            key: f"{sum(kept.values())} of {len(kept)}" if all(kept.values()) else "FAILED"
            for key, kept in _survivals.items()
        }
        rows, networks = (list(dict.fromkeys(key[index] for key in cells)) for index in (0, 1))
        _write(terminalreporter, "what conversions survive × networks", rows, networks, cells)


def _write(
    reporter: pytest.TerminalReporter, title: str, rows: list[str], networks: list[str], cells: dict[Any, str]
) -> None:
    width = max(map(len, rows)) + 2
    columns = [max(len(network), 7) + 2 for network in networks]
    reporter.section(title)
    header = "".join(network.ljust(column) for network, column in zip(networks, columns, strict=True))
    reporter.write_line(" " * width + header.rstrip())
    for row in rows:
        found = [cells.get((row, network), "-") for network in networks]
        line = "".join(cell.ljust(column) for cell, column in zip(found, columns, strict=True))
        reporter.write_line(row.ljust(width) + line.rstrip())
