"""The five papers: every artefact by its id, carried out at a budget; published and measured numbers side by side."""

from normless.extras import require_extra

require_extra("lab", "Reproducing the papers", "scipy", "sqlalchemy", "matplotlib")
