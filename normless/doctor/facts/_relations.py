"""Find targets among the inputs of a batch: the same values, at another position, in a column, or in other units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

IGNORED = -100
# Shifts that are looked for, the likeliest first: the next element, the same, the one before, and later ones.
SHIFTS = (1, 0, -1, 2, 3, 4)
# At least this share of the compared values must be equal.
ALL = 0.995
# A sequence whose neighbors are equal more often than this says nothing about shifts.
CONSTANT = 0.95
# Fewer examples may agree by chance.
SEVERAL = 12
# Columns are compared in inputs of up to this number of values.
MANY = 10**7


@dataclass(frozen=True)
class Shifted:
    """Targets that are elements of an input: target t along an axis is the element t + shift.

    Attributes:
        leaf: the number of the input tensor.
        places: for each of the elements that are compared with the targets, its index in the flat input.
        known: which targets count.
        axis: the axis of the positions.
        column: the index of the input's column with the targets, and None if they are all of the input.
    """

    leaf: int
    places: Tensor
    known: Tensor
    axis: int
    shift: int
    column: int | None = None

    @property
    def step(self) -> int:
        """The number of targets from one position to the next."""
        return prod(self.known.shape[self.axis + 1 :])

    def position(self, targets: Tensor) -> Tensor:
        """Return the positions of targets, given as flat indices like all targets here."""
        return targets // self.step % self.known.shape[self.axis]

    def elements(self, targets: Tensor, before: int = 0) -> Tensor:
        """Return the flat indices of the elements of the input that are these targets, or some positions before."""
        return self.places.reshape(-1)[targets + (self.shift - before) * self.step]

    def chosen(self) -> Tensor:
        """Return one target for each example, at various positions."""
        index = torch.arange(self.known.numel()).view(self.known.shape)
        index = index.narrow(self.axis, max(0, -self.shift), self.known.shape[self.axis] - abs(self.shift))
        index = index.movedim(self.axis, -1)
        chosen = []
        for number, rows in enumerate(index.reshape(len(index), -1, index.shape[-1])):
            row = rows[number % len(rows)]
            usable = row[self.known.reshape(-1)[row]]
            # Spread over the inner positions; those at the ends see little of the others.
            inner = usable[len(usable) // 4 :].tolist()
            if inner:
                chosen.append(inner[number % len(inner)])
        return torch.tensor(chosen, dtype=torch.long)

    def ordered(self, targets: Tensor, *, raster: bool) -> tuple[Tensor, Tensor]:
        """Return the targets of the same examples before the given ones, and those after them; of images by rows."""
        index, shape = torch.arange(self.known.numel()), self.known.shape
        position = index % prod(shape[-2:]) if raster else self.position(index)
        examples = 0 if self.axis else 1
        example = index // prod(shape[examples + 1 :]) % shape[examples]
        at = torch.full((shape[examples],), -1)
        at[example[targets]] = position[targets]
        before, after = position < at[example], (position > at[example]) & (at[example] >= 0)
        return index[before], index[after]


def find_shifted(targets: Tensor, inputs: list[Tensor]) -> Iterator[Shifted]:
    """Find the inputs of which the targets are elements, at the same or at other positions."""
    shape = _squeezed(targets.shape)
    for leaf, x in enumerate(inputs):
        if x.layout != torch.strided or x.is_complex() or not x.numel() or targets.numel() < SEVERAL:
            continue
        places = torch.arange(x.numel(), device="cpu").view(x.shape)
        own = _squeezed(x.shape)
        if x.numel() == targets.numel() and (own == shape or len(shape) == 1 or len(own) == 1):
            yield from _compared(leaf, targets, x, places.view(own if len(own) > 1 else shape), None)
            continue
        for axis in range(1, x.dim()) if len(shape) > 1 and x.numel() <= MANY else ():
            if _squeezed((*x.shape[:axis], *x.shape[axis + 1 :])) == shape:
                for column in range(x.shape[axis]):
                    yield from _compared(leaf, targets, x, places.select(axis, column).reshape(shape), column)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:1], *(size for size in shape[1:] if size != 1))


def _compared(leaf: int, targets: Tensor, given: Tensor, places: Tensor, column: int | None) -> Iterator[Shifted]:
    """Compare targets with the values at some places of an input, at several shifts along each axis."""
    y, x = targets.detach().cpu().reshape(places.shape), given.detach().cpu().reshape(-1)[places]
    known = y.isfinite() if y.is_floating_point() else y != IGNORED
    if y.dim() < 2 or int(known.sum()) < SEVERAL:
        return
    y, x = y.double(), x.double()
    tolerance = 1e-6 * float(x.abs().max())
    for shift in SHIFTS:
        for axis in range(1, y.dim()) if shift == 0 or y.dim() > 2 else (1, 0):
            size = y.shape[axis]
            if size < 4 or abs(shift) > size // 2:
                continue
            length, start = size - abs(shift), max(0, -shift)
            ours, counts = y.narrow(axis, start, length), known.narrow(axis, start, length)
            theirs = x.narrow(axis, start + shift, length)
            equal = ((ours - theirs).abs() <= tolerance)[counts]
            if not len(equal) or float(equal.double().mean()) < ALL:
                continue
            neighbors = (x.narrow(axis, 0, size - 1) - x.narrow(axis, 1, size - 1)).abs() <= tolerance
            if float(neighbors.double().mean()) < CONSTANT:
                yield Shifted(leaf, places, known, axis, shift, column)
                return


@dataclass(frozen=True)
class InputColumns:
    """Columns of an input that determine the targets.

    Attributes:
        leaf: the number of the input tensor.
        columns: the indices of the columns in the input, flat for each example.
        relation: `equal`, `proportional` (up to scale and offset) or `one-to-one`.
        is_last: whether they are at the last position of a sequence.
    """

    leaf: int
    columns: tuple[int, ...]
    relation: str
    is_last: bool


def find_columns(targets: Tensor, inputs: list[Tensor]) -> Iterator[InputColumns]:
    """Find the columns of the inputs that equal a target of each example, or have a one-to-one relation to it."""
    rows = {leaf: x for leaf, x in enumerate(inputs) if x.dim() and len(x) == len(targets)}
    if targets.dim() > 2 or len(targets) < SEVERAL or sum(x[0].numel() for x in rows.values()) < 2:
        return
    y = targets.detach().cpu().reshape(len(targets), -1)
    for leaf, x in rows.items():
        if x.layout != torch.strided or x.is_complex() or not 0 < x.numel() <= MANY:
            continue
        flat = x.detach().cpu().reshape(len(x), -1).double()
        if flat.shape == y.shape and flat.shape[1] > 1:
            # The whole input is the target.
            continue
        # A network of several outputs may have some inputs to reproduce.
        found = [_columns_of(y[:, column], flat) for column in range(min(y.shape[1], 8))]
        if found[0] is not None and all(found):
            relation, columns = found[0]
            yield InputColumns(leaf, columns, relation, min(columns) >= flat.shape[1] - prod(x.shape[2:]))
            return


def _columns_of(y: Tensor, flat: Tensor) -> tuple[str, tuple[int, ...]] | None:
    """Return how columns determine the targets, and which ones do."""
    classes = len(torch.unique(y))
    if classes < 2:
        return None
    own = y.double()
    equal = ((flat - own[:, None]).abs() <= 1e-6 * float(own.abs().max())).all(0).nonzero().flatten()
    if len(equal):
        return "equal", (int(equal[0]),)
    is_class = not y.is_floating_point()
    known = (explained(flat, y if is_class else own) > 1 - 1e-10).nonzero().flatten().tolist()
    varying = int((flat != flat[:1]).any(0).sum())
    # Examples of a class that are mostly the same are prototypes.
    if not known or (is_class and (len(y) < SEVERAL + classes or 2 * len(known) > varying)):
        return None
    return ("one-to-one", tuple(known)) if is_class else ("proportional", tuple(known[:1]))


def explained(columns: Tensor, targets: Tensor) -> Tensor:
    """Return the share of the variance of each column (examples, columns) that it has in common with targets.

    That of classes is corrected for chance. Columns that do not vary, or are not finite, have a share of 0.
    """
    total, centered = columns.var(0), columns - columns.mean(0)
    if targets.is_floating_point():
        own = targets.double() - targets.double().mean()
        share = (centered * own[:, None]).sum(0).square() / (centered.square().sum(0) * own.square().sum())
    else:
        classes, index = torch.unique(targets, return_inverse=True)
        members = torch.nn.functional.one_hot(index, len(classes)).double()
        means = members.T @ centered / members.sum(0)[:, None]
        within = (centered - means[index]).square().sum(0) / max(len(targets) - len(classes), 1)
        share = 1 - within / total
    return torch.where(total > 0, share, 0.0).nan_to_num(0.0)
