"""Find where a value that is not finite arises in a training step, by repeating its pass with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normless._internal.copying import is_sharded
from normless.doctor._findings import FindingEvidence
from normless.doctor.facts._held import trained_parameters
from normless.doctor.facts._nonfinite import Broken, Search
from normless.doctor.facts._replay import Replay
from normless.doctor.facts._shards import reshard
from normless.doctor.facts._tracer import tensors
from normless.doctor.rules._data import count_not_finite
from normless.state import preserve_state

# The largest number of operations of a loss to name.
NAMED = 6
Found = TypeVar("Found")


@dataclass(frozen=True)
class NonfiniteOrigin:
    """The origin of a value that is not finite: a path if known, a description, where to look, and numbers."""

    where: tuple[str, ...]
    words: str
    look: str
    evidence: FindingEvidence = field(default_factory=dict)


@dataclass(frozen=True)
class BrokenStep:
    """A step whose loss or gradient (`what`) is not finite, before its update.

    Attributes:
        passes: the number of its passes.
        loss: the loss that was given to the watch, if the tensor still exists.
        gradients: the norms of the gradients by name.
    """

    what: str
    passes: int
    loss: Tensor | None
    gradients: Mapping[str, float]

    def origin(self, model: nn.Module, seen: Replay) -> NonfiniteOrigin:
        """Return the first call of the last pass that makes a value that is not finite, or what else is known.

        Gradients, buffers and random states are restored; hooks on the gradients of parameters do not run.
        """
        search = Search()
        args, kwargs = tree_map(_leaf, (seen.args, dict(seen.kwargs)))
        with preserve_state(model, training=None), torch.enable_grad(), seen.precision():
            with search.follow(model, (args, kwargs)):
                output = tensors(repeat_pass(model, args, kwargs))
            found = (broken for tensor in output if (broken := search.origin(tensor, "output")) is not None)
            broken = next(found, None) or _backward(search, model, output)
        reshard(model)
        if broken is not None:
            return _of_call(broken, tensors((args, kwargs)))
        if self.passes > 1:
            return self.unseen(
                f"this step made {self.passes} passes; only the last of them can be repeated, and its outputs and "
                "gradients are finite"
            )
        is_loss = self.what == "loss"
        finite = f"in a repeated pass, the outputs {'are' if is_loss else 'and their gradients are'} finite"
        if not is_loss and (last := self._last_gradient(f"{finite}, and ", {})) is not None:
            return last
        ends = {tensor.grad_fn.name() for tensor in output if tensor.grad_fn is not None}
        names = [] if self.loss is None else _operations(self.loss, ends)
        made = f", made by {', '.join(names)}" if names else ""
        words = f"{finite}, so it arises in the loss{made}, or in random numbers of the first pass"
        return NonfiniteOrigin((), words, "the loss (nl.diagnose(model, batch, loss=…) names its line)")

    def unseen(self, why: str) -> NonfiniteOrigin:
        """Return what the gradients tell of the origin if the pass that makes it cannot be repeated."""
        known, words = {"passes": self.passes}, f"{why}, so its layer is unknown"
        return self._last_gradient("", known) or NonfiniteOrigin((), words, "the network and the loss", known)

    def _last_gradient(self, seen: str, evidence: FindingEvidence) -> NonfiniteOrigin | None:
        """Return the last parameter with a gradient that is not finite, if a later parameter has a finite one."""
        broken = [name for name, norm in self.gradients.items() if not isfinite(norm)]
        if not broken or broken[-1] == [*self.gradients][-1]:
            return None
        words = f"{seen}the last gradient that is not finite is that of {broken[-1]}; the next one is finite"
        return NonfiniteOrigin((broken[-1],), words, broken[-1], evidence)


def _of_call(broken: Broken, inputs: list[Tensor]) -> NonfiniteOrigin:
    """Describe a call, a state or data with a value that is not finite."""
    call = broken.call
    if call.kind in ("parameter", "buffer"):
        return NonfiniteOrigin((call.name,), f"{call.name} holds such values already", call.name)
    if call.kind == "inputs":
        counts = count_not_finite(inputs)
        words = f"{counts['values']} input values are not finite, the first in example {counts['example']}"
        return NonfiniteOrigin((), words, "the data", counts)
    at = f"{call.name} in {call.place}" if call.line is None else f"in {call.place}, {call.name} at {call.line}"
    words = f"{at} is the first to {broken.does} ({broken.value}); it reads {broken.all_reads}"
    return NonfiniteOrigin(
        (call.path,), words, broken.line, {"operation": call.name, "value": broken.value, "line": broken.line}
    )


@dataclass
class Repeats:
    """Repeats passes of a training; one that fails is reported, and is the last."""

    report: Callable[..., object]
    has_failed: bool = False

    def run(self, seen: Replay | None, repeat: Callable[[Replay], Found]) -> Found | None:
        """Run something with a pass; None if that fails, or failed before."""
        if self.has_failed:
            return None
        try:
            if seen is None:
                raise ValueError("no forward pass was seen; of a compiled network watch what torch.compile returned")
            return repeat(seen)
        except Exception as error:
            self.has_failed = True
            self.report("no_replay", {}, reason=str(error))
            return None


def repeat_pass(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a network; lines outside its code are not the user's."""
    return model(*args, **kwargs)


def _backward(search: Search, model: nn.Module, output: list[Tensor]) -> Broken | None:
    """Return the first call that passes on such a gradient if the outputs get random gradients."""
    live = [tensor for tensor in output if tensor.requires_grad and tensor.is_floating_point()]
    # Other processes may have found the value in their forward pass, and norms would wait for them.
    alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
    if not live or not alone or is_sharded(model):
        return None
    value = torch.stack([(tensor.float() * torch.randn_like(tensor)).sum() for tensor in live]).sum()
    return search.backward(value, [*trained_parameters(model).values()])


def _leaf(value: object) -> object:
    """Detach an input from its history."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _operations(loss: Tensor, ends: set[str]) -> list[str]:
    """Return the operations that made a loss, last first, up to those that made the network's outputs."""
    waiting, names = [loss.grad_fn], dict[str, None]()
    for node in waiting:
        if node is not None and node.name() not in ends and len(names) < NAMED:
            names[node.name().removesuffix("Backward0").removesuffix("Backward1")] = None
            waiting += [before for before, _ in node.next_functions]
    return [*names]
