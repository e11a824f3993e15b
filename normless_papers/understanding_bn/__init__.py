"""The artefacts of Understanding Batch Normalization (Bjorck et al. 2018)."""

from normless_papers.understanding_bn import achievable as achievable
from normless_papers.understanding_bn import channels as channels
from normless_papers.understanding_bn import classes as classes
from normless_papers.understanding_bn import conditioning as conditioning
from normless_papers.understanding_bn import definition as definition
from normless_papers.understanding_bn import densities as densities
from normless_papers.understanding_bn import divergence as divergence
from normless_papers.understanding_bn import gradient_sums as gradient_sums
from normless_papers.understanding_bn import histograms as histograms
from normless_papers.understanding_bn import linear_networks as linear_networks
from normless_papers.understanding_bn import logits as logits
from normless_papers.understanding_bn import noise as noise
from normless_papers.understanding_bn import parameters as parameters
from normless_papers.understanding_bn import parts_runs as parts_runs
from normless_papers.understanding_bn import random_matrices as random_matrices
from normless_papers.understanding_bn import reference_runs as reference_runs
from normless_papers.understanding_bn import scales as scales
from normless_papers.understanding_bn import search as search
from normless_papers.understanding_bn import steps as steps
