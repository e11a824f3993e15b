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
class Column:
    """A column of an input that determines the targets.

    Attributes:
        leaf: the number of the input tensor.
        columns: the indices of the columns in the input, flat for each example; several if they are one-hot.
        relation: `equal`, `proportional` (up to scale and offset), `one-to-one` or `one-hot`.
        is_last: whether they are at the last position of a sequence.
    """

    leaf: int
    columns: tuple[int, ...]
    relation: str
    is_last: bool


def find_columns(targets: Tensor, inputs: list[Tensor]) -> Iterator[Column]:
    """Find the columns of the inputs that equal a target of each example, or have a one-to-one relation to it."""
    rows = {leaf: x for leaf, x in enumerate(inputs) if x.dim() and len(x) == len(targets)}
    if targets.dim() > 2 or len(targets) < SEVERAL or sum(x[0].numel() for x in rows.values()) < 2:
        return
    y = targets.detach().cpu().reshape(len(targets), -1).double()
    for leaf, x in rows.items():
        if x.layout != torch.strided or x.is_complex() or not 0 < x.numel() <= MANY:
            continue
        flat = x.detach().cpu().reshape(len(x), -1).double()
        if flat.shape == y.shape and flat.shape[1] > 1:
            # The whole input is the target.
            continue
        # A network of several outputs may have some inputs to reproduce.
        is_class = not targets.is_floating_point() and targets.dim() == 1
        found = [_column_of(y[:, column], flat, is_class) for column in range(min(y.shape[1], 8))]
        if found[0] is not None and all(found):
            relation, columns = found[0]
            yield Column(leaf, columns, relation, min(columns) >= flat.shape[1] - prod(x.shape[2:]))
            return


def _column_of(y: Tensor, flat: Tensor, is_class: bool) -> tuple[str, tuple[int, ...]] | None:
    """Return how columns determine the targets, and which ones do."""
    values = torch.unique(y)
    if len(values) < 2:
        return None
    scale = float(y.abs().max())
    equal = ((flat - y[:, None]).abs() <= 1e-6 * scale).all(0).nonzero().flatten()
    if len(equal):
        return "equal", (int(equal[0]),)
    if not is_class and len(values) > 2:
        centered, own = flat - flat.mean(0), y - y.mean()
        cosine = (centered * own[:, None]).sum(0).abs() / (centered.norm(dim=0) * own.norm()).clamp_min(1e-30)
        near = (cosine > 1 - 1e-10).nonzero().flatten()
        return ("proportional", (int(near[0]),)) if len(near) else None
    if len(y) < SEVERAL + len(values):
        return None
    groups = [flat[y == value] for value in values]
    firsts = torch.stack([group[0] for group in groups])
    within = torch.stack([(group == group[:1]).all(0) for group in groups]).all(0)
    varies = (flat != flat[:1]).any(0)
    of_class = within & varies
    if not of_class.any() or 2 * int(of_class.sum()) > int(varies.sum()):
        # Examples of a class that are mostly the same are prototypes.
        return None
    ordered = firsts.sort(0).values
    separate = (of_class & (ordered.diff(dim=0) > 0).all(0)).nonzero().flatten()
    if len(separate):
        return "one-to-one", (int(separate[0]),)
    alone = [(of_class & ((firsts == own).sum(0) == 1)).nonzero().flatten() for own in firsts]
    if len(values) > 2 and all(len(columns) for columns in alone):
        return "one-hot", tuple(int(columns[0]) for columns in alone)
    return None
