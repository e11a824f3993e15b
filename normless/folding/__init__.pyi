from .frozen_norms import freeze as freeze
from .network import FoldReport as FoldReport
from .network import NormFate as NormFate
from .network import fold as fold
