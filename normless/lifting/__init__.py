"""Operators in a module's forward code made into child modules, so that edits have a place."""

from normless.errors import LiftError as LiftError
from normless.lifting.calls import Call as Call
from normless.lifting.calls import captured_calls as captured_calls
from normless.lifting.calls import evaluating as evaluating
from normless.lifting.calls import never_fuse as never_fuse
from normless.lifting.calls import unfused as unfused
from normless.lifting.lift import Function as Function
from normless.lifting.lift import Lifter as Lifter
