"""Operators in a module's forward code made into child modules, so that edits have a place."""

from normless.errors import LiftError as LiftError
from normless.lifting.calls import Call as Call
from normless.lifting.calls import captured_calls as captured_calls
from normless.lifting.calls import evaluating as evaluating
from normless.lifting.lift import Lifter as Lifter
