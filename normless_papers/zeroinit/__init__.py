"""The artefacts of ZeroInit (De & Smith 2019)."""

from normless_papers.zeroinit import ablation as ablation
from normless_papers.zeroinit import batch_sizes as batch_sizes
from normless_papers.zeroinit import depth as depth
from normless_papers.zeroinit import imagenet as imagenet
from normless_papers.zeroinit import initialization as initialization
from normless_papers.zeroinit import method as method
from normless_papers.zeroinit import training_protocol as training_protocol
from normless_papers.zeroinit import wallclock as wallclock
