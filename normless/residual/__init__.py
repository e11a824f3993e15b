"""The residual structure of a network: its blocks and the layers on each of their paths."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.residual.blocks import Addition as Addition
    from normless.residual.blocks import Layer as Layer
    from normless.residual.blocks import ResidualBlock as ResidualBlock
    from normless.residual.blocks import Role as Role
    from normless.residual.blocks import Unresolved as Unresolved
    from normless.residual.mapping import residual_map as residual_map
    from normless.residual.network import ResidualMap as ResidualMap
    from normless.residual.table import format_blocks as format_blocks
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
