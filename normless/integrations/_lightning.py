"""Callbacks for Lightning: `LightningWatch` watches a training, `LightningRemoval` takes norms out in it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from normless.affine import Removal
from normless.affine._removal import remove_norms
from normless.doctor import Watch

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


class LightningRemoval(Callback):  # type: ignore[misc]
    """Takes the norms out of the network that a trainer fits, by `nl.remove_norms`.

    The auxiliary loss is added to what `training_step` returns, a loss or a dictionary with a `loss`. Checkpoints
    hold the state of the removal. After the fit, `removal.finish()` returns the network for `nl.fold`.

    Args:
        example_inputs: arguments of the network's forward, as in `nl.remove_norms`.
        network: the qualified name of the network in the module; the module itself if empty.
        options: options of `nl.remove_norms`.
    """

    removal: Removal

    def __init__(self, example_inputs: Any, network: str = "", **options: Any) -> None:
        super().__init__()
        self.example_inputs, self.network, self.options = example_inputs, network, options
        self._steps = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin the removal."""
        if stage == "fit" and not hasattr(self, "removal"):
            network = pl_module.get_submodule(self.network)
            self.removal = remove_norms(network, example_inputs=self.example_inputs, **self.options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Let `training_step` return the loss with the auxiliary loss."""
        step, self._steps = pl_module.training_step, trainer.global_step

        def with_auxiliary_loss(*args: Any, **kwargs: Any) -> Any:
            output = step(*args, **kwargs)
            if isinstance(output, Mapping):
                return {**output, "loss": self.removal.loss(output["loss"])}
            return None if output is None else self.removal.loss(output)

        pl_module.training_step = with_auxiliary_loss

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count a step of the optimizer."""
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self.removal.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Restore `training_step`."""
        vars(pl_module).pop("training_step", None)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the removal for a checkpoint."""
        return self.removal.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the removal of a checkpoint."""
        self.removal.load_state_dict(state_dict)
