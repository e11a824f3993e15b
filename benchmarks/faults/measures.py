"""Train a case for a number of steps, and measure success as a number: 1 at best, 0 for guessing."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults.case import Loop, LossFunction, Training


def call(model: nn.Module, inputs: Any) -> Any:
    """Return what the model returns for one tensor, a tuple of arguments or a dictionary of arguments."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def outputs_in_eval(model: nn.Module, inputs: Any) -> Any:
    """Return the outputs in evaluation mode, without gradients; the mode is restored."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        outputs = call(model, inputs)
    for module, mode in modes.items():
        module.training = mode
    return outputs


def accuracy(model: nn.Module, inputs: Any, labels: Tensor) -> Callable[[], float]:
    """Measure the share of correct classes, corrected for guessing the most frequent class; logits are (N, C, …)."""

    def measured() -> float:
        logits = outputs_in_eval(model, inputs)
        correct = (logits.argmax(1) == labels).float().mean().item()
        return above_guess(correct, labels)

    return measured


def binary_accuracy(model: nn.Module, inputs: Any, labels: Tensor, threshold: float = 0.0) -> Callable[[], float]:
    """Measure the share of correct signs (or sides of the threshold), corrected for guessing."""

    def measured() -> float:
        outputs = outputs_in_eval(model, inputs)
        correct = ((outputs > threshold).float() == labels).float().mean().item()
        return above_guess(correct, labels)

    return measured


def above_guess(correct: float, labels: Tensor) -> float:
    """Return 0 for the accuracy of the most frequent label and 1 for perfect accuracy."""
    frequent = torch.unique(labels, return_counts=True)[1].max().item() / labels.numel()
    return (correct - frequent) / max(1 - frequent, 1e-9)


def r_squared(model: nn.Module, inputs: Any, targets: Tensor) -> Callable[[], float]:
    """Measure 1 − Σ(y − ŷ)² / Σ(y − ȳ)²."""

    def measured() -> float:
        outputs = outputs_in_eval(model, inputs)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        residual = (outputs.reshape(targets.shape) - targets).square().sum()
        return 1 - (residual / (targets - targets.mean(0)).square().sum()).item()

    return measured


def fitted(model: nn.Module, inputs: Any, targets: Any, loss: LossFunction, guess: float) -> Callable[[], float]:
    """Measure 1 − loss / guess, where `guess` is the loss of guessing, in the training's loss or in a better one."""

    def measured() -> float:
        value = loss(outputs_in_eval(model, inputs), targets).item()
        return 1 - value / guess

    return measured


def nearest(first: Tensor, second: Tensor) -> float:
    """Return the share of rows of `first` whose most similar row of `second` is the one of the same index."""
    similarity = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T
    return (similarity.argmax(1) == torch.arange(len(first))).float().mean().item()


def train(training: Training, steps: int) -> list[float]:
    """Train in place, and return the losses of all steps."""
    model, optimizer = training.model, training.optimizer
    losses: list[float] = []
    for step in range(steps):
        inputs, targets = training.stream(step) if training.stream else training.batch

        def closure(inputs: Any = inputs, targets: Any = targets) -> Tensor:
            optimizer.zero_grad()
            loss = training.loss(call(model, inputs), targets)
            if loss.requires_grad:
                loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            value = optimizer.step(closure)
        else:
            value = closure()
            optimizer.step()
        losses.append(float(value.detach()))
    return losses


def run_loop(loop: Loop) -> list[float]:
    """Run a loop, and return the losses that it shows."""
    losses: list[float] = []
    loop.run(loop.model, loop.batches, loop.optimizer, lambda loss: losses.append(float(loss.detach())))
    return losses
