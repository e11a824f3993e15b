"""Kim et al., Guidelines for the Regularization of Gammas: every artefact."""

from normless_papers.gamma import accumulation as accumulation
from normless_papers.gamma import half_accumulation as half_accumulation
from normless_papers.gamma import image_guidelines as image_guidelines
from normless_papers.gamma import parameter_groups as parameter_groups
from normless_papers.gamma import rate as rate
from normless_papers.gamma import resets as resets
from normless_papers.gamma import stream_of_trained as stream_of_trained
from normless_papers.gamma import transformer_guidelines as transformer_guidelines
