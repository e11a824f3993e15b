"""Take layer, RMS and group norms out of a trained network: freeze one after another while it is fine-tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Any, cast, get_args

import torch
from torch import Tensor, distributed, nn

from normless._internal.arguments import (
    forward_arguments,
    inputs_missing,
    inside_wrappers,
    on_device_of,
    require_network,
)
from normless._internal.copying import require_whole
from normless.affine._removal_edit import ORDER, FreezableNorms, NormPlace
from normless.affine._schedule import Freezing, RemovalSchedule
from normless.edits import Surgery
from normless.edits._plan import Plan
from normless.errors import UnsupportedEditError
from normless.exclusive import exclusive
from normless.nn import FreezableNorm
from normless.nn._freezable import Mask, Tokens
from normless.recording._modules import never_fuse
from normless.residual import residual_map

# A first token whose spread differs by a smaller factor has the constant of the others.
_SAME = 1.5
# The largest factor by which a first token's constant moves to that of the others at once.
_MERGE = 2.0
# The least value of a setting.
_LEAST = {"interval": 1, "attempts": 1}


class Removal:
    """Freezes the norms of a network while it is trained; made by `nl.remove_norms`.

    It measures the standard deviation s of each norm's input over tokens (RMS for RMS norms). Then it freezes one
    norm after another: the divisor becomes the running average of s, and γ and β are trained on. For norms over
    positions (group norm, layer norm over several axes) the mean becomes its running average too. A freezing after
    which the mean loss jumps is taken back and tried again later. If the first token of a sequence has another
    spread, it has a constant of its own, which moves to that of the other tokens at the end.

    Attributes:
        plan: the changes of the network when the removal began.
        places: the place of each norm by path, in execution order.
    """

    def __init__(
        self,
        model: nn.Module,
        norms: Mapping[str, FreezableNorm],
        places: Mapping[str, NormPlace],
        plan: Plan,
        schedule: RemovalSchedule,
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
        processes = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        for value in (loss, *(norm.sums for norm in self._norms.values())) if processes > 1 else ():
            distributed.all_reduce(value)
        for norm in self._norms.values():
            norm.update()
        ended = self._schedule.advance(loss.item() / processes)
        if ended is not None and ended.outcome == "taken back":
            self._norms[ended.path].constant.copy_(self._former)
            self._norms[ended.path].frozen.fill_(float(ended.what != "norm"))
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

    @property
    def steps_left(self) -> int:
        """The least number of steps until `done`: more if freezings are taken back, or first tokens differ."""
        return self._schedule.steps_left

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
        schedule, former = asdict(self._schedule), self._former.clone()
        return {"schedule": schedule, "norms": norms, "former": former, "has_ended": self._has_ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the removal that `state_dict` describes, with the settings of this one, of the same network.

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
        own, progress = self._schedule, {**state["schedule"]}
        settings = {name: getattr(own, name) for name in ("start", "interval", "tolerance", "attempts")}
        progress["history"] = [Freezing(**values) for values in progress["history"]]
        self._schedule = RemovalSchedule(**deepcopy(progress) | settings)
        self._former = state["former"].to(next(iter(self._norms.values())).constant)
        self._losses, self._tokens.terms = [], []
        if state["has_ended"]:
            self.finish(allow_partial=True)

    def __str__(self) -> str:
        head = f"{len(self._norms)} norms, {len(self._norms) - len(self.left)} frozen, "
        waiting = len(self.frozen) - (len(self._norms) - len(self.left))
        head += f"{waiting} with another constant for the first token, " if waiting else ""
        head += f"step {self._schedule.step}; "
        head += "done: finish() ends it" if self.done else f"at least {self.steps_left} more steps"
        return "\n".join([head, *map(str, self.history)])

    def __repr__(self) -> str:
        frozen = len(self._norms) - len(self.left)
        return f"Removal({frozen} of {len(self._norms)} norms frozen, step {self._schedule.step})"

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
        elif not norm.measured[1].any():
            norm.constant[1] = first
        else:
            ratio = first / others
            is_alike = bool(((ratio > 1 / _SAME) & (ratio < _SAME)).all())
            if is_alike or not self._first_token or not norm.measured[0].any():
                norm.constant[0] = others
        self._schedule.begin(path, "first token" if norm.frozen else "norm")
        norm.frozen.fill_(1.0)


def _is_merged(norm: FreezableNorm) -> bool:
    """Whether the first token has the constant of the others."""
    return bool((norm.constant[0] == norm.constant[1]).all())


@exclusive
def remove_norms(
    model: nn.Module,
    *inputs: Any,
    order: Sequence[NormPlace] = ORDER,
    start: int = 20,
    interval: int = 10,
    tolerance: float = 0.1,
    attempts: int = 4,
    spread_weight: float = 0.1,
    first_token: bool = True,
    tokens: Mask = "attention_mask",
    only: str | Sequence[str] = (),
    example_inputs: Any = None,
    **kwargs: Any,
) -> Removal:
    """Begin to take the layer, RMS and group norms out of a trained network that is fine-tuned.

    The norms of the network are replaced in place by norms that compute the same, with the same parameters, so that
    an optimizer may exist already and `state_dict` keeps its names. In each step of the loop

        loss = removal.loss(loss)      # before loss.backward()
        removal.step()                 # after optimizer.step()

    the removal freezes one norm after another (see `Removal`). When `removal.done`, `nl.fold(removal.finish(), …)`
    folds the constants, γ, β and the subtraction of the mean into weights (Heimersheim 2024; Baroni et al. 2025,
    section 3).

    Args:
        model: the trained network, which is changed; it may be inside torch.compile or DistributedDataParallel.
        order: the places in the order of freezing, each from the first to the last block; norms of other places are
            left alone. `qk` are norms of queries and keys, `final` those after the last block, `other` those before
            the first block and all in networks without attention.
        start, interval: steps of measuring before the first freezing, and from one freezing to the next.
        tolerance: the increase of the mean loss, besides three standard errors, at which a freezing is taken back.
        attempts: how often a norm is frozen before it is set aside.
        spread_weight: λ of the auxiliary loss, which keeps s constant over tokens (see `Removal.loss`).
        first_token: whether the first token may have a constant of its own.
        tokens: the name of the argument of forward that masks padding, shape (B, T), or a function of all arguments
            that returns such a mask; masked tokens are not measured.
        only: qualified names of modules or blocks; only the norms at or under them are frozen.
        inputs, kwargs, example_inputs: as in `residual_map`.

    Raises:
        UnsupportedEditError: the network has only batch norms (`nl.fold` takes them out) or no norms, or a norm is a
            function in forward code, carries hooks or computes something else.
        UnresolvedStructureError: inputs are missing, or the forward pass fails.
        ValueError: a setting is out of range.
    """
    require_network(model)
    _check(order, start=start, interval=interval, attempts=attempts, tolerance=tolerance, spread_weight=spread_weight)
    network = _network_of(model)
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if not (inputs or kwargs):
        raise inputs_missing(network, "remove_norms")
    edit = FreezableNorms(Tokens(tokens), tuple(order))
    plan = _replace_norms(network, edit, (only,) if isinstance(only, str) else tuple(only), inputs, kwargs)
    norms = {path: cast(FreezableNorm, network.get_submodule(path)) for path in edit.places}
    queue = sorted(norms, key=lambda path: order.index(edit.places[path]))
    schedule = RemovalSchedule(start, interval, tolerance, attempts, queue)
    return Removal(model, norms, edit.places, plan, schedule, spread_weight=spread_weight, first_token=first_token)


def _replace_norms(
    network: nn.Module,
    edit: FreezableNorms,
    only: tuple[str, ...],
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Plan:
    """Replace the norms of a network by those that can be frozen, and return the changes."""
    inputs, kwargs = on_device_of(network, inputs, kwargs)
    found = residual_map(network, *inputs, **kwargs)
    surgery = Surgery(network, found.within(only) if only else found, (inputs, dict(kwargs)), only=only)
    surgery.log.scheme = "remove_norms"
    surgery.run(edit)
    never_fuse(network)
    return Plan(surgery.log.changes)


def _network_of(model: nn.Module) -> nn.Module:
    """Return the network inside its wrappers; refuse copies in threads, whose measurements would be lost."""
    if isinstance(model, nn.DataParallel):
        raise UnsupportedEditError(
            "remove_norms measures norms in their own process, and torch.nn.DataParallel runs copies of them in "
            "threads. Use torch.nn.parallel.DistributedDataParallel."
        )
    network = inside_wrappers(model)
    require_whole(network)
    return network


def _check(order: Sequence[NormPlace], **numbers: float) -> None:
    unknown = [place for place in order if place not in get_args(NormPlace)]
    if unknown or not order or len({*order}) < len(order):
        places = ", ".join(get_args(NormPlace))
        raise ValueError(f"Expected an order of different places among {places}, got {', '.join(map(str, order))}.")
    for name, number in numbers.items():
        if number < _LEAST.get(name, 0):
            raise ValueError(f"Expected {name} of {_LEAST.get(name, 0)} or more, got {number}.")
