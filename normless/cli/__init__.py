"""The command line: ``normless COMMAND …``, and what commands of other packages share.

Nothing here imports torch: the module of a command is imported when that command is chosen.
"""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, ["Command"])
