"""Checks of leaks: outputs that depend on the very inputs whose values they are to predict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan, prod

import torch
from torch import Tensor

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._changes import altered, change_at, change_of, spread_at
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._relations import IGNORED, InputColumns, Shifted, find_columns, find_shifted
from normless.doctor.facts._tracer import REFUSED, with_leaf
from normless.errors import InputsError
from normless.probes import compute_logits
from normless.probes.dependence._mixing import without_zeros
from normless.probes.hooks._losses import loss_of
from normless.probes.hooks._observe import compute_output
from normless.state import preserve_state

# Outputs have changed if they differ by more than this share of the largest output.
CHANGED = 1e-5
# Mean and deviation of standardized columns are 0 and 1 up to this.
SCALED = 1e-3
# A change of one output that is this many times the change of others is a path from its own position.
LOCAL = 3.0
# A result with fewer values than the inputs by this factor is a bottleneck.
BOTTLENECK = 2
# The slopes of the loss that belong to a target change by at least this share of the largest change.
OWN = 0.1


@check("leaks", needs="pass")
def check_leaks(exam: Examination) -> Steps:
    """Look for targets that are elements of the inputs, and for outputs that depend on these very elements."""
    targets = list(_targets(exam))
    if not targets or not exam.given or not exam.logits.dim():
        raise NotAsked("there are no targets beside the inputs, or no outputs but a loss")
    for target in targets:
        # Labels among the inputs of a network that computes its loss are no inputs.
        others = [x[:0] if target.is_input and i == target.number else x for i, x in enumerate(exam.given)]
        for shifted in find_shifted(target.values, others):
            with suppress(*REFUSED):
                yield from _Seen(exam, target, shifted).findings()
                return f"target t is input t{shifted.shift:+d}" if shifted.shift else "the targets are inputs"
        for column in () if target.is_input else find_columns(target.values, exam.given):
            yield from _by_column(exam, target.values, column)
            return "the targets are a column of the inputs"
    return "the targets are not among the inputs"


@dataclass
class _Target:
    """A tensor of targets, and its number among the targets, or among the inputs if the network computes its loss."""

    values: Tensor
    number: int
    is_input: bool = False


def _targets(exam: Examination) -> Iterator[_Target]:
    """Return the targets; if the network computes its loss, the integer input that only the loss reads."""
    for number, y in enumerate(exam.labels):
        if y.dim() and y.numel() and y.layout == torch.strided and not y.is_complex():
            yield _Target(y, number)
    inputs = exam.given if exam.targets is None else []
    for number, x in enumerate(inputs):
        is_label = x.dtype == torch.int64 and x.dim() > 1 and len(torch.unique(x)) > 1
        if is_label and any(other.shape == x.shape for i, other in enumerate(inputs) if i != number):
            target = _Target(x, number, is_input=True)
            with suppress(*REFUSED):
                _slope(exam, target, x)
                if not bool(change_at(exam, number).any()):
                    yield target


def _slope(exam: Examination, target: _Target, values: Tensor) -> Tensor:
    """Return the gradient of the loss with respect to the logits, for other values of the targets."""
    if not target.is_input:
        return exam.slope(with_leaf(exam.targets, target.number, values))
    inputs = with_leaf(exam.inputs, target.number, values)
    with preserve_state(exam.model, training=False), torch.enable_grad():
        output = compute_output(exam.model, inputs)
        logits = compute_logits(lambda: output, ())
        return torch.autograd.grad(loss_of(exam.loss, output, inputs, None), logits)[0]


@dataclass
class _Seen:
    """What outputs depend on, measured by changing one input for each example that is a target of this example."""

    exam: Examination
    target: _Target
    shifted: Shifted

    @cached_property
    def shown(self) -> Examination:
        """The examination of the network without weights of zero, which may hide a path."""
        weights = [(name, p) for name, p in self.exam.model.named_parameters() if p.requires_grad and p.numel()]
        is_closed = any(not name.endswith("bias") and not bool(weight.any()) for name, weight in weights)
        return replace(self.exam, model=without_zeros(self.exam.model)) if is_closed else self.exam

    @cached_property
    def slope(self) -> Tensor:
        """The gradient of the loss with respect to the logits."""
        return _slope(self.exam, self.target, self.target.values)

    @property
    def limit(self) -> float:
        """The change from which on outputs have changed."""
        return CHANGED * self.shown.size

    def findings(self) -> Iterator[Finding]:
        """Report the outputs that see the inputs which are their targets."""
        places = self.shifted.chosen()
        if not len(places) or self.shown.evaluated.shape != self.slope.shape:
            return
        change = self._change(places)
        if bool(change.isnan().all()):
            raise InputsError("The outputs for other inputs cannot be compared.")
        largest, is_causal = self._largest(change, places), self._is_causal(change, places)
        is_token = not self.target.values.is_floating_point()
        if largest <= self.limit and is_causal and is_token and self.shifted.shift >= 0:
            yield from self._too_far(places)
        if not largest > self.limit or not self._is_certain(places):
            return
        shift = self.shifted.shift + self._shift_of_loss(places)
        evidence: FindingEvidence = {"change": largest, "outputs": self.shown.size}
        if shift > 0:
            yield self._future(places, {**evidence, "shift": shift})
        elif self.shifted.column is not None:
            yield finding("target_channel", (), {**evidence, "column": self.shifted.column})
        elif is_causal or (shift < 0 and is_token):
            kind = "unshifted_targets" if shift == 0 else "backward_shift"
            yield finding(kind, (), {**evidence, "shift": shift})
        elif shift == 0 and self._is_given(change, self._of(places)):
            yield finding("visible_targets", (), evidence)
        elif shift == 0:
            yield from _bypassed(self.exam)

    def _change(self, targets: Tensor, before: int = 0) -> Tensor:
        """Return the change of the outputs if the inputs change that are some targets, or those before them."""
        return change_at(self.shown, self.shifted.leaf, self.shifted.elements(targets, before))

    def _of(self, targets: Tensor) -> Tensor:
        """Return which outputs the loss compares with some targets."""
        targets = targets[self.shifted.known.reshape(-1)[targets]]
        change = (_slope(self.exam, self.target, altered(self.target.values, targets)) - self.slope).abs()
        return change > OWN * change.max()

    def _largest(self, change: Tensor, targets: Tensor) -> float:
        """Return the largest change of the outputs that belong to some targets; NaN if there are none."""
        own = self._of(targets)
        return float(change[own].max()) if bool(own.any()) else nan

    def _shift_of_loss(self, places: Tensor) -> int:
        """Return by how many positions the loss compares targets with earlier outputs."""
        length = self.shifted.known.shape[self.shifted.axis]
        axes = [axis for axis, size in enumerate(self.slope.shape) if size == length]
        at = torch.unique(self._of(places[:1]).nonzero()[:, axes])
        return max(0, int(self.shifted.position(places[0])) - int(at[0])) if len(axes) == len(at) == 1 else 0

    def _is_causal(self, change: Tensor, places: Tensor) -> bool:
        """Whether outputs change that belong to later targets than the given ones, and none of earlier targets."""
        for raster in (False, True) if self.shifted.known.dim() > 2 and self.shifted.shift == 0 else (False,):
            earlier, later = (self._largest(change, side) for side in self.shifted.ordered(places, raster=raster))
            if later > self.limit and not earlier > self.limit:
                return True
        return False

    def _is_certain(self, places: Tensor) -> bool:
        """Whether a change is that of the example's own input, and not noise of the network."""
        noise = float(change_of(self.shown, self.exam.inputs).max())
        own = (self._largest(self._change(place), place) for place in places[:4, None])
        return any(change > max(self.limit, 10 * noise) for change in own)

    def _future(self, places: Tensor, evidence: FindingEvidence) -> Finding:
        """Report outputs that see later inputs, with how far they see and the place that lets them."""
        leaf, axis = self.shifted.leaf, self.shifted.axis
        earlier = places[self.shifted.position(places) > 0] - self.shifted.step
        is_next = self._largest(self._change(places), earlier) <= self.limit
        words = "one position ahead, as with a mask that is off by one" if is_next else "later positions"
        x, call = self.exam.given[leaf], None
        if x.dim() > max(1, axis) and self.shifted.column is None:
            middle = x.shape[axis] // 2
            at = torch.arange(x.numel()).view(x.shape).select(axis, middle).flatten()
            changed = with_leaf(self.exam.inputs, leaf, altered(x, at))
            call = spread_at(self.shown, self.exam.inputs, changed, x.shape[axis], range(middle))
        line = "" if call is None else f" ({call.name} at {call.place}{call.words['at']})"
        return finding("sees_future", call.where if call else (), {**evidence, "ahead": words}, at=line)

    def _too_far(self, places: Tensor) -> Iterator[Finding]:
        """Report tokens that are predicted two positions ahead by a causal network."""
        places = places[self.shifted.position(places) + self.shifted.shift > 0]
        largest = self._largest(self._change(places, before=1), places)
        if largest <= self.limit:
            yield finding("shifted_twice", (), {"change": largest, "shift": self.shifted.shift})

    def _is_given(self, change: Tensor, own: Tensor) -> bool:
        """Whether targets are given as an input beside others, or at positions that a mask should hide."""
        rest = change[~own]
        is_local = float(change[own].median()) > LOCAL * (float(rest.mean()) if len(rest) else 0.0)
        is_masked = not self.target.values.is_floating_point() and bool((self.target.values == IGNORED).any())
        inputs = (x for x in self.exam.given if x.dim() and x.numel() > 1)
        others = [x for x in inputs if x.is_floating_point() or x.dtype == torch.int64]
        return is_local and (is_masked or (len(others) > 1 and not self.target.is_input))


