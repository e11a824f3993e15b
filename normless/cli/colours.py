"""The colours of the outcomes of runs on a terminal."""

from __future__ import annotations

from types import MappingProxyType

OUTCOME_COLOURS = MappingProxyType(
    {
        "running": "cyan",
        "trained": "green",
        "untrained": "yellow",
        "chance": "yellow",
        "diverged": "red",
        "failed": "magenta",
    }
)
