"""`nl.remove_norms`: begin to take the norms out of a trained network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

from torch import nn

from normless._internal.arguments import (
    forward_arguments,
    inputs_missing,
    inside_wrappers,
    on_device_of,
    require_network,
)
from normless._internal.copying import require_whole
from normless._internal.exclusive import exclusive
from normless.conversion import Plan
from normless.edits import Surgery
from normless.errors import UnsupportedEditError
from normless.nn import FreezableNorm, Tokens
from normless.nn.freezable import Mask
from normless.recording import never_fuse
from normless.removal.edit import FreezableNorms
from normless.removal.places import ORDER, Place
from normless.removal.removal import Removal
from normless.removal.schedule import Schedule
from normless.residual import residual_map


@exclusive
def remove_norms(
    model: nn.Module,
    *inputs: Any,
    order: Sequence[Place] = ORDER,
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

    The removal measures the standard deviation s of each norm's input over tokens (RMS for RMS norms). Then it
    freezes one norm after another: the divisor becomes the running average of s, and γ and β are trained on. For
    norms over positions (group norm, layer norm over several axes) the mean becomes its running average too. A
    freezing after which the mean loss jumps is taken back and tried again later. If the first token of a sequence has
    another spread, it has a constant of its own, which moves to that of the other tokens at the end. When
    `removal.done`, `nl.fold(removal.finish(), …)` folds the constants, γ, β and the subtraction of the mean into
    weights (Heimersheim 2024; Baroni et al. 2025, section 3).

    Args:
        model: the trained network, which is changed; it may be inside torch.compile or DistributedDataParallel.
        order: the places in the order of freezing, each from the first to the last block; norms of other places are
            left alone. `qk` are norms of queries and keys, `final` those after the last block, `other` those before
            the first block and all in networks without attention.
        start: steps of measuring before the first freezing.
        interval: steps from one freezing to the next.
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
    _check(order, start=start, interval=interval, attempts=attempts, tolerance=tolerance, weight=spread_weight)
    network = _network_of(model)
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if not (inputs or kwargs):
        raise inputs_missing(network, "remove_norms")
    inputs, kwargs = on_device_of(network, inputs, kwargs)
    found = residual_map(network, *inputs, **kwargs)
    names = (only,) if isinstance(only, str) else tuple(only)
    surgery = Surgery(network, found.within(names) if names else found, inputs, kwargs, only=names)
    edit = FreezableNorms(Tokens(tokens), tuple(order))
    surgery.run(edit)
    never_fuse(network)
    norms = {path: cast(FreezableNorm, surgery.get(path)) for path in edit.places}
    queue = sorted(norms, key=lambda path: order.index(edit.places[path]))
    schedule = Schedule(interval, start, tolerance, attempts, queue)
    plan = Plan(surgery.changes)
    return Removal(model, norms, edit.places, plan, schedule, spread_weight=spread_weight, first_token=first_token)


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


def _check(order: Sequence[Place], **numbers: float) -> None:
    unknown = [place for place in order if place not in get_args(Place)]
    if unknown or not order or len({*order}) < len(order):
        places = ", ".join(get_args(Place))
        raise ValueError(f"Expected an order of different places among {places}, got {', '.join(map(str, order))}.")
    least = {"interval": 1, "attempts": 1}
    for name, number in numbers.items():
        if number < least.get(name, 0):
            raise ValueError(f"Expected {name} of {least.get(name, 0)} or more, got {number}.")
