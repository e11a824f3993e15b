"""Read the quantities of Cockpit as alarms; it draws them and states no verdict.

Its paper and its gauges say what is good: local steps α between -1 (no progress) and 1 (the far side of the valley),
finite losses, gradients that do not vanish. Where its BackPACK cannot extend a network, α is left out.
"""

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tests.faults.catalogue import Loop, LossFunction, Training
from tests.faults.training import call, run_loop

STEPS = 30


def cockpit_diagnose(training: Training) -> list[str]:
    """Return the alarms that the quantities of thirty steps give."""
    model, loss, optimizer = training.model, training.loss, training.optimizer
    inputs, targets = training.batch
    quantities: Any = importlib.import_module("cockpit.quantities")
    cockpit, every = _cockpit(model)
    example = _losses_of_examples(model, inputs, targets, loss)
    if example is not None:
        importlib.import_module("backpack").extend(model)
        cockpit.add(quantities.Alpha(every))
    for step in range(STEPS):
        optimizer.zero_grad()
        value = loss(call(model, inputs), targets)
        info = {"batch_size": len(example) if example is not None else 1, "loss": value, "optimizer": optimizer}
        if example is not None:
            info["individual_losses"] = _losses_of_examples(model, inputs, targets, loss)
        with cockpit(step, info=info):
            value.backward(create_graph=cockpit.create_graph(step))  # type: ignore[no-untyped-call]
        optimizer.step()
    return _alarms(cockpit, model)


def cockpit_watch(loop: Loop) -> list[str]:
    """Return the alarms that the losses of a loop give: the other quantities need the loop rewritten."""
    losses = run_loop(loop)
    return [] if all(abs(loss) < float("inf") for loss in losses) else ["The loss is not finite."]


def _cockpit(model: nn.Module) -> tuple[Any, Callable[[int], bool]]:
    tool: Any = importlib.import_module("cockpit")
    every = importlib.import_module("cockpit.utils.schedules").linear(1)
    names = ("Loss", "GradNorm", "UpdateSize", "Distance")
    chosen = [getattr(tool.quantities, name)(every) for name in names]
    return tool.Cockpit([weight for weight in model.parameters() if weight.requires_grad], chosen), every


def _losses_of_examples(model: nn.Module, inputs: Any, targets: Any, loss: LossFunction) -> Tensor | None:
    if not (isinstance(inputs, Tensor) and isinstance(targets, Tensor) and isinstance(model, nn.Sequential)):
        return None
    outputs = model(inputs)
    torch: Any = importlib.import_module("torch")
    return torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))])


def _alarms(cockpit: Any, model: nn.Module) -> list[str]:
    steps = [values for _, values in sorted(cockpit.get_output().items())]
    texts = []
    if not all(abs(values["Loss"]) < float("inf") for values in steps):
        texts.append("The loss is not finite.")
    norms = [[float(norm) for norm in values["GradNorm"]] for values in steps]
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    texts += [f"The gradient of {name} is exactly zero." for i, name in enumerate(names) if norms[0][i] == 0.0]
    alphas = [float(values["Alpha"]) for values in steps if values.get("Alpha") is not None]
    mean = sum(alphas) / len(alphas) if alphas else 0.0
    if mean > 1.0:
        texts.append(f"The steps are too long (mean local step α = {mean:.2f}): the learning rate is too high.")
    if mean < -0.9:
        texts.append(f"The steps are too short (mean local step α = {mean:.2f}): the learning rate is too low.")
    return texts
