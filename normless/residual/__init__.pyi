from ._blocks import Layer as Layer, ResidualBlock as ResidualBlock, Role as Role, Unresolved as Unresolved
from ._mapping import residual_map as residual_map
from ._network import ResidualMap as ResidualMap
