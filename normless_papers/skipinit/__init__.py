"""The artefacts of SkipInit (De & Smith 2020)."""

from normless_papers.skipinit import batch_sizes as batch_sizes
from normless_papers.skipinit import batch_statistics as batch_statistics
from normless_papers.skipinit import covariances as covariances
from normless_papers.skipinit import depth as depth
from normless_papers.skipinit import initialization as initialization
from normless_papers.skipinit import multiplier as multiplier
from normless_papers.skipinit import normalization as normalization
from normless_papers.skipinit import reference_code as reference_code
from normless_papers.skipinit import regularized as regularized
from normless_papers.skipinit import scalar_bias as scalar_bias
