"""Callbacks for transformers' Trainer: `TrainerWatch` watches a training, `TrainerRemoval` takes norms out in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from normless.affine import Removal
from normless.affine._removal import remove_norms
from normless.doctor import Watch
from normless.errors import RecipeError


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


class TrainerRemoval(TrainerCallback):
    """Takes the norms out of the network that a Trainer trains, by `nl.remove_norms`.

    The auxiliary loss is added to the loss in the network's output. The state of the removal is in each checkpoint
    folder, as `removal.pt`, and a training that resumes from a checkpoint in the output folder continues it. After
    the training, `removal.finish()` returns the network for `nl.fold`.

    Args:
        example_inputs: arguments of the network's forward, as in `nl.remove_norms`.
        options: options of `nl.remove_norms`.
    """

    FILE = "removal.pt"
    removal: Removal

    def __init__(self, example_inputs: Any, **options: Any) -> None:
        self.example_inputs, self.options = example_inputs, options

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Begin the removal, or continue that of the checkpoint."""
        if not hasattr(self, "removal"):
            self.removal = remove_norms(model, example_inputs=self.example_inputs, **self.options)
        if state.global_step:
            file = self._file(args, state)
            if not file.is_file():
                raise RecipeError(
                    f"The training resumes at step {state.global_step}, and the state of its removal is not in "
                    f"{file}. Train on with the output_dir that holds the checkpoint."
                )
            self.removal.load_state_dict(torch.load(file, weights_only=True))
        self._parts = args.gradient_accumulation_steps
        self._handle = model.register_forward_hook(self._on_output, with_kwargs=True)

    def _on_output(self, _: Any, __: Any, kwargs: Any, output: Any) -> None:
        loss = getattr(output, "loss", None)
        if loss is not None and torch.is_grad_enabled():
            # The Trainer divides the loss itself unless the network has divided it by the items of all parts.
            output.loss = self.removal.loss(loss, self._parts if kwargs.get("num_items_in_batch") is not None else 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a step of the optimizer."""
        self.removal.step()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the state of the removal beside the checkpoint."""
        file = self._file(args, state)
        if state.is_world_process_zero and file.parent.is_dir():
            torch.save(self.removal.state_dict(), file)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _file(self, args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / self.FILE
