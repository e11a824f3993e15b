"""The data of the current step of a training, and the numbers of its measured steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn

from normless.doctor.facts._replay import Outputs, Replay, as_floats, norm_of, rounded_away
from normless.doctor.facts._shards import Shards, local
from normless.doctor.rules._modes import is_frozen
from normless.doctor.watch._training import BATCHES
from normless.nn import ResidualSum, ScalarAffine

# The number of measured steps to keep; beyond it, every second one is dropped, and later ones are kept half as often.
KEPT = 1000


@dataclass
class StepState:
    """The data of the current step: tensors, and the numbers that were read from them."""

    losses: list[Tensor] = field(default_factory=list)
    norms: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)
    updates: dict[str, Tensor] = field(default_factory=dict)
    lost: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    seen: Replay | None = None
    passes: int = 0
    loss_tensor: Callable[[], Tensor | None] = lambda: None
    outputs: Outputs | None = None
    held: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def compare(self, own: Mapping[str, Tensor], shards: Shards) -> None:
        """Measure the update of parameters by their values `before` it, which are overwritten and forgotten."""
        before = {name: self.before.pop(name) for name in own if name in self.before}
        sizes = shards.norms({name: norm_of(values) for name, values in before.items()}, own)
        changes = {name: norm_of(values.sub_(local(own[name]))) for name, values in before.items()}
        self.updates |= {name: change / sizes[name] for name, change in shards.norms(changes, own).items()}
        counts = {name: rounded_away(step, own[name]) for name, step in before.items()}
        known = {name: count for name, count in counts.items() if count is not None}
        lost, counted = (shards.sums({name: count[at] for name, count in known.items()}, own) for at in (0, 1))
        self.lost |= {name: number / counted[name] for name, number in lost.items()}


@dataclass
class Record:
    """The numbers of at most `KEPT` measured steps by quantity and place, and what the next are compared with."""

    _rows: list[tuple[int, tuple[tuple[str, str], ...], npt.NDArray[np.float64]]] = field(default_factory=list)
    _count: int = 0
    _stride: int = 1
    _off: dict[str, list[Tensor]] = field(default_factory=dict)
    _statistics: dict[str, Tensor] = field(default_factory=dict)

    def measure(self, step: int, model: nn.Module, now: StepState, shards: Shards) -> dict[str, dict[str, float]]:
        """Add the numbers of the current step, and return those of layers, by quantity and place."""
        outputs = now.outputs or Outputs()
        off, alphas = self._units_off(shards.everywhere(outputs.off)), shards.largest(_multipliers(model))
        tensors = {"output": shards.root_mean_squares(outputs.sizes), "off": off, "multiplier": alphas}
        layers = {name: as_floats(of) for name, of in tensors.items()} | {"gradient": dict(now.gradients)}
        for name, of in (("update", now.updates), ("lost", now.lost)):
            # A weight of zeros has no relative update, and a gradient of zeros has no update that could be lost.
            layers[name] = {place: ratio for place, ratio in as_floats(of).items() if isfinite(ratio)}
        total = sum(norm**2 for norm in now.gradients.values()) ** 0.5
        whole = {"gradient_norm": {"": total}} | ({} if now.loss is None else {"loss": {"": now.loss}})
        self._add(step, whole | layers)
        return layers

    def _add(self, step: int, quantities: Mapping[str, Mapping[str, float]]) -> None:
        """Add the numbers of a step, unless the stride skips it."""
        values = {(name, place): value for name, of in quantities.items() for place, value in of.items()}
        if self._count % self._stride == 0:
            keys = tuple(values)
            # Steps with the same layers share one tuple of keys.
            keys = self._rows[-1][1] if self._rows and self._rows[-1][1] == keys else keys
            self._rows.append((step, keys, np.array(list(values.values()))))
        self._count += 1
        if len(self._rows) > KEPT:
            self._rows, self._stride = self._rows[::2], 2 * self._stride

    def table(self) -> pd.DataFrame:
        """Return a row per number: `step`, `quantity`, `place` (a module or parameter, empty for all) and `value`."""
        rows = [(step, *key, value) for step, keys, of in self._rows for key, value in zip(keys, of, strict=True)]
        return pd.DataFrame(rows, columns=["step", "quantity", "place", "value"])

    def _units_off(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the shares of units that are off in this and the previous measured steps."""
        for path, mask in masks.items():
            before = [previous for previous in self._off.get(path, []) if previous.shape == mask.shape]
            self._off[path] = [*before, mask][-BATCHES:]
        return {path: torch.stack(self._off[path]).all(0).float().mean() for path in masks}

    def moved_statistics(self, model: nn.Module) -> list[str]:
        """Return the frozen norms with running means that changed since the last measured step."""
        norms = {name: module for name, module in model.named_modules() if is_frozen(module)}
        means = {name: getattr(norm, "running_mean", None) for name, norm in norms.items()}
        now = {name: mean.clone() for name, mean in means.items() if isinstance(mean, Tensor)}
        before, self._statistics = now | self._statistics, now
        same = {name: mean for name, mean in now.items() if before[name].shape == mean.shape}
        return [name for name, mean in same.items() if not torch.equal(mean, before[name])]


def _multipliers(model: nn.Module) -> dict[str, Tensor]:
    """Return the largest |α| of the trained multipliers, by name; 0 for a part of one without elements."""
    found = {
        f"{path}.multiplier": local(module.multiplier)
        for path, module in model.named_modules()
        if isinstance(module, (ScalarAffine, ResidualSum))
        and module.multiplier is not None
        and module.multiplier.requires_grad
    }
    return {name: own.abs().max() if own.numel() else own.new_zeros(()) for name, own in found.items()}
