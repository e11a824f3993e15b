"""Watch a training of transformers' Trainer with `nl.watch`: `Trainer(…, callbacks=[TrainerWatch()])`."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from normless.diagnosis import Watch


class TrainerWatch(TrainerCallback):
    """Watches the network that a Trainer trains, and reads the loss from its output; `watch` stays readable.

    Args:
        interval: the number of steps from one measured step to the next.
    """

    watch: Watch

    def __init__(self, interval: int = 20) -> None:
        self.interval = interval

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Start the watch."""
        self.watch = Watch(model, self.interval)
        self._handle = model.register_forward_hook(self._on_output)

    def _on_output(self, _: Any, __: Any, output: Any) -> None:
        loss = getattr(output, "loss", None)
        if loss is not None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.watch.loss(loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove the hooks."""
        self._handle.remove()
        self.watch.close()
