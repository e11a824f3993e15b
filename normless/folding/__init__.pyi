from .frozen_norms import freeze as freeze
from .inference import fuse_for_inference as fuse_for_inference
from .network import fold as fold
from .report import FoldReport as FoldReport
from .report import NormFate as NormFate
