"""The data that the checks of a diagnosis read: the arguments, one recorded pass, and outputs in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from normless.doctor._findings import ExperimentBudget, Finding
from normless.doctor.facts._batches import Batches
from normless.doctor.facts._flow import PassFlow, TensorCall
from normless.doctor.facts._guessing import lowest_of_constants, lowest_of_outputs, within_range
from normless.doctor.facts._held import trained_parameters
from normless.doctor.facts._passed import Passed, pass_through, require_logits
from normless.doctor.facts._tape import LayerEvent, active_rate
from normless.doctor.facts._tracer import REFUSED, Seen, Tracer, tensors
from normless.errors import InputsError
from normless.probes import Loss
from normless.probes.hooks._losses import loss_of
from normless.probes.hooks._observe import compute_output
from normless.residual import ResidualBlock, ResidualMap
from normless.state import preserve_random_state, preserve_state, quiet, unfused

# Activations of bounded outputs, by the names of their calls.
_SQUASHES = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


@dataclass
class Examination:
    """The arguments of a diagnosis and the recorded pass.

    Attributes:
        map: the residual map, or None.
        unmapped: the reason if there is no map.
        trials: the trials of the unchanged network at its own rate.
        control: a tuple with the best trial of the unchanged network over several rates (or None), once it was made.
        found: the findings so far.
        fine, faulty: the names of checks so far without and with findings.
        influence: the size of the gradient with respect to the inputs, by their numbers, once it was calculated.
        dropped: places and rates of the dropout in the pass in evaluation mode, once this pass was made.
        budget: the steps on copies that may still be made.
        steps, investigate, step: as in `diagnose`; batches: all that were given, the examined one first.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    loss: Loss
    optimizer: Optimizer | None
    map: ResidualMap | None = None
    unmapped: str = ""
    trials: list[Any] = field(default_factory=list)
    control: Any = None
    found: list[Finding] = field(default_factory=list)
    fine: set[str] = field(default_factory=set)
    faulty: set[str] = field(default_factory=set)
    influence: Mapping[int, Tensor] = field(default_factory=dict)
    dropped: Mapping[str, float] = field(default_factory=dict)
    budget: ExperimentBudget = field(default_factory=ExperimentBudget)
    steps: int = 20
    investigate: bool | None = None
    batches: Batches = field(default_factory=list)
    step: Callable[[nn.Module, Any, Any], Any] | None = None

    def knows(self, kind: str) -> bool:
        """Whether an earlier check has a finding of this kind."""
        return any(known.kind == kind for known in self.found)

    def changed(self, **changes: Any) -> Examination:
        """Return the examination of this network with another batch or loss, of which nothing is known yet."""
        fresh: dict[str, Any] = {"trials": [], "control": None, "found": [], "dropped": {}}
        return replace(self, **fresh | {"fine": set(), "faulty": set()} | changes)

    def of_batch(self, inputs: Any, targets: Any, output: Any) -> Examination | None:
        """Return the examination of another batch with its output and this recorded pass; None without logits."""
        with suppress(ValueError):
            part = self.changed(inputs=inputs, targets=targets)
            logits = require_logits(self.model, output)
            part.__dict__["passed"] = replace(self.passed, output=output, logits=logits)
            return part
        return None

    @cached_property
    def passed(self) -> Passed:
        """The recorded pass, made on first access."""
        return pass_through(self.model, self.inputs, self.targets, self.loss, self.map)

    @property
    def flow(self) -> PassFlow:
        """The calls of the recorded pass."""
        return self.passed.flow

    @property
    def in_loss(self) -> list[TensorCall]:
        """The calls of the loss."""
        return [call for call in self.flow.calls if call.in_loss]

    @property
    def logits(self) -> Tensor:
        """The logits of the recorded pass, without history."""
        return self.passed.logits.detach()

    @property
    def last(self) -> TensorCall:
        """The call that made the logits."""
        return self.flow.maker(self.passed.logits)

    @property
    def given(self) -> list[Tensor]:
        """The tensors of the inputs."""
        return tensors(self.inputs)

    @property
    def labels(self) -> list[Tensor]:
        """The tensors of the targets."""
        return tensors(self.targets)

    def events(self, kind: str) -> list[LayerEvent]:
        """Return the recorded calls of layers of a kind."""
        return [event for event in self.passed.events if event.call.layer == kind]

    @contextmanager
    def repeated(self, tracer: Tracer, *, training: bool = True, model: nn.Module | None = None) -> Iterator[Tensor]:
        """Repeat the pass, of this network or of a copy, under a tracer, and yield the loss with its history."""
        model = self.model if model is None else model
        with preserve_state(model, self.inputs, training=training), torch.enable_grad(), quiet():
            yield tracer.run(model, self.inputs, self.targets, self.loss)

    def run(self, inputs: Any, model: nn.Module | None = None, tracer: Tracer | None = None) -> Any:
        """Return the output in evaluation mode for given inputs, of this network or another, without history."""
        model = self.model if model is None else model
        follows = nullcontext() if tracer is None else tracer.follow(model, inputs)
        # The fused path of torch's transformer layers takes masks of floats for masks of booleans.
        with preserve_state(model, inputs, training=False), unfused(), follows:
            try:
                with torch.no_grad():
                    return compute_output(model, inputs)
            except InputsError:
                # Some networks need gradients to compute their output.
                with torch.enable_grad():
                    output = compute_output(model, inputs)
            return tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, output)

    def evaluate(self, inputs: Any, model: nn.Module | None = None) -> Tensor:
        """Return the logits for given inputs in evaluation mode, in float64; of another network if given."""
        return require_logits(self.model, self.run(inputs, model)).double()

    @cached_property
    def _evaluated(self) -> Any:
        """The return value of the network in evaluation mode."""
        dropped: dict[str, float] = {}

        def note(seen: Seen) -> None:
            if (rate := active_rate(seen)) > 0:
                dropped[seen.call.place] = max(rate, dropped.get(seen.call.place, 0.0))

        output = self.run(self.inputs, tracer=Tracer(note))
        self.dropped = dropped
        return output

    @cached_property
    def evaluated(self) -> Tensor:
        """The logits in evaluation mode, in float64."""
        return require_logits(self.model, self._evaluated).double()

    @cached_property
    def repeats(self) -> bool:
        """Whether a second pass after the first, with the same random numbers, has the same outputs."""
        if not isfinite(self.size):
            return True
        again = self.evaluated
        with preserve_state(self.model, self.inputs, training=False), unfused(), suppress(*REFUSED):
            for _ in range(2):
                with preserve_random_state(self.model), torch.no_grad():
                    again = require_logits(self.model, compute_output(self.model, self.inputs)).double()
        alike = again.shape == self.evaluated.shape
        return alike and torch.allclose(again, self.evaluated, rtol=1e-4, atol=1e-4 * self.size, equal_nan=True)

    @cached_property
    def size(self) -> float:
        """The largest output in evaluation mode."""
        return float(self.evaluated.abs().max())

    @cached_property
    def apart(self) -> float:
        """The largest difference of an output in evaluation mode from its mean over examples."""
        return float((self.evaluated - self.evaluated.mean(0)).abs().max())

    @cached_property
    def evaluated_loss(self) -> float | None:
        """The loss of the batch in evaluation mode; None if it does not take the output in that mode."""
        with suppress(ValueError), quiet(), torch.no_grad():
            return float(loss_of(self.loss, self._evaluated, self.inputs, self.targets))
        return None

    def loss_at(self, logits: Tensor, targets: Any = None) -> Tensor:
        """Return the loss of the batch with other logits in the output of the network, and with other targets."""
        own = self.passed.logits

        def shown(value: Any) -> Any:
            is_pairs = isinstance(value, Tensor) and value.is_complex() and (*value.shape, 2) == own.shape
            return logits if value is own else torch.view_as_complex(logits.contiguous()) if is_pairs else value

        output = tree_map(shown, self.passed.output)
        with quiet():
            return loss_of(self.loss, output, self.inputs, self.targets if targets is None else targets)

    def slope(self, targets: Any = None) -> Tensor:
        """Return the gradient of the loss with respect to the logits, for other targets if they are given."""
        leaf = self.logits.clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self.loss_at(leaf, targets), leaf)[0]

    def is_divisible(self, count: int) -> bool:
        """Whether a few of `count` rows of the inputs may be examples that run without the others.

        Integers beside other inputs may be numbers of rows. Out of range they raise an error on the CPU only; on a
        device they end the process.
        """
        given = self.given
        has_rows = all(tensor.dim() and len(tensor) == count for tensor in given)
        is_safe = len(given) == 1 or all(t.is_floating_point() or t.device.type == "cpu" for t in given)
        return bool(given) and has_rows and is_safe and count not in self.logits.shape[1:]

    @property
    def _loss_of_free(self) -> Callable[[Tensor], Tensor]:
        """The loss of the batch for outputs before the activation that bounds them, or those of `_loss_within`."""
        squash = _SQUASHES.get(self.last.plain)
        return self._loss_within if squash is None else lambda free: self.loss_at(squash(free))

    @cached_property
    def guessing(self) -> float:
        """The lowest loss of outputs that are the same for all examples; NaN if unknown."""
        return lowest_of_constants(self._loss_of_free, self.passed.logits, self.targets)

    @cached_property
    def lowest(self) -> float:
        """The lowest loss of any outputs that descent from those of the network finds; -inf if there are too many."""
        return lowest_of_outputs(self._loss_of_free, self.passed.logits)

    @property
    def _loss_within(self) -> Callable[[Tensor], Tensor]:
        """The loss of the batch for logits that are normalized first, if the network returns (log-)probabilities."""
        within = within_range(self.logits)
        return lambda logits: self.loss_at(within(logits))

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that require gradients."""
        return [*trained_parameters(self.model).values()]

    @property
    def depth(self) -> int:
        """The number of outermost residual blocks."""
        return len(self.blocks)

    @property
    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The outermost residual blocks."""
        return () if self.map is None else self.map.blocks

    @property
    def classifier(self) -> str | None:
        """The qualified name of the classifier, or None."""
        return None if self.map is None else self.map.classifier

    @property
    def norms_placed(self) -> str:
        """`post` if norms follow residual sums, `pre` if branches begin with norms, else empty."""
        if any(layer.kind == "norm" for block in self.blocks for layer in block.after_sum):
            return "post"
        is_first = any(layer.kind == "norm" for block in self.blocks for layer in block.branch_layers[:1])
        return "pre" if is_first else ""

    def observed(self, probe: str) -> pd.DataFrame:
        """Return the rows of a probe for the blocks with a measured sum; NaN in them is a measured value."""
        table = self.passed.tables[probe]
        return table[~table["name"].isin([item.path for item in self.passed.missed])]
