from .frozen_norms import freeze as freeze
from .network import fold as fold
from .report import FoldReport as FoldReport
from .report import NormFate as NormFate
