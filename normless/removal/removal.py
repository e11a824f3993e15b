"""A removal: freezes the norms of a network one after another while it is trained, and takes back what costs much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn

from normless._internal.arguments import inside_wrappers
from normless.conversion import Plan
from normless.errors import UnsupportedEditError
from normless.nn import FreezableNorm
from normless.removal.places import Place
from normless.removal.schedule import Freezing, Schedule

# A first token whose spread differs by a smaller factor has the constant of the others.
_SAME = 1.5
# The largest factor by which a first token's constant moves to that of the others at once.
_MERGE = 2.0


class Removal:
    """Freezes the norms of a network while it is trained; made by `nl.remove_norms`.

    Attributes:
        plan: the changes of the network when the removal began.
        places: the place of each norm by path, in execution order.
    """

    def __init__(
        self,
        model: nn.Module,
        norms: Mapping[str, FreezableNorm],
        places: Mapping[str, Place],
        plan: Plan,
        schedule: Schedule,
        *,
        spread_weight: float,
        first_token: bool,
    ) -> None:
        self.plan, self.places = plan, dict(places)
        self._model, self._norms, self._schedule = model, dict(norms), schedule
        self._spread_weight, self._first_token = spread_weight, first_token
        self._losses: list[Tensor] = []
        # The constants of the watched norm before its change.
        self._former = torch.empty(0)
        self._has_ended = False
        self._tokens = next(iter(norms.values())).tokens
        self._tokens.keeps_terms = spread_weight > 0
        self._handle = inside_wrappers(model).register_forward_pre_hook(self._tokens.enter, with_kwargs=True)

    def loss(self, value: Tensor, parts: int = 1) -> Tensor:
        """Record the loss of a batch, and return it with the auxiliary loss added.

            value + λ Σ mean over tokens of (s/c − 1)²

        summed over the norms that are not frozen, with their spread s of a token and its running average c. Without
        gradients the value is returned unchanged.

        Args:
            value: the loss, a scalar tensor.
            parts: the number of parts of a step's batch, if `value` is already divided by it.
        """
        terms, self._tokens.terms = self._tokens.terms, []
        if not torch.is_grad_enabled() or self._has_ended:
            return value
        self._losses.append(value.detach().float() * parts)
        return value + self._spread_weight / parts * torch.stack(terms).sum() if terms else value

    def step(self) -> Freezing | None:
        """Count a step of the optimizer; call it after each. Return the freezing that ended with it, or None.

        Raises:
            ValueError: the removal has ended, or `loss` recorded no loss in this step.
            UnsupportedEditError: the statistics of no norm that is left were measured.
        """
        if self._has_ended:
            raise ValueError("This removal has ended and takes no further step; the network trains on without it.")
        if not self._losses:
            raise ValueError(
                "Expected a loss in each step, and none was recorded since the last one: write "
                "loss = removal.loss(loss) before loss.backward()."
            )
        loss = torch.stack(self._losses).mean()
        self._losses, self._tokens.terms = [], []
        self._sum_over_processes(loss, *(norm.sums for norm in self._norms.values()))
        for norm in self._norms.values():
            norm.update()
        ended = self._schedule.advance(loss.item() / self._processes)
        if ended is not None and ended.outcome == "taken back":
            self._take_back(self._norms[ended.path], ended)
        elif ended is not None and not _is_merged(self._norms[ended.path]):
            self._schedule.queue.append(ended.path)
        if self._schedule.is_due:
            self._change_next()
        return ended

    @property
    def history(self) -> tuple[Freezing, ...]:
        """All freezings in order, each with the loss before and after."""
        return tuple(self._schedule.history)

    @property
    def frozen(self) -> tuple[str, ...]:
        """The paths of the norms that are frozen, in execution order."""
        return tuple(path for path, norm in self._norms.items() if norm.frozen)

    @property
    def left(self) -> tuple[str, ...]:
        """The paths of the norms that are not frozen, or whose first token has a constant of its own."""
        return tuple(path for path, norm in self._norms.items() if not norm.frozen or not _is_merged(norm))

    @property
    def done(self) -> bool:
        """Whether every norm is frozen or was set aside, and the loss after the last freezing was watched."""
        return not self._schedule.queue and self._schedule.watched is None

    def finish(self, allow_partial: bool = False) -> nn.Module:
        """End the removal and return the network, from which `nl.fold` takes the frozen norms.

        Frozen norms compute no statistics afterwards, and the network can be trained on.

        Args:
            allow_partial: end it although norms are left, which go on normalizing.

        Raises:
            UnsupportedEditError: norms are left.
        """
        if (self.left or not self.done) and not allow_partial:
            often = f" (set aside after {self._schedule.attempts} attempts)"
            left = [path + often * (path in self._schedule.set_aside) for path in self.left]
            words = ", ".join(left) or f"the loss after that of {self.history[-1].path} is still watched"
            raise UnsupportedEditError(
                f"Not all norms of this {type(self._model).__name__} are frozen: {words}. Train on until "
                "removal.done; finish(allow_partial=True) leaves the others in the network."
            )
        self._handle.remove()
        self._tokens.terms, self._tokens.keeps_terms = [], False
        for norm in self._norms.values():
            norm.has_ended = bool(norm.frozen)
        self._has_ended = True
        return self._model

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain data, to save beside those of the network and the optimizer."""
        norms = {
            path: {name: buffer.detach().clone() for name, buffer in norm.named_buffers(recurse=False)}
            for path, norm in self._norms.items()
        }
        former = self._former.clone()
        return {"schedule": self._schedule.state(), "norms": norms, "former": former, "has_ended": self._has_ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the removal that `state_dict` describes, of a network with the same norms.

        Raises:
            ValueError: the state is that of a network with other norms.
        """
        given = state["norms"]
        different = sorted(given.keys() ^ self._norms.keys())
        if different:
            raise ValueError(
                f"Expected the state of a removal from this {type(self._model).__name__}, got one of a network with "
                f"other norms; only one of them has {', '.join(different[:3])}."
            )
        for path, norm in self._norms.items():
            for name, value in given[path].items():
                norm.get_buffer(name).copy_(value)
        self._schedule.restore(state["schedule"])
        self._former = state["former"].to(next(iter(self._norms.values())).constant)
        self._losses, self._tokens.terms = [], []
        if state["has_ended"]:
            self.finish(allow_partial=True)

    def __str__(self) -> str:
        head = f"{len(self._norms)} norms, {len(self.frozen)} frozen, step {self._schedule.step}"
        return "\n".join([head, *map(str, self.history)])

    def __repr__(self) -> str:
        return f"Removal({len(self.frozen)} of {len(self._norms)} norms frozen, step {self._schedule.step})"

    @torch.no_grad()
    def _change_next(self) -> None:
        """Freeze the first norm of the queue that was measured, or move a constant of a first token."""
        queue = self._schedule.queue
        path = next((path for path in queue if self._norms[path].measured.any()), None)
        if path is None:
            raise UnsupportedEditError(
                f"The statistics of {', '.join(queue[:3])} were not measured: no forward pass in train mode ran "
                "these norms. Call model.train() before the passes, or leave the norms out by only=."
            )
        queue.remove(path)
        norm = self._norms[path]
        self._former = norm.constant.clone()
        first, others = norm.constant
        if norm.frozen:
            norm.constant[0] = torch.minimum(torch.maximum(others, first / _MERGE), first * _MERGE)
        else:
            ratio = first / others
            is_alike = bool(((ratio > 1 / _SAME) & (ratio < _SAME)).all())
            if not norm.measured[1].any():
                norm.constant[1] = first
            elif is_alike or not self._first_token or not norm.measured[0].any():
                norm.constant[0] = others
        self._schedule.begin(path, "first token" if norm.frozen else "norm")
        norm.frozen.fill_(1.0)

    @torch.no_grad()
    def _take_back(self, norm: FreezableNorm, freezing: Freezing) -> None:
        """Undo a change of a norm."""
        norm.constant.copy_(self._former)
        if freezing.what == "norm":
            norm.frozen.fill_(0.0)

    @property
    def _processes(self) -> int:
        """The number of processes that train the network together."""
        return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1

    def _sum_over_processes(self, *values: Tensor) -> None:
        for value in values if self._processes > 1 else ():
            distributed.all_reduce(value)


def _is_merged(norm: FreezableNorm) -> bool:
    """Whether the first token has the constant of the others."""
    return bool((norm.constant[0] == norm.constant[1]).all())
