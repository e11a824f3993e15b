"""Make trainings of networks, batches and optimizers, train them, and measure success: 1 at best, 0 for guessing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

from tests.faults import data
from tests.faults.catalogue import Batch, Loop, LossFunction, Training

Success = Callable[[], float]
MakeOptimizer = Callable[[Any], Optimizer]


def adam(lr: float, kind: type[Optimizer] = Adam, **options: Any) -> MakeOptimizer:
    """Adam, or an optimizer of another kind, of all parameters."""
    return lambda model: kind(model.parameters(), lr=lr, **options)


def adamw(lr: float, **options: Any) -> MakeOptimizer:
    """AdamW."""
    return adam(lr, AdamW, **options)


def sgd(lr: float, momentum: float = 0.9, **options: Any) -> MakeOptimizer:
    """SGD with momentum."""
    return adam(lr, SGD, momentum=momentum, **options)


def module(forward: Callable[..., Any], name: str = "Network", **parts: Any) -> nn.Module:
    """Return a module of a class of its own, with the parts as attributes and the forward pass given.

    A part may be the two widths of a linear layer, or a function that makes it; parts are made in their order.
    """
    made: nn.Module = type(name, (nn.Module,), {"forward": forward})()
    for key, part in parts.items():
        if isinstance(part, tuple) and all(isinstance(width, int) for width in part):
            part = nn.Linear(*part)
        setattr(made, key, part() if isinstance(part, FunctionType) else part)
    return made


def made(
    model: nn.Module,
    x: Any,
    y: Any,
    optimizer: Optimizer | MakeOptimizer | None = None,
    loss: LossFunction | None = None,
    success: Success | None = None,
    stream: list[Batch] | Callable[[int], Batch] | None = None,
    guess: float | None = None,
    **options: Any,
) -> Training:
    """Return a training, of cross entropy for integer targets and of squared errors for others if no loss is given.

    Success is 1 - loss / `guess` if that is given, or else the accuracy or the coefficient of determination on the
    batch. Of a list of batches, all are taken in turn.
    """
    is_classes = isinstance(y, Tensor) and not y.is_floating_point()
    chosen = loss or (nn.CrossEntropyLoss() if is_classes else nn.MSELoss())
    if success is None:
        measure = accuracy if is_classes else r_squared
        success = fitted(model, x, y, chosen, guess) if guess else measure(model, x, y)
    taken = (lambda step: stream[step % len(stream)]) if isinstance(stream, list) else stream
    made_of = optimizer(model) if callable(optimizer) and not isinstance(optimizer, Optimizer) else optimizer
    return Training(model, (x, y), chosen, made_of, success, taken, options)


def fit(batch: Batch, model: nn.Module, *settings: Any, **named: Any) -> Training:
    """Return a training of a batch that is drawn before the network."""
    return made(model, *batch, *settings, **named)


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
    for one, mode in modes.items():
        one.training = mode
    return outputs


def accuracy(model: nn.Module, inputs: Any, labels: Tensor) -> Success:
    """Measure the share of correct classes, corrected for guessing the most frequent class; logits are (N, C, …)."""
    return lambda: share_correct(outputs_in_eval(model, inputs).argmax(1), labels)


def binary_accuracy(model: nn.Module, inputs: Any, labels: Tensor, threshold: float = 0.0) -> Success:
    """Measure the share of correct signs (or sides of the threshold), corrected for guessing."""
    return lambda: share_correct((outputs_in_eval(model, inputs) > threshold).float(), labels)


def share_correct(chosen: Tensor, labels: Tensor) -> float:
    """Return 0 for the accuracy of the most frequent label and 1 for perfect accuracy."""
    correct = (chosen == labels).float().mean().item()
    frequent = torch.unique(labels, return_counts=True)[1].max().item() / labels.numel()
    return (correct - frequent) / max(1 - frequent, 1e-9)


def r_squared(model: nn.Module, inputs: Any, targets: Tensor) -> Success:
    """Measure 1 - Σ(y - ŷ)² / Σ(y - ȳ)²."""

    def measured() -> float:
        outputs = outputs_in_eval(model, inputs)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        residual = (outputs.reshape(targets.shape) - targets).square().sum()
        return 1 - (residual / (targets - targets.mean(0)).square().sum()).item()

    return measured


def fitted(model: nn.Module, inputs: Any, targets: Any, loss: LossFunction, guess: float) -> Success:
    """Measure 1 - loss / guess, where `guess` is the loss of guessing, in the training's loss or in a better one."""
    return lambda: 1 - loss(outputs_in_eval(model, inputs), targets).item() / guess


def finite(measure: Success, instead: float, least: float = float("-inf")) -> Success:
    """Measure the same, at least `least`, and `instead` where it is not a number."""

    def measured() -> float:
        value = measure()
        return max(value, least) if value == value else instead

    return measured


def train(training: Training, steps: int) -> list[float]:
    """Train in place, and return the losses of all steps."""
    model, optimizer = training.model, training.optimizer
    assert optimizer is not None
    losses: list[float] = []
    for step in range(steps):
        inputs, targets = training.stream(step) if training.stream else training.batch

        def closure(inputs: Any = inputs, targets: Any = targets) -> Tensor:
            optimizer.zero_grad()
            loss = training.loss(call(model, inputs), targets)
            if loss.requires_grad:
                loss.backward()
            return loss

        if isinstance(optimizer, LBFGS):
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


def backward(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizer: Optimizer,
    zero: Literal["before", "after", "never"] = "before",
    loss: LossFunction = F.cross_entropy,
    scaled: Callable[[Tensor], Tensor] = lambda value: value,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the index and the loss of each batch, after its backward pass; gradients are zeroed before it or not."""
    for index, (x, y) in enumerate(batches):
        if zero == "before":
            optimizer.zero_grad()
        value = loss(model(x), y)
        if zero == "after":
            optimizer.zero_grad()
        scaled(value).backward()
        yield index, value


def digit_batches(count: int, size: int = 32) -> list[Batch]:
    """Return batches of flat digit images and labels."""
    x, y = data.digits(1024)
    order = torch.cat([torch.randperm(1024) for _ in range(-(-count * size // 1024))])
    return [(x[part].flatten(1), y[part]) for part in order[: count * size].view(count, size)]


def digit_accuracy(model: nn.Module) -> Success:
    """Measure the accuracy on images that are in no batch."""
    x, y = data.digits(400, start=1200)
    return accuracy(model, x.flatten(1), y)


def digit_loop(model: nn.Module, optimizer: MakeOptimizer, run: Any, count: int = 160, size: int = 32) -> Loop:
    """Return a loop over batches of digits."""
    return Loop(model, digit_batches(count, size), optimizer(model), run, digit_accuracy(model))
