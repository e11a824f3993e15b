"""The five papers: every artefact by its id, carried out at a budget; what is published beside what is measured."""

from normless.extras import require_extra

require_extra("papers", "Reproducing the papers", "scipy", "sqlalchemy", "matplotlib")
