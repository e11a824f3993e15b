from ._folding import FoldReport as FoldReport
from ._inference import fuse_for_inference as fuse_for_inference
from ._match_statistics import TrainedReport as TrainedReport
from ._removal import Removal as Removal
