from .frozen_norms import freeze as freeze
from .in_place import train_in_place as train_in_place
from .inference import fuse_for_inference as fuse_for_inference
from .network import FoldReport as FoldReport
from .network import NormFate as NormFate
from .network import fold as fold
