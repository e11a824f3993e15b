from .frozen_norms import freeze as freeze
from .inference import fuse_for_inference as fuse_for_inference
from .network import FoldReport as FoldReport
from .network import NormFate as NormFate
from .network import fold as fold
