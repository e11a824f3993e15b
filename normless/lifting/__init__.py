"""Replace operators in a module's forward code by child modules, so that edits can change them."""

from normless.errors import LiftError as LiftError
from normless.lifting.rewritten import Arguments as Arguments
from normless.lifting.rewritten import Rewriter as Rewriter
from normless.lifting.rewritten import TakeArguments as TakeArguments
