"""Judge the learning rates of a training: rates that are zero, that stay tiny, or that decay too early."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from torch import Tensor
from torch.optim import Optimizer

from normless.doctor.findings import Evidence

# The least number of steps at a rate of 0, or at a decayed rate; schedules may end with fewer of them.
IDLE = 20
# The share of all steps that a schedule may spend at 0 after its end.
END = 0.05
# A rate below this share of the largest so far, or of the one before a warm-up, changes nothing; the steps above FAST
# times the largest rate are those that train.
TINY, FAST = 1e-3, 1e-2
# A decay is too early if this many times as many steps follow it as came before it; one that is exponential over the
# whole training reaches 1e-7 then.
LATER = 2
# The number of steps at the same tiny rate after which a warm-up counts as never stepped.
WAITED = 100
# A loss still falls if the median of the last 20 losses is below this share of that of the 20 losses before.
WINDOW, FALLS = 40, 0.98


@dataclass
class Rate:
    """The learning rate of a group over the steps so far: the largest, and numbers of steps, in all or in a row."""

    _highest: float = 0.0
    _last: float = -1.0
    _steps: int = 0
    _fast: int = 0
    _zero: int = 0
    _tiny: int = 0
    _same: int = 0
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def judge(self, rate: float, initial: float, loss: float | None) -> tuple[str, Evidence] | None:
        """Add a step; return a kind and numbers if the rate does not train."""
        self._steps, self._highest = self._steps + 1, max(self._highest, rate)
        self._zero = self._zero + 1 if rate == 0 else 0
        self._tiny = self._tiny + 1 if rate <= TINY * self._highest else 0
        self._same, self._last = self._same + 1 if rate == self._last else 1, rate
        if rate > FAST * self._highest:
            self._fast += 1
            self._losses.extend([] if loss is None else [loss])
        faults = {
            "zero_rate_in_steps": (self._zero >= max(IDLE, END * self._steps), self._zero),
            "unstarted_warm_up": (self._highest <= TINY * initial and self._same >= WAITED, self._same),
            "early_decay": (self._tiny >= max(IDLE, LATER * self._fast) and self._still_fell(), self._fast),
        }
        evidence = {"rate": rate, "highest": self._highest, "initial": initial, "later": self._tiny}
        found = ((kind, evidence | {"steps": steps}) for kind, (holds, steps) in faults.items() if holds)
        return next(found, None)

    def _still_fell(self) -> bool:
        """Whether the loss fell in the last steps at a rate that trains; True if these are too few for a plateau."""
        past, half = [*self._losses], WINDOW // 2
        return len(past) < WINDOW or median(past[half:]) < FALLS * median(past[:half])


def rates(optimizer: Optimizer, held: Mapping[str, Tensor]) -> Iterator[tuple[list[str], float, float]]:
    """Yield the trained parameters of every group of those held, the rate, and the rate before a warm-up, or 0."""
    names = {id(parameter): name for name, parameter in held.items() if parameter.requires_grad}
    for group in optimizer.param_groups:
        own = [names[id(known)] for known in group["params"] if id(known) in names]
        rate, initial = group.get("lr"), group.get("initial_lr", 0.0)
        # A rate in a tensor would have to be read from the device.
        if own and rate is not None and not isinstance(rate, Tensor):
            yield own, float(rate), 0.0 if isinstance(initial, Tensor) else float(initial)
