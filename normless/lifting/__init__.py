"""Replace operators in a module's forward code by child modules, so that edits can change them."""

from normless.errors import LiftError as LiftError
from normless.lifting._rewritten import (
    Arguments as Arguments,
    Rewriter as Rewriter,
    TakeArguments as TakeArguments,
    give_method as give_method,
)
