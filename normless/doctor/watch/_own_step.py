"""Run the person's own training step on copies, and judge what it does by the rules of the watch."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from itertools import cycle, islice
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor

from normless.doctor._findings import NotAsked, Steps, check
from normless.doctor.experiments._engine import copies
from normless.doctor.facts._examination import Examination
from normless.doctor.watch._watch import watch
from normless.errors import InputsError
from normless.state import preserve_random_state, quiet

OwnStep = Callable[..., Any]
"""Makes one training step: `step(model, batch, optimizer)`; what it returns counts as its loss."""
# The rules of the watch need up to so many steps.
STEPS = 40


@check("the training step", needs="steps")
def check_step(exam: Examination) -> Steps:
    """Run the step on copies of network and optimizer under a watch, in turn on each batch."""
    if exam.step is None:
        raise NotAsked("none was given: nl.diagnose(…, step=)")
    step: OwnStep = exam.step
    if exam.optimizer is None:
        raise NotAsked("a step needs its optimizer: nl.diagnose(…, optimizer=, step=)")
    name = getattr(step, "__name__", type(step).__name__)
    try:
        signature(step).bind(None, None, None)
    except TypeError:
        expected = "Expected step(model, batch, optimizer), which makes one step"
        raise InputsError(f"{expected}, got {name}{signature(step)}.") from None
    except ValueError:
        # The signatures of functions of C are not known.
        pass
    exam.budget.spend(STEPS)
    model, optimizer = copies(exam, exam.optimizer)
    known: list[float] = []
    # Each warning of the watch begins with its step.
    with preserve_random_state(model), torch.enable_grad(), quiet("Step "), watch(model) as watched:
        for batch in islice(cycle(exam.batches), STEPS):
            try:
                loss = step(model, batch, optimizer)
            except Exception as error:
                raise InputsError(f"{name} raises an error: {type(error).__name__}: {error}") from error
            values = torch.as_tensor(loss if isinstance(loss, (Tensor, float)) else nan).detach()
            if values.numel() == 1 and isfinite(values):
                known.append(float(values))
    yield from watched.findings
    fell = f"; its loss goes from {known[0]:.3g} to {known[-1]:.3g}" if known else ""
    return f"{watched.step} steps of the optimizer in {STEPS} calls{fell}"
