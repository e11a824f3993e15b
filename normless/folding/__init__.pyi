from .frozen_norms import freeze as freeze
from .inference import fuse_for_inference as fuse_for_inference
from .network import FoldedNorm as FoldedNorm
from .network import FoldReport as FoldReport
from .network import fold as fold
