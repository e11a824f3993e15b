"""The callbacks of Lightning and transformers, called as their trainers call them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState


class Classifier(nn.Module):
    """As those of transformers: the loss is in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, labels: Tensor) -> SequenceClassifierOutput:
        logits = self.layer(x)
        return SequenceClassifierOutput(loss=F.cross_entropy(logits, labels), logits=logits)


def test_the_callback_of_transformers() -> None:
    from normless.integrations import TrainerWatch

    torch.manual_seed(0)
    model, callback = Classifier(), TrainerWatch(interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handler = CallbackHandler([callback], model, None, optimizer, None)
    state, control, losses = TrainerState(), TrainerControl(), []
    arguments: Any = SimpleNamespace()
    handler.on_train_begin(arguments, state, control)
    for _ in range(5):
        loss = model(torch.randn(4, 6), labels=torch.tensor([0, 1, 2, 0])).loss
        with torch.no_grad():
            model(torch.randn(4, 6), labels=torch.tensor([0, 1, 2, 0]))
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        handler.on_step_end(arguments, state, control)
    handler.on_train_end(arguments, state, control)
    seen = callback.watch.table.query("quantity == 'loss'")
    assert seen["step"].tolist() == [1, 3, 5]
    assert seen["value"].tolist() == pytest.approx(losses[::2])
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_the_callback_of_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its documented order: the step runs a closure with forward, `on_before_backward` and backward."""
    library, pytorch = ModuleType("lightning"), ModuleType("lightning.pytorch")
    pytorch.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", library)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", pytorch)
    monkeypatch.delitem(sys.modules, "normless.integrations.lightning", raising=False)
    from normless.integrations.lightning import LightningWatch

    torch.manual_seed(0)
    model, callback = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), LightningWatch(interval=2)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    callback.on_train_start(None, model)

    def closure() -> Tensor:
        loss = F.cross_entropy(model(torch.randn(4, 6)), torch.tensor([0, 1, 2, 0]))
        optimizer.zero_grad()
        callback.on_before_backward(SimpleNamespace(accumulate_grad_batches=2), model, loss / 2)
        loss.backward()
        losses.append(float(loss.detach()))
        return loss

    for _ in range(4):
        optimizer.step(closure)
    callback.on_train_end(None, model)
    seen = callback.watch.table.query("quantity == 'loss'")
    assert seen["step"].tolist() == [1, 3]
    assert seen["value"].tolist() == pytest.approx(losses[::2])
    assert {"output", "update"} <= set(callback.watch.table["quantity"])
    assert not model._forward_pre_hooks
    sys.modules.pop("normless.integrations.lightning")
