from ._predictions import BlockMoments as BlockMoments
