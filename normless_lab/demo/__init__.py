"""The sweep of ``normless demo``, and the figure of the signal in its deepest networks."""

from __future__ import annotations

from pathlib import Path

DEMO = Path(__file__).with_name("demo.yaml")
