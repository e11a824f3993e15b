"""What a conversion says besides its plan: what it did to a trained network, and branches that it left closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from normless._internal.arguments import CallArguments
from normless.edits._batches import run_batches
from normless.edits._calibration import distance
from normless.edits._edit import Edit
from normless.edits._surgery import Surgery
from normless.residual._batch_statistics import keeps_statistics
from normless.residual._description import with_article

# A uniform factor at which a branch does not take part in training, such as ConvNeXt's layer scale of 1e-6.
_CLOSED = 1e-3


# Outputs that differ by more are another function than the trained one.
_DIFFERS = 0.01


@dataclass(frozen=True)
class TrainedFunction:
    """The outputs of a trained network in evaluation, and whether it has norms with running statistics, or others."""

    outputs: list[list[Tensor]]
    with_statistics: bool
    without: bool


def trained_function(surgery: Surgery, given: CallArguments) -> TrainedFunction | None:
    """Run a trained network before its conversion; return None for a fresh network, or one that does not run."""
    if surgery.places.is_meta or surgery.places.trained_norm is None or not any(map(len, given)):
        return None
    kept = {":" not in path and keeps_statistics(surgery.get(path)) for path in surgery.map.norms}
    outputs = _outputs(surgery, given)
    return None if outputs is None else TrainedFunction(outputs, True in kept, False in kept)


def _outputs(surgery: Surgery, given: CallArguments) -> list[list[Tensor]] | None:
    # A network that does not run is for `verify` to report.
    with suppress(Exception):
        return run_batches(surgery, (), print, [given])
    return None


def lost_function(
    surgery: Surgery, text: str, edits: Sequence[Edit], given: CallArguments, known: TrainedFunction | None
) -> Iterator[str]:
    """Yield a clause if a trained network's outputs in evaluation are not those it had, with the calls to make."""
    made = None if known is None or surgery.calibration.report is not None else _outputs(surgery, given)
    if known is None or made is None or [*map(len, known.outputs)] != [*map(len, made)]:
        return
    far = distance(chain.from_iterable(made), chain.from_iterable(known.outputs))
    if far <= _DIFFERS:
        return
    removes = any(own.changes == "norms removed" for own in edits)
    kept = not any(own.loses for own in edits) and (known.with_statistics or not removes)
    keeping = text if kept else "skipinit" if known.with_statistics else ""
    calls = [f'nl.convert_trained(model, "{keeping}", batches)'] * bool(keeping)
    calls += ["nl.fold", "nl.freeze"] * known.with_statistics + ["nl.remove_norms"] * known.without
    yield (
        f"the outputs in evaluation are not those of the trained network (distance {far:.2g}); to keep its function: "
        + ", ".join(calls)
    )


def unchanged(surgery: Surgery, scheme: str, edits: Sequence[Edit]) -> Iterator[str]:
    """Yield a clause if a scheme of norms, which is to change them, found nothing to change."""
    norms = surgery.places.norms()
    if scheme == "batch_norm" and not edits:
        if any(":" not in own.path and isinstance(surgery.get(own.path), _BatchNorm) for own in norms):
            return
        first = next((f" ({own.path} is {with_article(own.description)})" for own in norms), "")
        what = f"it has no batch norm{first}; batch_norm(replace=True) replaces norms of images and vectors"
        yield f"nothing changes, since {what}"
    elif edits and not surgery.log.replaced and all(own.changes == "norms replaced" for own in edits):
        yield "nothing changes, since its norms are so already, or are kept for the reasons in the plan"


def remarks(surgery: Surgery) -> Iterator[str]:
    """Yield a clause for each thing that a person would want to know of a finished conversion."""
    yield from surgery.log.remarks
    if surgery.places.is_meta:
        return
    if surgery.places.trained_norm is not None:
        classifier = surgery.map.by_path.get(surgery.map.classifier or "")
        if classifier is not None and surgery.log.zeroed.intersection(classifier.parameters):
            yield f"the trained classifier {classifier.path} starts again at zero"
    closed = []
    for block in surgery.map.walk():
        for layer in surgery.places.left(block.branch_layers, "scale"):
            # A factor of a branch that was removed is not a parameter any more.
            with suppress(KeyError):
                factor = None if layer.gamma is None or layer.gating else surgery.parameter(layer.gamma).detach()
                if factor is not None and factor.numel() and 0 < float(factor.abs().max()) < _CLOSED:
                    closed.append((layer.path, float(factor.abs().max())))
    if closed:
        path, value = closed[0]
        more = f" and {len(closed) - 1} more" * (len(closed) > 1)
        yield f"branches stay multiplied by at most {value:.1g} at {path}{more}; + ResetBranchFactors() opens them"
