"""The artefacts of ZeroInit (De & Smith 2019)."""

from normless.papers.zeroinit import ablation as ablation
from normless.papers.zeroinit import batch_sizes as batch_sizes
from normless.papers.zeroinit import depth as depth
from normless.papers.zeroinit import imagenet as imagenet
from normless.papers.zeroinit import initialization as initialization
from normless.papers.zeroinit import method as method
from normless.papers.zeroinit import protocol as protocol
from normless.papers.zeroinit import small_batches as small_batches
from normless.papers.zeroinit import wallclock as wallclock
