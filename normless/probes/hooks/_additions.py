"""Observe the summands of residual sums that are additions in forward code."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any

from torch import Tensor, nn

from normless.recording._calls import ADDITIONS, Call
from normless.recording._modules import ModuleRun, Observer
from normless.recording._places import running_place
from normless.residual import ResidualBlock, ResidualMap
from normless.residual._blocks import Addition

OnSum = Callable[[ResidualBlock, Tensor, tuple[Tensor, ...], Tensor], Tensor | None]
"""Receives a block, its skip path, the ends of its branches and their sum; a tensor returned replaces the sum."""
OnMissed = Callable[[ResidualBlock, str], None]
"""Receives a block and why its summands were not seen."""

_IN_PLACE = frozenset({"add_", "__iadd__"})


@contextmanager
def intercepted(model: nn.Module, mapped: ResidualMap, on_sum: OnSum, on_missed: OnMissed) -> Iterator[None]:
    """Observe the summands of blocks with a sum in forward code, in all passes of the body.

    A block is missed if its additions do not run as often as when the network was mapped.
    """
    with _Additions(mapped, on_sum, on_missed).following(model):
        yield


class _Additions(Observer):
    """Intercept the additions of a residual map, by their places in forward code."""

    def __init__(self, mapped: ResidualMap, on_sum: OnSum, on_missed: OnMissed) -> None:
        super().__init__()
        self.on_sum, self.on_missed = on_sum, on_missed
        self.additions = {
            addition.made_by: (block, addition) for block in mapped.walk() for addition in block.additions
        }
        # The calls that add in each run of a module, the first of each place.
        self.firsts: dict[tuple[str, int], dict[Call, None]] = defaultdict(dict)
        for call in self.additions:
            self.firsts[call.module, call.run][call.turns[0]] = None
        # The additions so far at each place in a run.
        self.turns: Counter[tuple[ModuleRun, Call]] = Counter()
        # For each block, the skip path and the ends of the branches that were added so far.
        self.summands: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def on_enter(self, run: ModuleRun) -> None:
        """Start a new pass with the network's own run."""
        if run.path == "":
            self.turns.clear()
            self.summands.clear()

    def on_leave(self, run: ModuleRun, output: Any) -> None:
        """Report the additions that did not run as often as in the mapped pass."""
        for first in self.firsts.get((run.path, run.number), ()):
            if (count := self.turns[run, first]) != len(first.turns):
                reason = f"its addition ran {count} times, but {len(first.turns)} times in the mapped pass"
                for block, addition in self.additions.values():
                    if addition.made_by in first.turns:
                        self.on_missed(block, reason)

    def on_function(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call; if it is an addition of the map, report its summands, and return what replaces the sum."""
        found = self._running(name.strip("_"), sys._getframe(1)) if name.strip("_") in ADDITIONS else None
        if found is None:
            return function(*args, **kwargs)
        block, addition = found
        given = (value.detach() for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        summands = list(islice(given, 2))
        if name in _IN_PLACE:
            summands[0] = summands[0].clone()
        total = function(*args, **kwargs)
        skip, branches = self.summands.setdefault(block.name, (summands[1 - addition.branch], []))
        branches.append(summands[addition.branch])
        # A block's last addition completes its sum.
        if len(branches) == len(block.additions):
            del self.summands[block.name]
            replacement = self.on_sum(block, skip, tuple(branches), total)
            if replacement is not None:
                # Forward code may read the tensor that was added to.
                return total.copy_(replacement) if name in _IN_PLACE else replacement
        return total

    def _running(self, name: str, frame: FrameType) -> tuple[ResidualBlock, Addition] | None:
        """Return the block and the addition that run, or None for other additions."""
        run = self.stack[-1] if self.stack else None
        firsts = self.firsts.get((run.path, run.number)) if run is not None else None
        if run is None or not firsts:
            return None
        place = running_place(type(run.module), frame)
        first = next((call for call in firsts if call.name == name and place and call.is_at(place)), None)
        if first is None:
            return None
        turn = self.turns[run, first]
        self.turns[run, first] += 1
        return self.additions.get(first.turns[turn]) if turn < len(first.turns) else None
