"""`make fuzz` tries thousands of examples, other ones each time; other runs a few, always the same."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz", max_examples=10_000, derandomize=False, deadline=None, database=None, suppress_health_check=[*HealthCheck]
)
