"""The artefacts of Fixup (Zhang et al. 2019)."""

from normless.papers.fixup import baselines as baselines
from normless.papers.fixup import bounds as bounds
from normless.papers.fixup import cifar as cifar
from normless.papers.fixup import depth as depth
from normless.papers.fixup import design_goal as design_goal
from normless.papers.fixup import dynamics as dynamics
from normless.papers.fixup import homogeneity as homogeneity
from normless.papers.fixup import imagenet as imagenet
from normless.papers.fixup import imagenet_curves as imagenet_curves
from normless.papers.fixup import method as method
from normless.papers.fixup import regularized as regularized
from normless.papers.fixup import transformer as transformer
from normless.papers.fixup import translation as translation
from normless.papers.fixup import updates as updates
from normless.papers.fixup import variance as variance
