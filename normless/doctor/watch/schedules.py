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
    """The learning rate of a group over the steps so far."""

    highest: float = 0.0
    steps: int = 0
    zero: int = 0
    fast: int = 0
    tiny: int = 0
    same: int = 0
    last: float = -1.0
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, rate: float, loss: float | None) -> None:
        """Add a step."""
        self.steps += 1
        self.highest = max(self.highest, rate)
        self.zero = self.zero + 1 if rate == 0 else 0
        self.same = self.same + 1 if rate == self.last else 1
        self.last = rate
        if rate > FAST * self.highest:
            self.fast += 1
            if loss is not None:
                self.losses.append(loss)
        self.tiny = self.tiny + 1 if rate <= TINY * self.highest else 0

    @property
    def still_fell(self) -> bool:
        """Whether the loss fell in the last steps at a rate that trains; True if these are too few for a plateau."""
        past, half = [*self.losses], WINDOW // 2
        return len(past) < WINDOW or median(past[half:]) < FALLS * median(past[:half])


@dataclass
class Rates:
    """The rates of all groups by the name of their first parameter."""

    _rates: dict[str, Rate] = field(default_factory=dict)

    def judge(
        self, optimizer: Optimizer, held: Mapping[str, Tensor], loss: float | None
    ) -> Iterator[tuple[str, list[str], Evidence]]:
        """Yield a kind, the parameters and numbers for every group with a rate that does not train."""
        names: dict[int, str] = {}
        for group in optimizer.param_groups:
            value = group.get("lr")
            is_usual = isinstance(value, float) and value > 0 and len(optimizer.param_groups) == 1
            if not names and not is_usual:
                names = {id(parameter): name for name, parameter in held.items()}
            own = (
                [*held]
                if is_usual
                else [names[id(known)] for known in group["params"] if known.requires_grad and id(known) in names]
            )
            # A rate in a tensor would have to be read from the device.
            if not own or value is None or isinstance(value, Tensor):
                continue
            rate = self._rates.setdefault(own[0], Rate())
            rate.add(float(value), loss)
            initial = group.get("initial_lr", 0.0)
            initial = 0.0 if isinstance(initial, Tensor) else float(initial)
            evidence = {"rate": rate.last, "highest": rate.highest, "initial": initial}
            if rate.zero >= max(IDLE, END * rate.steps):
                yield "zero_rate_in_steps", own, evidence | {"steps": rate.zero}
            elif rate.highest <= TINY * initial and rate.same >= WAITED:
                yield "unstarted_warm_up", own, evidence | {"steps": rate.same}
            elif rate.tiny >= max(IDLE, LATER * rate.fast) and rate.still_fell:
                yield "early_decay", own, evidence | {"steps": rate.fast, "later": rate.tiny}
