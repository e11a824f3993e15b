"""Layer-sequential unit-variance initialization (Mishkin & Matas 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from normless.edits.edit import EDITS, Edit, Surgery
from normless.edits.initialization import Reinitialize
from normless.lifting import evaluating


@EDITS.register()
@dataclass(frozen=True)
class LSUV(Edit):
    """The output of every weight layer gets unit variance on a batch (Mishkin & Matas 2015, algorithm 1).

    Starts from orthogonal weights, then divides each weight by its output's standard deviation over batch,
    channels and positions until that is 1 within `tolerance`. One forward pass does it: a layer is corrected
    the moment it runs, before any later layer sees its output. The batch is the example input of `convert`. A weight
    that embeds the input too stays as it is.

    Args:
        tolerance: the largest accepted |variance − 1|.
        most_steps: corrections of one layer before it counts as not converging.
    """

    tolerance: float = 0.02
    most_steps: int = 10

    def apply(self, surgery: Surgery) -> None:
        """Draw orthogonal weights and calibrate them; mode and buffers stay as they were."""
        if not (surgery.inputs or surgery.kwargs):
            raise surgery.unsupported("", "it calibrates on data: pass a batch, as in convert(model, 'lsuv', batch)")
        tied = surgery.tied_layers()
        layers = [layer for layer in surgery.weight_layers() if layer.path not in tied]
        for layer in layers:
            module = surgery.get(layer.path) if ":" not in layer.path and layer.called else None
            if not isinstance(getattr(module, "weight", None), Tensor):
                raise surgery.unsupported(layer.path, "it is no layer with one weight and one output, to be scaled")
        Reinitialize("orthogonal").apply(surgery)
        pending = {layer.path for layer in layers}
        hooks = [
            surgery.get(path).register_forward_hook(partial(self._calibrate, surgery, pending, path))
            for path in sorted(pending)
        ]
        try:
            # Dropout must not disturb the variances, nor batch norm move its statistics.
            with evaluating(surgery.model):
                surgery.model(*surgery.inputs, **surgery.kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        if pending:
            raise surgery.unsupported(sorted(pending)[0], "the layer does not run on the given batch")

    def _calibrate(
        self,
        surgery: Surgery,
        pending: set[str],
        path: str,
        layer: nn.Module,
        inputs: tuple[Any, ...],
        output: Tensor,
    ) -> Tensor | None:
        if path not in pending:
            return None
        pending.discard(path)
        assert isinstance(layer.weight, Tensor)
        for _ in range(self.most_steps):
            variance = float(output.var(correction=0))
            if abs(variance - 1) <= self.tolerance:
                surgery.record(path, f"output variance {variance:.3f}")
                return output
            if not variance > 0 or variance == float("inf"):
                break
            layer.weight.div_(variance**0.5)
            output = layer.forward(*inputs)
        raise surgery.unsupported(path, f"its output's variance does not come to 1, the last was {variance:.4g}")
