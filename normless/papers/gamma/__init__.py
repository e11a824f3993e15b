"""Kim et al., Guidelines for the Regularization of Gammas: every artefact."""

from normless.papers.gamma import accumulation as accumulation
from normless.papers.gamma import classification as classification
from normless.papers.gamma import first_update as first_update
from normless.papers.gamma import groups as groups
from normless.papers.gamma import guidelines as guidelines
from normless.papers.gamma import half_accumulation as half_accumulation
from normless.papers.gamma import presets as presets
from normless.papers.gamma import rate as rate
from normless.papers.gamma import resets as resets
from normless.papers.gamma import roles as roles
from normless.papers.gamma import stream_of_trained as stream_of_trained
from normless.papers.gamma import strengths as strengths
from normless.papers.gamma import transformer_guidelines as transformer_guidelines
from normless.papers.gamma import translation as translation
