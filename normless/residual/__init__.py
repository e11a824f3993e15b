"""The residual structure of a network: which blocks it has and which layers each path of them holds."""

from normless.residual.blocks import Layer as Layer
from normless.residual.blocks import ResidualBlock as ResidualBlock
from normless.residual.blocks import ResidualMap as ResidualMap
from normless.residual.find import residual_map as residual_map
from normless.residual.stated import BlockStructure as BlockStructure
from normless.residual.stated import Structure as Structure
