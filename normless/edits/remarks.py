"""What a conversion says besides its plan: what it did to a trained network, and branches that it left closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from normless.edits.surgery import Surgery

# A uniform factor at which a branch does not take part in training, such as ConvNeXt's layer scale of 1e-6.
_CLOSED = 1e-3


def remarks(surgery: Surgery) -> Iterator[str]:
    """Yield a clause for each thing that a person would want to know of a finished conversion."""
    if surgery.is_meta:
        return
    trained = surgery.trained_norm()
    if trained is not None:
        yield from (
            f"the weights stay as they were, {change.what.removeprefix('left: ')}"
            for change in surgery.changes
            if change.edit.startswith("KeepScale") and "is trained" in change.what
        )
        classifier = surgery.map.by_path.get(surgery.map.classifier or "")
        if classifier is not None and surgery.zeroed.intersection(classifier.parameters):
            yield f"the trained classifier {classifier.path} starts again at zero"
    closed = []
    for block in surgery.map.walk():
        for layer in surgery.left(block.branch_layers, "scale"):
            # A factor of a branch that was removed is not a parameter any more.
            with suppress(KeyError):
                factor = None if layer.gamma is None or layer.gating else surgery.parameter(layer.gamma).detach()
                if factor is not None and factor.numel() and 0 < float(factor.abs().max()) < _CLOSED:
                    closed.append((layer.path, float(factor.abs().max())))
    if closed:
        path, value = closed[0]
        more = f" and {len(closed) - 1} more" * (len(closed) > 1)
        yield f"branches stay multiplied by at most {value:.1g} at {path}{more}; + ResetBranchFactors() opens them"
