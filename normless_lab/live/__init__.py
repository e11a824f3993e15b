"""`normless watch`: the current state of a run or sweep from its files, and the local page that shows it."""

from normless.extras import require_extra

require_extra("lab", "The live page", "sqlalchemy", "matplotlib", "lightning_fabric")
