"""The findings of a diagnosis as SARIF 2.1.0, which code scanning services and editors show (OASIS 2023)."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from normless._version import __version__
from normless.spec import jsonable, split_source

if TYPE_CHECKING:
    from normless.doctor import Diagnosis, Finding

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# Relative paths start at the root of the repository, where the command runs.
_ROOT = "%SRCROOT%"
# As a finding names a line of the user's code.
_LINE = re.compile(r"\bline (\d+) of ([^\s,`]+\.py)\b")


def sarif_log(model: str, scheme: str | None, diagnosis: Diagnosis, known: Collection[Finding] | None) -> Any:
    """Return a SARIF log with a result per finding (level error) and piece of advice (level note).

    A result has the qualified names of modules as logical locations. If `model` is a text FILE.py:NAME, its physical
    location is the line of code that the finding names, or else the definition of NAME; services that annotate a
    repository require one. `rank` is the severity times 100. `known` are the findings of a baseline: their
    `baselineState` is `unchanged` and that of the others `new`; with None, there is no such state.
    """
    found = [*diagnosis.findings, *diagnosis.advice]
    kinds = {one.kind: one for one in reversed(found)}
    places = _Places(model)
    results = [
        _result(one, list(kinds).index(one.kind), places)
        | ({} if known is None or one.advice else {"baselineState": "unchanged" if one in known else "new"})
        for one in found
    ]
    driver = {"name": "normless", "semanticVersion": __version__, "rules": [_rule(one) for one in kinds.values()]}
    network = model if scheme is None else f"{model} converted by {scheme}"
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"normless diagnose/{network}"},
        "invocations": [{"executionSuccessful": True}],
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(found: Finding) -> dict[str, Any]:
    return {
        "id": found.kind,
        "shortDescription": {"text": found.kind.replace("_", " ")},
        "fullDescription": {"text": found.theory},
        "help": {"text": f"{found.cure.words}."},
        "defaultConfiguration": {"level": _level(found)},
    }


def _level(found: Finding) -> str:
    return "note" if found.advice else "error"


def _result(found: Finding, rule: int, places: _Places) -> dict[str, Any]:
    logical = [{"fullyQualifiedName": name, "kind": "module"} for name in found.where]
    location = places.physical(found) | ({"logicalLocations": logical} if logical else {})
    return {
        "ruleId": found.kind,
        "ruleIndex": rule,
        "level": _level(found),
        "rank": 100.0 * found.severity,
        "message": {"text": f"{found.title} Try: {found.cure.words}."},
        "locations": [location] if location else [],
        # By this, services recognize a result whose numbers or line have changed.
        "partialFingerprints": {"normlessFinding/v1": f"{found.kind}({', '.join(found.where)})"},
        "properties": {"evidence": jsonable(dict(found.evidence)), "schemes": list(found.cure.schemes)},
    }


class _Places:
    """The files and lines that findings about a model are shown at."""

    def __init__(self, model: str) -> None:
        source, call = split_source(model)
        self._file = Path(source.removesuffix(":")) if source.endswith(".py:") else None
        self._name = call.partition("(")[0].strip()

    def physical(self, found: Finding) -> dict[str, Any]:
        """Return the physical location of a finding; empty for networks of libraries."""
        if self._file is None:
            return {}
        file, line = self._file, None
        for text in (*map(str, found.evidence.values()), found.title):
            named = _LINE.search(text)
            if named is not None and (beside := self._file.with_name(named[2])).is_file():
                file, line = beside, int(named[1])
                break
        region = {"startLine": line or _definition(file, self._name)}
        return {"physicalLocation": {"artifactLocation": _artifact(file), "region": region}}


def _artifact(file: Path) -> dict[str, str]:
    """Return the location of a file: relative to the working directory if it is below that."""
    path = file.resolve()
    here = Path.cwd()
    if path.is_relative_to(here):
        return {"uri": quote(path.relative_to(here).as_posix()), "uriBaseId": _ROOT}
    return {"uri": path.as_uri()}


def _definition(file: Path, name: str) -> int:
    """Return the line at which a file defines a function, class or variable; 1 if it imports it."""
    for node in ast.parse(file.read_bytes()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = {getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)}
        if name in names:
            return node.lineno
    return 1
