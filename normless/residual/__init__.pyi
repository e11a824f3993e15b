from .blocks import Addition as Addition
from .blocks import Layer as Layer
from .blocks import ResidualBlock as ResidualBlock
from .blocks import Role as Role
from .blocks import Unresolved as Unresolved
from .mapping import residual_map as residual_map
from .network import ResidualMap as ResidualMap
from .table import format_blocks as format_blocks
