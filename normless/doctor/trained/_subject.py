"""The network and the data of a diagnosis of a trained network, and the passes that measure it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import nan
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless._internal.arguments import arguments_of
from normless.affine._removal_edit import FreezableNorms
from normless.doctor.facts._batches import Batches, mixed, size_of
from normless.doctor.facts._tracer import tensors
from normless.doctor.trained._fit import Fit
from normless.doctor.trained._meter import Meter
from normless.doctor.trained._streams import Divisors, SumWatcher
from normless.edits import Surgery
from normless.errors import InputsError, NormlessError
from normless.nn._freezable import Tokens
from normless.probes import Loss, Setting
from normless.probes.hooks._losses import loss_of, own_loss
from normless.probes.hooks._observe import compute_output
from normless.probes.hooks._watcher import attach_hooks, logits_of
from normless.residual import ResidualMap
from normless.residual._batch_statistics import keeps_statistics
from normless.residual._classify import kind_of
from normless.state import running

# Outputs of transformers that are results of inner layers.
_INNER = {"past_key_values", "hidden_states", "attentions", "encoder_last_hidden_state"}
UNFIT = "running statistics do not fit the data: repair them first, since evaluation computes something else"


class MeasuredPasses(NamedTuple):
    """What one pass on each batch shows; see the classes of the attributes."""

    meter: Meter
    sums: SumWatcher
    divisors: Mapping[str, Divisors]


@dataclass
class TrainedSubject:
    """A trained network with calibration batches; everything is measured on first access, in evaluation mode.

    Attributes:
        batches: (inputs, targets) on the network's device.
        map: the residual map, or None.
        unmapped: the reason if there is no map.
        rows: the numbers of each layer or block by name, for the table.
        passes: the number of forward passes so far.
        unfit: the first norm whose running statistics do not fit the data, or None.
    """

    model: nn.Module
    batches: Batches
    loss: Loss
    map: ResidualMap | None = None
    unmapped: str = ""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    passes: int = 0
    unfit: str | None = None

    def note(self, layer: str, kind: str, **numbers: float) -> None:
        """Add numbers to the row of a layer or block."""
        row = self.rows.setdefault(layer or "forward", {"kind": kind})
        # Units of an activation are those of the layer before it.
        row.update(numbers | ({} if kind == "activation" else {"kind": kind}))

    def run(self, inputs: Any) -> Any:
        """Return the output for inputs; state, modes and random numbers are kept by the caller."""
        self.passes += 1
        return compute_output(self.model, inputs)

    @property
    def examples(self) -> int:
        """The number of examples in all batches."""
        return sum(size_of(inputs) for inputs, _ in self.batches)

    @cached_property
    def order(self) -> dict[str, int]:
        """The position of each layer in execution order, of a network without a map that of its modules."""
        if self.map is not None and (paths := dict.fromkeys(layer.path for layer in self.map.layers())):
            return {path: at for at, path in enumerate(paths)}
        return {path: at for at, (path, _) in enumerate(self.model.named_modules())}

    def at(self, layer: str) -> int:
        """Return the position of a layer, or of the last one inside a module; unknown ones come last."""
        inside = [at for path, at in self.order.items() if path.startswith(f"{layer}.")]
        return self.order.get(layer, max(inside, default=len(self.order)))

    def judges(self, layer: str) -> bool:
        """Whether evaluation computes what was trained up to a layer: no statistics before it are wrong."""
        return self.unfit is None or self.at(layer) < self.at(self.unfit)

    def place(self, block: str) -> str:
        """Return the module that names a block in findings: its own, or the last weight layer of its branch."""
        found = next((one for one in self.map.walk() if one.name == block), None) if self.map else None
        known = {path for path, _ in self.model.named_modules()}
        return block if block in known or found is None or not found.branch else found.branch[-1]

    @cached_property
    def norms(self) -> dict[str, nn.Module]:
        """The norms with running statistics by path."""
        return {path: module for path, module in self.model.named_modules() if keeps_statistics(module)}

    @cached_property
    def measured(self) -> MeasuredPasses:
        """What one pass on each batch shows, in evaluation mode."""
        modules = dict(self.model.named_modules())
        kinds = {path: kind_of(module) for path, module in modules.items()}
        for layer in self.map.layers() if self.map else ():
            if layer.path in modules and layer.kind in ("activation", "weight", "norm"):
                kinds[layer.path] = layer.kind
        activations = {path for path, kind in kinds.items() if kind == "activation"}
        layers = {path: modules[path] for path, kind in kinds.items() if kind in ("weight", "norm")}
        divisors, _, tokens = self.freezables
        meter = Meter(activations, layers, divisors)
        sums = SumWatcher(meter.paused)
        with running(self.model, False), self.model.register_forward_pre_hook(tokens.enter, with_kwargs=True):
            for inputs, _ in self.batches:
                observed = attach_hooks(Setting(self.model, self.map), [sums]) if self.map else nullcontext()
                with meter.measuring(self.model, inputs), observed:
                    self.run(inputs)
        return MeasuredPasses(meter, sums, divisors)

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """What norms with running statistics read where batch norms normalize by the batch, in execution order."""
        norms = {path: norm for path, norm in self.norms.items() if isinstance(norm.running_mean, Tensor)}
        stored = {path: Fit.of(norm) for path, norm in norms.items()}
        found: dict[str, Fit] = {}

        def see(path: str, norm: Any, inputs: tuple[Any, ...]) -> None:
            x = inputs[0]
            if isinstance(x, Tensor) and x.dim() > 1:
                found.setdefault(path, stored[path]).see(x)

        with running(self.model, False), ExitStack() as stack:
            for path, norm in norms.items():
                # Frozen norms keep their statistics.
                norm.training = isinstance(norm, _BatchNorm)
                stack.callback(norm.register_forward_pre_hook(partial(see, path)).remove)
            for inputs in mixed(inputs for inputs, _ in self.batches):
                if size_of(inputs) > 1 or not any(norm.training for norm in norms.values()):
                    self.run(inputs)
        return found

    @cached_property
    def freezables(self) -> tuple[dict[str, Divisors], dict[str, str], Tokens]:
        """The layer, RMS and group norms by path, why others are not measured, and what the norms share."""
        tokens = Tokens(keeps_terms=False)
        if self.map is None:
            return {}, {}, tokens
        positional, named = arguments_of(self.batches[0][0])
        try:
            surgery = Surgery(self.model, self.map, (positional, named))
            surgery.log.edit = "check_health"
            norms, refused = FreezableNorms(tokens).beside(surgery)
        except NormlessError as error:
            return {}, {"": str(error)}, tokens
        for norm in norms.values():
            norm.tokens = tokens
        return {path: Divisors(norm) for path, norm in norms.items()}, refused, tokens

    @cached_property
    def reference(self) -> tuple[list[Tensor], float]:
        """The outputs and the loss (NaN without one) on the first batch."""
        return self.outcome()

    def outcome(self) -> tuple[list[Tensor], float]:
        """Run the first batch; return its outputs in float64, without those of inner layers, and the loss."""
        inputs, targets = self.batches[0]
        output = self.run(inputs)
        shown = output
        if isinstance(output, Mapping):
            shown = {name: value for name, value in output.items() if name not in _INNER}
        found = tensors(shown) or tensors(logits_of(output))
        return [one.double() for one in found if one.is_floating_point()], self._loss_of(output, inputs, targets)

    def _loss_of(self, output: Any, inputs: Any, targets: Any) -> float:
        # A batch of inputs alone has a loss only if the network computes it.
        with suppress(InputsError, ValueError):
            return float(loss_of(own_loss if targets is None else self.loss, output, inputs, targets))
        return nan

    def change(self) -> tuple[float, float]:
        """Run the first batch; return the change of output, relative to its deviation over examples, and of loss.

        Of several outputs, that with the largest change counts.
        """
        before, loss = self.reference
        after, loss_after = self.outcome()
        if [one.shape for one in before] != [one.shape for one in after]:
            return nan, loss_after - loss
        changes = []
        for old, new in zip(before, after, strict=True):
            about = old - old.mean(0) if old.dim() and len(old) > 1 else old
            changes.append(float((new - old).norm() / about.norm().clamp_min(1e-300)))
        return max(changes, default=nan), loss_after - loss
