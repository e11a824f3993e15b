"""The worlds of artefacts that train, or whose small runs decide nothing: if their paper were right, and if wrong."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from normless_papers.artefact import Evidence, artefact_of
from normless_papers.claims import Claim
from worlds.world import World

MODULES = (
    *("de_smith_batches", "de_smith_depth", "de_smith_methods", "fixup", "fixup_training", "gamma"),
    *("understanding_bn_probes", "understanding_bn_training"),
)
WORLDS: dict[str, World] = {}
for name in MODULES:
    WORLDS |= import_module(f"worlds.{name}").WORLDS


@cache
def checks_of(artefact: str, right: bool) -> tuple[Claim, ...]:
    """The checks of an artefact as its paper has it, or of the opposite."""
    found = WORLDS[artefact](right)
    return tuple(artefact_of(artefact).checks(found.facts if isinstance(found, Evidence) else found))
