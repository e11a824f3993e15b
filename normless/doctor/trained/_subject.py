"""The network and the data of a diagnosis of a trained network, and the passes that measure it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import nan
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from normless._internal.arguments import arguments_of
from normless._internal.calling import Call
from normless.affine._removal_edit import FreezableNorms
from normless.doctor.facts._batches import Batches, mixed, size_of
from normless.doctor.facts._tracer import tensors
from normless.doctor.trained import _limits as limits
from normless.doctor.trained._fit import Fit
from normless.doctor.trained._loss import BatchLoss, mean_loss
from normless.doctor.trained._meter import Meter
from normless.doctor.trained._streams import Divisors, SumWatcher
from normless.edits import Surgery
from normless.errors import InputsError, NormlessError
from normless.nn._freezable import Tokens
from normless.probes import Loss, Setting
from normless.probes.hooks._observe import compute_output
from normless.probes.hooks._watcher import attach_hooks, logits_of
from normless.residual import ResidualMap
from normless.residual._batch_statistics import keeps_statistics
from normless.residual._classify import kind_of
from normless.state import running, untouched

# Outputs of transformers that are results of inner layers.
_INNER = {"past_key_values", "hidden_states", "attentions", "encoder_last_hidden_state"}
UNFIT = "running statistics do not fit the data: repair them first, since evaluation computes something else"


class MeasuredPasses(NamedTuple):
    """What one pass on each batch shows; see the classes of the attributes."""

    meter: Meter
    sums: SumWatcher
    divisors: Mapping[str, Divisors]
    losses: list[BatchLoss]


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
        against: a network that is right, or None.
        call: what runs in place of the forward of `against`, as in `residual_map`; None for its forward.
        guesses: whether the loss is no better than that of constant outputs.
        first: what the passes without a part run: the first batch, or a few of its examples if it takes much work.
    """

    model: nn.Module
    batches: Batches
    loss: Loss
    map: ResidualMap | None = None
    unmapped: str = ""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    passes: int = 0
    unfit: str | None = None
    against: nn.Module | None = None
    call: Call | None = None
    guesses: bool = False
    first: tuple[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.batches[0]

    def note(self, layer: str, kind: str, **numbers: float) -> None:
        """Add numbers to the row of a layer or block."""
        row = self.rows.setdefault(layer or "forward", {"kind": kind})
        # Units of an activation are those of the layer before it.
        row.update(numbers | ({} if kind == "activation" else {"kind": kind}))

    def run(self, inputs: Any) -> Any:
        """Return the output for inputs; modes are kept by the caller."""
        self.passes += 1
        with untouched(self.model, inputs):
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

    def runs(self, path: str) -> bool:
        """Whether a module ran, or the attention that reads its parameters."""
        holder = path.rpartition(".")[0]
        is_read = isinstance(self.model.get_submodule(holder), nn.MultiheadAttention)
        return not ({path, holder} if is_read else {path}).isdisjoint(self.measured.meter.called)

    def place(self, block: str) -> str:
        """Return the module that names a block in findings: its own, or the last weight layer of its branch."""
        found = next((known for known in self.map.walk() if known.name == block), None) if self.map else None
        paths = {path for path, _ in self.model.named_modules()}
        return block if block in paths or found is None or not found.branch else found.branch[-1]

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
        sums, losses = SumWatcher(meter.paused), list[BatchLoss]()
        with running(self.model, False), self.model.register_forward_pre_hook(tokens.enter, with_kwargs=True):
            for inputs, targets in self.batches:
                observed = attach_hooks(Setting(self.model, self.map), [sums]) if self.map else nullcontext()
                with meter.measuring(self.model, inputs), observed:
                    output = self.run(inputs)
                losses.append(BatchLoss(self.loss, output, inputs, targets))
        return MeasuredPasses(meter, sums, divisors, losses)

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """What norms with running statistics read where batch norms normalize by the batch, in execution order."""
        return self.fits_of([inputs for inputs, _ in self.batches])

    def fits_of(self, given: list[Any]) -> dict[str, Fit]:
        """Return the fits on other inputs."""
        norms = {path: norm for path, norm in self.norms.items() if isinstance(norm.running_mean, Tensor)}
        stored = {path: Fit.of(norm) for path, norm in norms.items()}
        found: dict[str, Fit] = {}

        def see(path: str, norm: Any, inputs: tuple[Any, ...]) -> None:
            x = inputs[0]
            if isinstance(x, Tensor) and x.dim() > 1:
                found.setdefault(path, stored[path]).see(x)

        with running(self.model, False), self.normalizing_by_batch() as is_any, ExitStack() as stack:
            for path, norm in norms.items():
                stack.callback(norm.register_forward_pre_hook(partial(see, path)).remove)
            for inputs in mixed(given):
                if size_of(inputs) > 1 or not is_any:
                    self.run(inputs)
        return found

    @contextmanager
    def normalizing_by_batch(self, only: Collection[str] | None = None) -> Iterator[bool]:
        """Let batch norms normalize by the batch, not frozen norms, and say whether there are any."""
        norms = [norm for path, norm in self.norms.items() if only is None or path in only]
        batch_norms = [norm for norm in norms if isinstance(norm, _BatchNorm)]
        before = [norm.training for norm in batch_norms]
        for norm in batch_norms:
            norm.training = True
        try:
            yield bool(batch_norms)
        finally:
            for norm, training in zip(batch_norms, before, strict=True):
                norm.training = training

    def mean_loss(self, given: list[Any]) -> float:
        """Return the loss in evaluation of other inputs in place of those of the batches."""
        with running(self.model, False):
            return mean_loss(self._losses_of(given))

    def _losses_of(self, given: list[Any]) -> list[BatchLoss]:
        """Return the losses of other inputs in place of those of the batches; modes are kept by the caller."""
        pairs = zip(self.measured.losses, given, strict=True)
        return [replace(batch, output=self.run(inputs)) for batch, inputs in pairs]

    def renewed_loss(self, paths: Collection[str]) -> float:
        """Return the loss in evaluation with new running statistics, those of the batches, in some norms."""
        norms = [norm for path in paths if isinstance(norm := self.norms[path], _BatchNorm)]
        momenta = [norm.momentum for norm in norms]
        given = [inputs for inputs, _ in self.batches]
        several = [inputs for inputs in mixed(given) if size_of(inputs) > 1]
        if not norms or not several:
            return nan
        with running(self.model, False):
            try:
                for norm in norms:
                    norm.reset_running_stats()
                    norm.momentum = None
                with self.normalizing_by_batch(paths):
                    for inputs in several:
                        # The buffers that this pass writes stay until the end.
                        self.passes += 1
                        compute_output(self.model, inputs)
                return mean_loss(self._losses_of(given))
            finally:
                for norm, momentum in zip(norms, momenta, strict=True):
                    norm.momentum = momentum

    @cached_property
    def freezables(self) -> tuple[dict[str, Divisors], dict[str, str], Tokens]:
        """The layer, RMS and group norms by path, why others are not measured, and what the norms share."""
        tokens = Tokens(keeps_terms=False)
        if self.map is None:
            return {}, {}, tokens
        positional, named = arguments_of(self.batches[0][0])
        try:
            surgery = Surgery(self.model, self.map, (positional, named))
            surgery.log.edit = "diagnose_trained"
            norms, refused = FreezableNorms(tokens).beside(surgery)
        except NormlessError as error:
            return {}, {"": str(error)}, tokens
        for norm in norms.values():
            norm.tokens = tokens
        return {path: Divisors(norm) for path, norm in norms.items()}, refused, tokens

    @cached_property
    def reference(self) -> tuple[list[Tensor], float]:
        """The outputs and the loss (NaN without one) on the first batch, or on a few examples of it."""
        counter = FlopCounterMode(display=False)
        try:
            with counter:
                found = self.outcome()
        except InputsError:  # The counter refuses derivatives in forward code.
            found = self.outcome()
        parts = sum(bool(module._parameters) for module in self.model.modules())
        share = limits.WORK / max(counter.get_total_flops() * parts, 1)
        few = max(limits.FEWEST, int(share * size_of(self.first[0])))
        lengths = {len(tensor) if tensor.dim() else 0 for tensor in tensors(self.first)}
        if share < 1 and len(lengths) == 1 and min(lengths) > few:
            self.first = tree_map(lambda value: value[:few] if isinstance(value, Tensor) else value, self.first)
            found = self.outcome()
        return found

    def outcome(self) -> tuple[list[Tensor], float]:
        """Run the first batch; return its outputs in float64, without those of inner layers, and the loss."""
        inputs, targets = self.first
        output = self.run(inputs)
        shown = output
        if isinstance(output, Mapping):
            shown = {name: value for name, value in output.items() if name not in _INNER}
        found = tensors(shown) or tensors(logits_of(output))
        loss = BatchLoss(self.loss, output, inputs, targets).value()
        return [tensor.double() for tensor in found if tensor.is_floating_point()], loss

    def change(self) -> tuple[float, float]:
        """Run the first batch; return the change of output, relative to its deviation over examples, and of loss.

        Of several outputs, that with the largest change counts.
        """
        before, loss = self.reference
        after, loss_after = self.outcome()
        return apart(before, after), loss_after - loss


def apart(before: list[Tensor], after: list[Tensor]) -> float:
    """Return the largest change of outputs by their deviation over examples; NaN if they have other shapes."""
    if [old.shape for old in before] != [new.shape for new in after]:
        return nan
    changes = []
    for old, new in zip(before, after, strict=True):
        about = old - old.mean(0) if old.dim() and len(old) > 1 else old
        # What is the same for all examples, up to rounding, is compared with its own size.
        about = about if about.norm() > 1e-6 * old.norm() else old
        changes.append(float((new - old).norm() / about.norm().clamp_min(1e-300)))
    return max(changes, default=nan)
