"""The artefacts of Fixup (Zhang et al. 2019)."""

from normless_papers.fixup import baselines as baselines
from normless_papers.fixup import bounds as bounds
from normless_papers.fixup import cifar as cifar
from normless_papers.fixup import depth as depth
from normless_papers.fixup import design_goal as design_goal
from normless_papers.fixup import dynamics as dynamics
from normless_papers.fixup import homogeneity as homogeneity
from normless_papers.fixup import imagenet as imagenet
from normless_papers.fixup import method as method
from normless_papers.fixup import transformer as transformer
from normless_papers.fixup import translation as translation
from normless_papers.fixup import updates as updates
from normless_papers.fixup import variance as variance
