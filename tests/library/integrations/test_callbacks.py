"""Norms removed and trainings watched by the trainers of Lightning and transformers, also after an interruption."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

import normless as nl
from normless.nn import FreezableNorm

OPTIONS: dict[str, Any] = {"start": 2, "interval": 1, "tolerance": 100.0}
of_lightning = pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:.*does not have many workers")
needs_lightning = pytest.mark.skipif(find_spec("pytorch_lightning") is None, reason="no pytorch_lightning")
needs_accelerate = pytest.mark.skipif(find_spec("accelerate") is None, reason="its Trainer needs accelerate")


class Classifier(nn.Module):
    """As those of transformers: the loss is in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.second = nn.RMSNorm(8)

    def forward(self, x: Tensor, labels: Tensor) -> SequenceClassifierOutput:
        logits = self.last(self.norm(self.first(x)) + self.second(self.first(x).sin()))
        return SequenceClassifierOutput(loss=F.cross_entropy(logits, labels), logits=logits)


def examples() -> list[dict[str, Tensor]]:
    """Inputs and labels."""
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(6, generator=generator), "labels": torch.tensor(number % 3)} for number in range(32)]


def trained(folder: Path, steps: int, resume: bool = False) -> tuple[nn.Module, nl.affine.Removal]:
    """Train by the Trainer; its batches follow from the seed."""
    from normless.integrations import TrainerRemoval

    torch.manual_seed(0)
    model = Classifier()
    batch = {name: torch.stack([example[name] for example in examples()[:4]]) for name in ("x", "labels")}
    callback = TrainerRemoval(batch, **OPTIONS)
    options: dict[str, Any] = {"per_device_train_batch_size": 4, "learning_rate": 0.01, "save_steps": 3}
    options |= {"lr_scheduler_type": "constant", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(str(folder), max_steps=steps, **options)
    trainer = Trainer(model, arguments, train_dataset=examples(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=resume)
    assert not model._forward_hooks
    return model, callback.removal


@pytest.mark.filterwarnings("ignore:.*pin_memory")
@needs_accelerate
def test_the_trainer_of_transformers_removes_norms_and_resumes(tmp_path: Path) -> None:
    whole, removal = trained(tmp_path / "whole", 6)
    assert removal.done
    trained(tmp_path / "parts", 3)
    resumed, second = trained(tmp_path / "parts", 6, resume=True)
    assert second.history == removal.history
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    (tmp_path / "parts" / "checkpoint-6" / "removal.pt").unlink()
    with pytest.raises(nl.errors.RecipeError, match="the state of its removal is not in"):
        trained(tmp_path / "parts", 8, resume=True)


def lightning_module() -> Any:
    """A network that records the losses that its Trainer, which accumulates gradients, is given."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        """Returns a dictionary, as a module may."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            norms = nn.LayerNorm(8), nn.RMSNorm(8)
            self.net = nn.Sequential(nn.Linear(6, 8), norms[0], nn.ReLU(), nn.Linear(8, 8), norms[1], nn.Linear(8, 3))
            self.losses: list[float] = []

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> dict[str, Tensor]:
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return {"loss": loss}

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    return Module()


GENERATOR = torch.Generator().manual_seed(0)
DATA = TensorDataset(torch.randn(32, 6, generator=GENERATOR), torch.randint(3, (32,), generator=GENERATOR))


def fitted(callback: Any, epochs: int, folder: Path, checkpoint: Path | None = None) -> Any:
    """A module trained by Lightning with gradients accumulated over two batches, and its checkpoint written."""
    import pytorch_lightning as pl

    module = lightning_module()
    extras = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "accelerator": "cpu"} | dict.fromkeys(extras, False)
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[callback], default_root_dir=folder, **options)
    trainer.fit(module, DataLoader(DATA, batch_size=4), ckpt_path=checkpoint)
    trainer.save_checkpoint(folder / f"{epochs}.ckpt")
    assert "training_step" not in vars(module)
    assert not module._forward_pre_hooks
    return module


@of_lightning
@needs_lightning
def test_the_trainer_of_lightning_removes_norms_and_resumes(tmp_path: Path) -> None:
    from normless.integrations import LightningRemoval

    callbacks = [LightningRemoval(DATA[:4][0], network="net", **OPTIONS) for _ in range(3)]
    whole, removal = fitted(callbacks[0], 2, tmp_path), callbacks[0].removal
    assert [freezing.step for freezing in removal.history] == [2, 3]
    assert isinstance(whole.net[1], FreezableNorm)
    folded, report = nl.fold(removal.finish(), DATA[:4][0])
    assert report.counts["folded"] == 2
    assert isinstance(folded, nn.Sequential)
    fitted(callbacks[1], 1, tmp_path)
    resumed = fitted(callbacks[2], 2, tmp_path, tmp_path / "1.ckpt")
    assert callbacks[2].removal.history == removal.history
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@of_lightning
@needs_lightning
def test_the_trainer_of_lightning_is_watched(tmp_path: Path) -> None:
    from normless.integrations import LightningWatch

    callback = LightningWatch(interval=2)
    losses = fitted(callback, 1, tmp_path).losses
    seen = callback.watch.table.query("quantity == 'loss'")
    assert seen["step"].tolist() == [1, 3]
    assert seen["value"].tolist() == pytest.approx(torch.tensor(losses).view(4, 2).mean(1)[::2].tolist())
    assert {"output", "update"} <= set(callback.watch.table["quantity"])


def test_the_trainer_of_transformers_is_watched() -> None:
    from normless.integrations import TrainerWatch

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
