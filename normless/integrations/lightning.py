"""Watch a training of Lightning with `nl.watch`: `Trainer(callbacks=[LightningWatch()])`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from normless.diagnosis import Watch

# One library under two names, each with its own classes.
if TYPE_CHECKING or find_spec("lightning"):
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback


class LightningWatch(Callback):  # type: ignore[misc]
    """Watches the module that a trainer fits; its `training_step` calls `self(…)`. `watch` stays readable after it.

    Args:
        interval: the number of steps from one measured step to the next.
    """

    watch: Watch

    def __init__(self, interval: int = 20) -> None:
        super().__init__()
        self.interval = interval

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the watch."""
        self.watch = Watch(pl_module, self.interval)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Record the loss, which Lightning has divided by the number of batches per step."""
        self.watch.loss(loss * trainer.accumulate_grad_batches)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Remove the hooks."""
        self.watch.close()
