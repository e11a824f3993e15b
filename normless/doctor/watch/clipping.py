"""Detect gradients that are clipped after the step, and gradients that are clipped to a tiny norm in every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import median

from torch import Tensor

# The number of steps whose gradient shrank afterwards; a second clipping rounds, and leaves more than this share.
LATE, SHRUNK = 5, 0.999
# A norm is constant if it varies by less than this share over STEPS steps, and tiny below TINY, if the median layer
# changes by less than SLOW in a step.
STEPS, CONSTANT, TINY, SLOW = 20, 1e-3, 1e-2, 1e-5


@dataclass(eq=False)
class Clipping:
    """The gradient of a parameter after its last step, and the norms of the last steps.

    Attributes:
        late: the number of steps after which the gradient shrank.
    """

    late: int = 0
    _read: tuple[Tensor, int, Tensor] | None = None
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))

    def stepped(self, parameters: Iterable[Tensor]) -> None:
        """Keep the gradient that the step read."""
        gradient = next((known.grad for known in parameters if known.grad is not None), None)
        is_dense = gradient is not None and not gradient.is_sparse and gradient.is_floating_point()
        self._read = (
            (gradient, gradient._version, gradient.detach().clone()) if gradient is not None and is_dense else None
        )

    def look(self) -> None:
        """Compare the kept gradient before the next backward pass; zeroing deletes or replaces it."""
        if self._read is None:
            return
        (gradient, version, before), self._read = self._read, None
        if gradient._version == version:
            return
        now = gradient.detach()
        # No element grew or changed its sign, as it does where a pass added to the gradient.
        is_part = (now * before >= 0) & (now.abs() <= before.abs())
        if bool(is_part.all() & (now.abs() < SHRUNK * before.abs()).any() & now.any()):
            self.late += 1

    def tiny(self, norms: Mapping[str, float], updates: Mapping[str, float]) -> float | None:
        """Return the norm to which gradients are clipped if it is tiny; `updates` are the last measured ‖Δw‖/‖w‖."""
        total = sum(norm**2 for norm in norms.values()) ** 0.5
        self._norms.append(total)
        largest = max(self._norms)
        if len(self._norms) < STEPS or not isfinite(largest) or not 0 < largest < TINY:
            return None
        is_constant = largest - min(self._norms) <= CONSTANT * largest
        return total if is_constant and updates and median(updates.values()) < SLOW else None
