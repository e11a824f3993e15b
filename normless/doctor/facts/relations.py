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
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shifted:
    """Targets that are elements of an input: target t along an axis is the element t + shift.

    Attributes:
        leaf: the number of the input tensor.
        shape: the shape of the targets, and of the elements of the input that they are compared with.
        places: for each of these elements, its index in the flat input.
        known: which targets count.
        axis: the axis of the positions; None if the shift is 0.
        column: the index of the input's column with the targets, and None if they are all of the input.
    """

    leaf: int
    shape: Shape
    places: Tensor
    known: Tensor
    axis: int
    shift: int
    column: int | None = None

    def chosen(self) -> tuple[Tensor, Tensor]:
        """Return flat indices of one target for each example, at various positions, and of the same inputs."""
        size = self.shape[self.axis]
        index = torch.arange(prod(self.shape)).view(self.shape).movedim(self.axis, -1)
        rest = index.shape[:-1]
        low, high = max(0, -self.shift), size - max(0, self.shift)
        known = self.known.movedim(self.axis, -1)[..., low:high].flatten(0, -2)
        index, places = index.flatten(0, -2), self.places.movedim(self.axis, -1).flatten(0, -2)
        # One row of positions for each index of the first axis that is not that of the positions.
        stride = prod(rest[1:])
        rows = [i * stride + i % stride for i in range(rest[0])] if rest else [0]
        targets, inputs = [], []
        for number, row in enumerate(rows):
            usable = known[row].nonzero().flatten().tolist()
            # Spread over the inner positions; those at the ends see little of the others.
            inner = usable[len(usable) // 4 :] or usable
            if inner:
                t = low + inner[number % len(inner)]
                targets.append(int(index[row, t]))
                inputs.append(int(places[row, t + self.shift]))
        return torch.tensor(targets, dtype=torch.long), torch.tensor(inputs, dtype=torch.long)

    def ordered(self, target: Tensor, *, raster: bool) -> tuple[Tensor, Tensor]:
        """Return which targets of the same examples are before the given ones, and which are after them."""
        axes = [axis for axis in range(len(self.shape)) if axis != self._examples]
        if len(axes) > 2:
            axes = axes[-2:]
        axes = axes if raster else [self.axis]
        position = sum(
            torch.arange(self.shape[axis]).view([-1 if dim == axis else 1 for dim in range(len(self.shape))])
            * prod(self.shape[later] for later in axes if later > axis)
            for axis in axes
        )
        position = torch.as_tensor(position).expand(self.shape)
        example = torch.arange(self.shape[self._examples])
        example = example.view([-1 if dim == self._examples else 1 for dim in range(len(self.shape))])
        example = example.expand(self.shape)
        at = torch.full((self.shape[self._examples],), -1)
        at[example.flatten()[target]] = position.flatten()[target]
        of_example = at[example]
        before, after = position < of_example, (position > of_example) & (of_example >= 0)
        return before.flatten(), after.flatten()

    @property
    def _examples(self) -> int:
        return 0 if self.axis != 0 else 1


def find_shifted(targets: Tensor, inputs: list[Tensor]) -> Iterator[Shifted]:
    """Find the inputs of which the targets are elements, at the same or at other positions."""
    shape = _squeezed(targets.shape)
    for leaf, x in enumerate(inputs):
        if x.layout != torch.strided or x.is_complex() or not x.numel() or targets.numel() < SEVERAL:
            continue
        places = torch.arange(x.numel(), device="cpu").view(x.shape)
        own = _squeezed(x.shape)
        if x.numel() == targets.numel() and (own == shape or len(shape) == 1 or len(own) == 1):
            full = own if len(own) > 1 else shape
            yield from _compared(leaf, targets.reshape(full), x.reshape(full), places.view(full), None)
            continue
        for axis in range(1, x.dim()) if len(shape) > 1 and x.numel() <= MANY else ():
            if _squeezed((*x.shape[:axis], *x.shape[axis + 1 :])) == shape:
                for column in range(x.shape[axis]):
                    values = x.select(axis, column).reshape(shape)
                    chosen = places.select(axis, column).reshape(shape)
                    yield from _compared(leaf, targets.reshape(shape), values, chosen, column)


def _squeezed(shape: Shape | torch.Size) -> Shape:
    return (*shape[:1], *(size for size in shape[1:] if size != 1))


def _compared(leaf: int, y: Tensor, x: Tensor, places: Tensor, column: int | None) -> Iterator[Shifted]:
    """Compare targets with values of the same shape, at several shifts along each axis."""
    y, x = y.detach().cpu(), x.detach().cpu()
    known = y != IGNORED if not y.is_floating_point() else y.isfinite()
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
                yield Shifted(leaf, tuple(y.shape), places, known, axis, shift, column)
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
    y = targets.detach().cpu()
    rows = [x for x in inputs if x.dim() and len(x) == len(y)] if y.dim() else []
    if y.dim() > 2 or len(y) < SEVERAL or sum(x[0].numel() for x in rows) < 2:
        return
    y = y.reshape(len(y), -1).double()
    for leaf, x in enumerate(inputs):
        is_usual = x.layout == torch.strided and not x.is_complex() and 0 < x.numel() <= MANY
        if not is_usual or not x.dim() or len(x) != len(y):
            continue
        flat = x.detach().cpu().reshape(len(x), -1).double()
        if flat.shape == y.shape and flat.shape[1] > 1:
            # The whole input is the target.
            continue
        length = x[0].numel() if x.dim() == 2 else x[0, 0].numel() if x.dim() > 2 else 1
        first_of_last = flat.shape[1] - (1 if x.dim() == 2 else length)
        # A network of several outputs may have some inputs to reproduce.
        is_class = not targets.is_floating_point() and targets.dim() == 1
        found = [_column_of(y[:, column], flat, is_class) for column in range(min(y.shape[1], 8))]
        if found[0] is not None and all(found):
            relation, columns = found[0]
            yield Column(leaf, columns, relation, min(columns) >= first_of_last)
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
    alone = [
        [int(column) for column in (of_class & ((firsts == firsts[k]).sum(0) == 1)).nonzero().flatten()]
        for k in range(len(values))
    ]
    used = [columns[0] for columns in alone if columns]
    return ("one-hot", tuple(used)) if len(used) == len(values) and len(values) > 2 else None


def altered(tensor: Tensor, places: Tensor, among: Tensor | None = None) -> Tensor:
    """Return a copy of a tensor with other values, of the same tensor or those given, at some flat indices."""
    values = torch.unique((tensor if among is None else among).detach())
    values = values[values != IGNORED]
    flat = tensor.detach().clone().reshape(-1)
    places = places.to(tensor.device)
    rank = torch.searchsorted(values, flat[places].contiguous())
    # The values that are half of all away, so that numbers change by much.
    flat[places] = values[(rank.clamp_max(len(values) - 1) + max(1, len(values) // 2)) % len(values)]
    return flat.view(tensor.shape)
