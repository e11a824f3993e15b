from ._blocks import (
    Addition as Addition,
    Layer as Layer,
    ResidualBlock as ResidualBlock,
    Role as Role,
    Unresolved as Unresolved,
)
from ._mapping import residual_map as residual_map
from ._network import ResidualMap as ResidualMap
from ._table import format_blocks as format_blocks
