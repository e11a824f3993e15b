"""Checks of leaks: outputs that depend on the very inputs whose values they are to predict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, tensors
from normless.doctor.facts.influence import with_leaf
from normless.doctor.facts.relations import IGNORED, Column, Shifted, altered, find_columns, find_shifted
from normless.doctor.facts.spread import spread_at
from normless.doctor.findings import Evidence, Finding, NotAsked, Steps, check, finding
from normless.errors import InputsError
from normless.probes import compute_output, logits_of, loss_of, preserve_state, without_zeros

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
Values = list[Tensor]


@check("leaks")
def check_leaks(exam: Examination) -> Steps:
    """Look for targets that are elements of the inputs, and for outputs that depend on these very elements."""
    inputs = tensors(exam.inputs)
    given = list(_targets(exam))
    if not given or not inputs:
        raise NotAsked("there are no targets beside the inputs")
    for target in given:
        # Labels among the inputs of a network that computes its loss are no inputs.
        others = [x[:0] if target.is_input and i == target.number else x for i, x in enumerate(inputs)]
        for shifted in find_shifted(target.values, others):
            with suppress(RuntimeError, ValueError, IndexError, InputsError):
                yield from _Seen(exam, target, shifted).findings()
                return f"target t is input t{shifted.shift:+d}" if shifted.shift else "the targets are inputs"
        for column in () if target.is_input else find_columns(target.values, inputs):
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
    for number, y in enumerate(tensors(exam.targets)):
        if y.dim() and y.numel() and y.layout == torch.strided and not y.is_complex():
            yield _Target(y, number)
    inputs = tensors(exam.inputs) if exam.targets is None else []
    for number, x in enumerate(inputs):
        is_label = x.dtype == torch.int64 and x.dim() > 1 and len(torch.unique(x)) > 1
        if is_label and any(other.shape == x.shape for i, other in enumerate(inputs) if i != number):
            with suppress(RuntimeError, ValueError, IndexError, InputsError):
                changed = exam.evaluate(with_leaf(exam.inputs, number, altered(x, torch.arange(x.numel()))))
                target = _Target(x, number, is_input=True)
                if torch.equal(changed, exam.evaluated) and _slope(exam, target, x) is not None:
                    yield target


def _slope(exam: Examination, target: _Target, values: Tensor) -> Tensor | None:
    """Return the gradient of the loss with respect to the logits, for other values of the targets."""
    if target.is_input:
        with preserve_state(exam.model, training=False), torch.enable_grad():
            output = compute_output(exam.model, with_leaf(exam.inputs, target.number, values))
            logits = logits_of(output)
            if logits is None or logits.dim() < 2 or not logits.requires_grad:
                return None
            loss = loss_of(exam.loss, output, exam.inputs, None)
            return torch.autograd.grad(loss, logits, allow_unused=True)[0]
    own = exam.passed.logits
    leaf = own.detach().clone().requires_grad_()
    output = tree_map(lambda value: leaf if value is own else value, exam.passed.output)
    with torch.enable_grad():
        loss = loss_of(exam.loss, output, exam.inputs, with_leaf(exam.targets, target.number, values))
        return torch.autograd.grad(loss, leaf)[0]


@dataclass
class _Seen:
    """What outputs depend on, measured by changing one input for each example that is a target of this example."""

    exam: Examination
    target: _Target
    shifted: Shifted

    def findings(self) -> Iterator[Finding]:
        """Report the outputs that see the inputs which are their targets."""
        self.model = self._opened()
        self.before = self.exam.evaluated if self.model is None else self.exam.evaluate(self.exam.inputs, self.model)
        self.slope = _slope(self.exam, self.target, self.target.values)
        places, elements = self.shifted.chosen()
        if self.slope is None or not len(places) or self.before.shape != self.slope.shape:
            return
        change = self._change(elements)
        own, limit = self._of(places), CHANGED * float(self.before.abs().max())
        if change is None or not bool(own.any()):
            return
        earlier, later = self._around(change, places, limit)
        is_causal = later and not earlier
        if float(change[own].max()) <= limit:
            yield from self._too_far(places, elements, is_causal, limit)
            return
        if not self._is_certain(places, elements, limit):
            return
        evidence: dict[str, float | int | str] = {"change": float(change[own].max()), "outputs": limit / CHANGED}
        shift = self.shifted.shift + self._shift_of_loss(places)
        if shift > 0:
            yield self._future(places, elements, evidence | {"shift": shift})
        elif self.shifted.column is not None:
            yield finding("target_channel", 0.96, (), evidence | {"column": self.shifted.column})
        elif is_causal or (shift < 0 and not self.target.values.is_floating_point()):
            evidence |= {"shift": shift}
            yield finding("unshifted_targets" if shift == 0 else "backward_shift", 0.96, (), evidence)
        elif shift == 0 and self._is_given(change, own):
            yield finding("visible_targets", 0.9, (), evidence)
        elif shift == 0:
            yield from _bypassed(self.exam)

    def _opened(self) -> nn.Module | None:
        """Return a copy without zeros, if zero weights may hide a path; else None."""
        closed = [
            name
            for name, parameter in self.exam.model.named_parameters()
            if parameter.requires_grad and parameter.numel() and not name.endswith("bias")
            if not bool(parameter.any())
        ]
        return without_zeros(self.exam.model) if closed else None

    def _change(self, elements: Tensor) -> Tensor | None:
        """Return the change of the outputs if elements of the input change."""
        leaf = self.shifted.leaf
        changed = altered(tensors(self.exam.inputs)[leaf], elements)
        after = self.exam.evaluate(with_leaf(self.exam.inputs, leaf, changed), self.model)
        return (after - self.before).abs() if after.shape == self.before.shape else None

    def _of(self, places: Tensor) -> Tensor:
        """Return which outputs the loss compares with the targets at some places."""
        places = places[self.shifted.known.reshape(-1)[places]]
        other = _slope(self.exam, self.target, altered(self.target.values, places))
        if other is None or self.slope is None:
            return torch.zeros_like(self.before, dtype=torch.bool)
        change = (other - self.slope).abs()
        largest = float(change.max())
        return change > OWN * largest if largest > 0 else torch.zeros_like(change, dtype=torch.bool)

    def _shift_of_loss(self, places: Tensor) -> int:
        """Return by how many positions the loss compares targets with earlier outputs."""
        shape, axis = self.shifted.shape, self.shifted.axis
        axes = [dim for dim, size in enumerate(self.before.shape) if size == shape[axis]]
        at = self._of(places[:1]).nonzero()
        if len(axes) != 1 or not len(at) or len(torch.unique(at[:, axes[0]])) > 1:
            return 0
        position = int(places[0]) // prod(shape[axis + 1 :]) % shape[axis]
        return max(0, position - int(at[0, axes[0]]))

    def _around(self, change: Tensor, places: Tensor, limit: float) -> tuple[bool, bool]:
        """Return whether outputs change that belong to earlier and to later targets than the given ones."""
        found = (False, False)
        for raster in (False, True) if len(self.shifted.shape) > 2 and self.shifted.shift == 0 else (False,):
            sides = self.shifted.ordered(places, raster=raster)
            reached = [
                bool(side.any()) and float((change * self._of(side.nonzero().flatten())).max()) > limit
                for side in sides
            ]
            found = reached[0], reached[1]
            if found == (False, True):
                break
        return found

    def _is_certain(self, places: Tensor, elements: Tensor, limit: float) -> bool:
        """Whether a change is that of the example's own input, and not noise of the network."""
        for n in range(len(places)):
            single = self._change(elements[n : n + 1])
            own = self._of(places[n : n + 1])
            if single is not None and bool(own.any()) and float(single[own].max()) > limit:
                again = self.exam.evaluate(self.exam.inputs, self.model)
                return float((again - self.before).abs().max()) < 0.1 * float(single[own].max())
            if n == 3:
                break
        return False

    def _future(self, places: Tensor, elements: Tensor, evidence: dict[str, Any]) -> Finding:
        """Report outputs that see later inputs, with how far they see and the place that lets them."""
        leaf, column = self.shifted.leaf, self.shifted.column
        x = tensors(self.exam.inputs)[leaf]
        step = prod(self.shifted.shape[self.shifted.axis + 1 :])
        change, earlier = (
            self._change(elements),
            places[places // step % self.shifted.shape[self.shifted.axis] > 0] - step,
        )
        limit = CHANGED * float(self.before.abs().max())
        is_next = change is not None and not float(change[self._of(earlier)].max()) > limit
        place = None
        if x.dim() > 1 and column is None and self.shifted.axis < x.dim():
            length = x.shape[self.shifted.axis]
            middle = x.narrow(self.shifted.axis, length // 2, 1)
            at = torch.arange(x.numel()).view(x.shape).narrow(self.shifted.axis, length // 2, 1)
            changed = altered(x, at.flatten()) if middle.numel() else x
            inputs = with_leaf(self.exam.inputs, leaf, changed)
            place = spread_at(self.model or self.exam.model, self.exam.inputs, inputs, length, range(length // 2))
        where = () if place is None else (place.place,)
        line = "" if place is None else f" ({place.name} at {place.place}{f', {place.line}' if place.line else ''})"
        words = "one position ahead, as with a mask that is off by one" if is_next else "later positions"
        evidence |= {"ahead": words}
        return finding("sees_future", 0.97, where, evidence, at=line)

    def _too_far(self, places: Tensor, elements: Tensor, is_causal: bool, limit: float) -> Iterator[Finding]:
        """Report tokens that are predicted two positions ahead by a causal network."""
        if self.target.values.is_floating_point() or not is_causal or self.shifted.shift < 0:
            return
        index = torch.arange(self.shifted.places.numel()).view(self.shifted.shape)
        positions = index.movedim(self.shifted.axis, 0).reshape(self.shifted.shape[self.shifted.axis], -1)
        order = self.shifted.places.reshape(-1)[positions]
        before = [self._before(order, int(element)) for element in elements]
        kept = [number for number, element in enumerate(before) if element is not None]
        if not kept:
            return
        change = self._change(torch.tensor([before[number] for number in kept]))
        own = self._of(places[torch.tensor(kept)])
        if change is not None and bool(own.any()) and float(change[own].max()) <= limit:
            yield finding("shifted_twice", 0.8, (), {"change": float(change[own].max()), "shift": self.shifted.shift})

    @staticmethod
    def _before(order: Tensor, element: int) -> int | None:
        row, column = ((order == element).nonzero() if order.dim() == 2 else torch.zeros(0, 2)).tolist()[0]
        return int(order[row - 1, column]) if row else None

    def _is_given(self, change: Tensor, own: Tensor) -> bool:
        """Whether targets are given as an input beside others, or at positions that a mask should hide."""
        rest = change[~own]
        is_local = float(change[own].median()) > LOCAL * (float(rest.mean()) if len(rest) else 0.0)
        inputs = [x for x in tensors(self.exam.inputs) if x.dim() and x.numel() > 1]
        same = [x for x in inputs if x.shape == inputs[self.shifted.leaf].shape]
        is_masked = not self.target.values.is_floating_point() and bool((self.target.values == IGNORED).any())
        others = [x for x in inputs if x.is_floating_point() or x.dtype == torch.int64]
        return is_local and (is_masked or (len(others) > 1 and not self.target.is_input and len(same) >= 1))


def _bypassed(exam: Examination) -> Iterator[Finding]:
    """Report an autoencoder whose inputs reach the outputs by a path around its bottleneck."""
    flow, size = exam.passed.flow, len(exam.passed.logits)
    given = next(x for x in tensors(exam.inputs) if x.dim())
    wide = given.numel() // BOTTLENECK
    last = flow.of(exam.passed.logits)
    narrow = [call for call in flow.calls if call.path != LOSS and call.is_trained and 0 < prod(call.shape) <= wide]
    narrow = [call for call in narrow if call.is_signal and len(call.shape) > 1 and call.shape[0] == size]
    if last is None or not narrow or exam.passed.logits.dim() < 2:
        return
    for call in last.reached(lambda call: prod(call.shape) <= wide and call is not last):
        if call.kind == "inputs":
            code = min(narrow, key=lambda call: prod(call.shape))
            evidence = {"bottleneck": prod(code.shape[1:]), "inputs": given.numel() // len(given)}
            yield finding("bypassed_bottleneck", 0.8, (code.place,), evidence)
            return


def _by_column(exam: Examination, targets: Tensor, column: Column) -> Iterator[Finding]:
    """Report a column of the inputs that determines the targets, if the outputs depend on it."""
    x = tensors(exam.inputs)[column.leaf]
    width = x.numel() // len(x)
    places = torch.cat([torch.arange(len(x)) * width + index for index in column.columns])
    flat = x.detach().reshape(len(x), -1).clone()
    flat[:, list(column.columns)] = flat.roll(1, 0)[:, list(column.columns)]
    same = (flat.reshape(-1)[places] == x.reshape(-1)[places]).view(len(column.columns), -1).all(0)
    before, after = exam.evaluated, exam.evaluate(with_leaf(exam.inputs, column.leaf, flat.view(x.shape)))
    if before.shape != after.shape or len(before) != len(x) or bool(same.all()):
        return
    change, size = (after - before).abs(), float(before.abs().max())
    if not float(change.max()) > CHANGED * size or _is_margin(change, targets, CHANGED * size):
        return
    evidence: Evidence = {
        "column": ", ".join(map(str, column.columns[:4])),
        "relation": column.relation,
        "change": float(change.max()),
        "outputs": size,
    }
    # A network may have to remember a token or a value at an earlier step of a sequence.
    if column.is_last or x.dim() == 1 or (x.dim() == 2 and x.is_floating_point()):
        # Numbers made for a trial of the code are often a multiple of one column, but not a standardized copy of it.
        values = x.detach().reshape(len(x), -1)[:, list(column.columns)].double()
        is_scaled = bool((values.mean(0).abs() < SCALED).all()) and bool(((values.std(0) - 1).abs() < SCALED).all())
        is_example = targets.is_floating_point() and column.relation == "proportional" and not is_scaled
        yield replace(finding("target_column", 0.96, (), evidence), advice=is_example)


def _is_margin(change: Tensor, targets: Tensor, limit: float) -> bool:
    """Whether labels among the inputs change their own logits only, as a margin for the true class does."""
    if change.dim() != 2 or change.shape[1] < 3 or targets.is_floating_point() or targets.dim() != 1:
        return False
    rows = torch.arange(len(targets))
    rest = change.clone()
    rest[rows, targets.cpu()] = 0
    rest[rows, targets.roll(1).cpu()] = 0
    return float(rest.max()) <= limit
