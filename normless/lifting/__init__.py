"""Replace operators in a module's forward code by child modules, so that edits can change them."""

from normless.errors import LiftError as LiftError
from normless.lifting.calls import followed as followed
from normless.lifting.calls import never_fuse as never_fuse
from normless.lifting.places import Place as Place
from normless.lifting.places import reads as reads
from normless.lifting.places import running_place as running_place
from normless.lifting.recording import ADDITIONS as ADDITIONS
from normless.lifting.recording import Call as Call
from normless.lifting.recording import Recorder as Recorder
from normless.lifting.rewritten import Arguments as Arguments
from normless.lifting.rewritten import Rewriter as Rewriter
