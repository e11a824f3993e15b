"""The residual structure of a network: which blocks it has and which layers each path of them holds."""

from typing import TYPE_CHECKING

from normless.lazy import lazy_names
from normless.residual.blocks import Layer as Layer
from normless.residual.blocks import ResidualBlock as ResidualBlock
from normless.residual.blocks import ResidualMap as ResidualMap
from normless.residual.blocks import Site as Site
from normless.residual.blocks import Unresolved as Unresolved
from normless.residual.find import residual_map as residual_map
from normless.residual.stated import BlockStructure as BlockStructure
from normless.residual.stated import Decoding as Decoding
from normless.residual.stated import Projections as Projections
from normless.residual.stated import Structure as Structure

if TYPE_CHECKING:
    from normless.residual.trace import traced_map as traced_map

__all__ = [
    "BlockStructure",
    "Decoding",
    "Layer",
    "Projections",
    "ResidualBlock",
    "ResidualMap",
    "Site",
    "Structure",
    "Unresolved",
    "residual_map",
    "traced_map",
]

# Tracing needs torch.export, which takes a second to import.
__getattr__, __dir__ = lazy_names(__name__, {"traced_map": "normless.residual.trace"})
