"""The callbacks of Lightning and transformers, called as their trainers call them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
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


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # Lightning's, about torch
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_callback_of_lightning() -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from normless.integrations import LightningWatch

    class Module(pl.LightningModule):
        """Records the losses that its Trainer, which accumulates gradients, is given."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
            self.losses: list[float] = []

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    torch.manual_seed(0)
    module, callback = Module(), LightningWatch(interval=2)
    data = TensorDataset(torch.randn(32, 6), torch.randint(3, (32,)))
    extras = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        max_epochs=1,
        accumulate_grad_batches=2,
        callbacks=[callback],
        accelerator="cpu",
        **dict.fromkeys(extras, False),
    )
    trainer.fit(module, DataLoader(data, batch_size=4))
    seen = callback.watch.table.query("quantity == 'loss'")
    assert seen["step"].tolist() == [1, 3]
    steps = torch.tensor(module.losses).view(4, 2).mean(1)
    assert seen["value"].tolist() == pytest.approx(steps[::2].tolist())
    assert {"output", "update"} <= set(callback.watch.table["quantity"])
    assert not module._forward_pre_hooks
