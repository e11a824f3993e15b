from ._folding import FoldReport as FoldReport, Outcome as Outcome, fold as fold
from ._inference import fuse_for_inference as fuse_for_inference
from ._maps import freeze as freeze
from ._match_statistics import RefitReport as RefitReport
from ._removal import Removal as Removal, remove_norms as remove_norms
from ._schedule import Freezing as Freezing
