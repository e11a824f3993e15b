"""What a trained network computes on calibration batches: outputs of its layers and its own, to compare with later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normless._internal.arguments import applied, on_device_of
from normless._internal.state import running
from normless.errors import NormlessError
from normless.folding.network import FoldedNorm
from normless.residual.exporting import tensors_in

if TYPE_CHECKING:
    from normless.edits.surgery import Surgery

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
# The most values that are kept of a layer's outputs.
_MOST_VALUES = 2**20


@dataclass(frozen=True)
class Outcome:
    """The outcome for one place of a trained network.

    Attributes:
        path: the norm's or layer's qualified name.
        outcome: `folded` into weights; `affine`, a learned factor and shift per channel; `fitted` to the norm's outputs;
            `same`, without a fit since nothing changed; `left`, not fitted for the `reason`.
        before, after: the distance of the outputs there from those before the conversion, ‖y' − y‖ / ‖y‖ over the
            calibration batches, before and after all fits; None if it was not measured.
    """

    path: str
    outcome: str
    before: float | None = None
    after: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        known = "" if self.before is None or self.after is None else f", distance {_arrow(self.before, self.after)}"
        return f"{self.path}: {self.outcome}{known}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class TrainedReport:
    """What a conversion of a trained network kept, on the calibration batches in evaluation; printable.

    Attributes:
        scheme: the text of the scheme.
        norms: the outcome for each norm, and for each layer that was fitted.
        distance: ‖y' − y‖ / ‖y‖ of the network's outputs y' from those before the conversion, before and after the fits.
        agreement: the share of rows of outputs, (B, classes) or (B, T, classes), whose largest value is the same, before
            and after the fits; None for other outputs.
    """

    scheme: str
    norms: tuple[Outcome, ...]
    distance: tuple[float, float]
    agreement: tuple[float, float] | None

    @property
    def counts(self) -> dict[str, int]:
        """The number of places with each outcome."""
        return dict(Counter(norm.outcome for norm in self.norms))

    def __str__(self) -> str:
        total = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        lines = [f"{self.scheme}: {total}", f"outputs: distance {_arrow(*self.distance)}"]
        if self.agreement is not None:
            lines[-1] += f", largest value the same in {_arrow(*(100 * share for share in self.agreement))} %"
        return "\n".join([*lines, *map(str, self.norms)])


def _arrow(before: float, after: float) -> str:
    return f"{before:.3g}" if before == after else f"{before:.3g} → {after:.3g}"


@dataclass
class Calibration:
    """What edits of trained networks share.

    Attributes:
        batches: the arguments of forward of each calibration batch; the example inputs if empty.
        folded: the outcome for each norm that `FoldNorms` folded, by path.
        rows: for each layer noted before it was changed, by path in order of execution, its outputs, (C, n) for each run.
        axes: the axis of the channels of these outputs.
        outputs: the tensors that the network returned for each batch.
        outcomes: what became of each place.
        distance, agreement: of the network's outputs and of their largest logits, before and after the fits.
    """

    batches: Sequence[Call] = ()
    folded: dict[str, FoldedNorm] = field(default_factory=dict)
    rows: dict[str, list[Tensor]] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    outputs: list[list[Tensor]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    distance: tuple[float, float] | None = None
    agreement: tuple[float, float] | None = None

    def report(self, scheme: str) -> TrainedReport | None:
        """Return the report, None if nothing was measured."""
        if self.distance is None:
            return None
        return TrainedReport(scheme, tuple(self.outcomes), self.distance, self.agreement)


class Enough(NormlessError):  # noqa: N818
    """Ends a pass whose later layers need not run."""


def run_batches(
    surgery: Surgery, paths: Iterable[str], hook: Callable[..., Any], batches: Sequence[Call] = ()
) -> list[list[Tensor]]:
    """Run the network on batches, by default those of the calibration, in evaluation, with a hook as in `hooked`.

    Return the floating-point tensors that it returns for each batch, on the CPU; a hook may raise `Enough`.
    """
    outputs: list[list[Tensor]] = []
    with surgery.hooked(paths, hook), running(surgery.model, training=False):
        for given in batches or surgery.calibration.batches or [(surgery.inputs, surgery.kwargs)]:
            inputs, kwargs = on_device_of(surgery.model, *given)
            try:
                returned = applied(surgery.model, *inputs, **kwargs)
            except Enough:
                continue
            floating = (tensor for tensor in tensors_in(returned) if tensor.is_floating_point())
            outputs.append([tensor.detach().float().cpu() for tensor in floating])
    return outputs


def rows_of(x: Tensor, axis: int, batches: int) -> Tensor:
    """Return the values of each channel of x, (C, n) in float32 on the CPU: all, or at positions drawn once for all.

    The channels are on `axis`; if that is the number of axes, all values are one channel.
    """
    rows = x.detach().flatten()[None] if axis == x.dim() else x.detach().movedim(axis, 0).flatten(1)
    most = max(_MOST_VALUES // batches // len(rows), 64)
    if rows.shape[1] > most:
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(rows.shape[1], generator=generator)[:most].sort().values
        rows = rows[:, chosen.to(rows.device)]
    return rows.float().cpu().clone()


def distance(made: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return ‖y' − y‖ / ‖y‖ over all tensors, or ‖y'‖ if y is zero; infinite if shapes differ."""
    squares = [0.0, 0.0]
    for a, b in zip(made, expected, strict=True):
        if a.shape != b.shape:
            return float("inf")
        squares[0] += float((a.double() - b.double()).square().sum())
        squares[1] += float(b.double().square().sum())
    return (squares[0] / (squares[1] or 1.0)) ** 0.5


def agreement(made: Sequence[Sequence[Tensor]], expected: Sequence[Sequence[Tensor]]) -> float | None:
    """Return the share of rows whose largest value is at the same place, None unless the output is one matrix of rows.

    Outputs have shape (B, classes) or (B, T, classes).
    """
    same: list[Tensor] = []
    for of_batch, known in zip(made, expected, strict=True):
        if len(known) != 1 or known[0].dim() not in (2, 3) or known[0].shape[-1] < 2:
            return None
        if of_batch[0].shape != known[0].shape:
            return None
        same.append((of_batch[0].argmax(-1) == known[0].argmax(-1)).flatten().double())
    return float(torch.cat(same).mean()) if same else None
