"""The part of SARIF 2.1.0 that normless writes, after sections 3.13 to 3.52 of the standard (OASIS 2023)."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

ADDRESS = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
TEXT: dict[str, Any] = {"type": "string"}


def record(needed: str = "", **properties: Any) -> dict[str, Any]:
    """An object with no other properties than these."""
    return {"type": "object", "properties": properties, "required": needed.split(), "additionalProperties": False}


def listed(items: Any, **more: Any) -> dict[str, Any]:
    """A list of such items."""
    return {"type": "array", "items": items, **more}


LEVEL = {"enum": ["none", "note", "warning", "error"]}
MESSAGE = record("text", text={"type": "string", "minLength": 1})
LOCATION = record(
    physicalLocation=record(
        "artifactLocation",
        artifactLocation=record(
            uri={"type": "string", "pattern": r"^[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+$"}, uriBaseId=TEXT
        ),
        region=record(startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations=listed(record(fullyQualifiedName=TEXT, kind=TEXT), uniqueItems=True),
)
RESULT = record(
    "message",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    level=LEVEL,
    rank={"type": "number", "minimum": 0, "maximum": 100},
    message=MESSAGE,
    locations=listed(LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    baselineState={"enum": ["new", "unchanged", "updated", "absent"]},
    properties={"type": "object"},
)
ABOUT = dict.fromkeys(("shortDescription", "fullDescription", "help"), MESSAGE)
RULE = record("id", id=TEXT, **ABOUT, defaultConfiguration=record(level=LEVEL))
VERSION = {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+"}
DRIVER = record("name", name=TEXT, semanticVersion=VERSION, rules=listed(RULE, uniqueItems=True))
RUN = record(
    "tool results",
    tool=record("driver", driver=DRIVER),
    automationDetails=record(id=TEXT),
    invocations=listed(record("executionSuccessful", executionSuccessful={"type": "boolean"})),
    results=listed(RESULT),
)
RUNS = listed(RUN, minItems=1, maxItems=1)
LOG = record("$schema version runs", **{"$schema": {"const": ADDRESS}, "version": {"const": "2.1.0"}, "runs": RUNS})
SARIF = Draft202012Validator(LOG)