def _bypassed(exam: Examination) -> Iterator[Finding]:
    """Report an autoencoder whose inputs reach the outputs by a path around its bottleneck."""
    logits, last = exam.logits, exam.last
    given = next((x for x in exam.given if x.dim()), None)
    if given is None or logits.dim() < 2:
        return
    wide = given.numel() // BOTTLENECK
    narrow = [
        call
        for call in exam.flow.calls
        if not call.in_loss and call.is_trained and call.is_signal and 0 < prod(call.shape) <= wide
        if len(call.shape) > 1 and call.shape[0] == len(logits)
    ]
    around = last.reached(lambda call: prod(call.shape) <= wide and call is not last)
    if narrow and any(call.kind == "inputs" for call in around):
        code = min(narrow, key=lambda call: prod(call.shape))
        evidence: FindingEvidence = {"bottleneck": prod(code.shape[1:]), "inputs": given.numel() // len(given)}
        yield finding("bypassed_bottleneck", code.where, evidence)


def _by_column(exam: Examination, targets: Tensor, column: InputColumns) -> Iterator[Finding]:
    """Report a column of the inputs that determines the targets, if the outputs depend on it."""
    x, columns = exam.given[column.leaf].detach(), list(column.columns)
    flat = x.reshape(len(x), -1).clone()
    values = flat[:, columns]
    flat[:, columns] = values.roll(1, 0)
    change, limit = change_of(exam, with_leaf(exam.inputs, column.leaf, flat.view(x.shape))), CHANGED * exam.size
    if len(change) != len(x) or not float(change.max()) > limit:
        return
    # A network may have to remember a token or a value at an earlier step of a sequence.
    is_answer = column.is_last or (x.dim() == 2 and x.is_floating_point())
    if not is_answer or _is_margin(change, targets, limit):
        return
    named, largest = ", ".join(map(str, columns[:4])), float(change.max())
    evidence: FindingEvidence = {
        "column": named,
        "relation": column.relation,
        "change": largest,
        "outputs": exam.size,
    }
    # Numbers made for a trial of the code are often a multiple of one column, but not a standardized copy of it.
    values = values.double()
    is_scaled = bool((values.mean(0).abs() < SCALED).all()) and bool(((values.std(0) - 1).abs() < SCALED).all())
    is_example = targets.is_floating_point() and column.relation == "proportional" and not is_scaled
    yield finding("target_column", (), evidence, advice=is_example)


def _is_margin(change: Tensor, targets: Tensor, limit: float) -> bool:
    """Whether labels among the inputs change their own logits only, as a margin for the true class does."""
    if change.dim() != 2 or change.shape[1] < 3 or targets.is_floating_point() or targets.dim() != 1:
        return False
    rows = torch.arange(len(targets))
    rest = change.clone()
    rest[rows, targets.cpu()] = 0
    rest[rows, targets.roll(1).cpu()] = 0
    return float(rest.max()) <= limit
