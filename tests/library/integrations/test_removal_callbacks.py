"""Norms removed by the trainers of Lightning and transformers, and by both after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

import normless as nl
from normless.nn import FreezableNorm

OPTIONS: dict[str, Any] = {"start": 2, "interval": 1, "tolerance": 100.0}


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


def trained(folder: Path, steps: int, resume: bool = False, **options: Any) -> tuple[nn.Module, nl.Removal]:
    """Train by the Trainer; its batches follow from the seed."""
    from normless.integrations import TrainerRemoval

    torch.manual_seed(0)
    model = Classifier()
    batch = {name: torch.stack([example[name] for example in examples()[:4]]) for name in ("x", "labels")}
    callback = TrainerRemoval(batch, **OPTIONS)
    arguments = TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        save_steps=3,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    trainer = Trainer(model, arguments, train_dataset=examples(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=resume)
    assert not model._forward_hooks
    return model, callback.removal


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_the_trainer_of_transformers_removes_norms_and_resumes(tmp_path: Path) -> None:
    whole, removal = trained(tmp_path / "whole", 6)
    assert removal.done
    trained(tmp_path / "parts", 3)
    resumed, second = trained(tmp_path / "parts", 6, resume=True)
    assert second.history == removal.history
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    (tmp_path / "parts" / "checkpoint-6" / "removal.pt").unlink()
    with pytest.raises(nl.RecipeError, match="the state of its removal is not in"):
        trained(tmp_path / "parts", 8, resume=True)


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_accumulated_gradients_of_the_trainer(tmp_path: Path) -> None:
    _, removal = trained(tmp_path, 5, gradient_accumulation_steps=2, save_strategy="no")
    assert removal.done
    assert [freezing.step for freezing in removal.history] == [2, 3]


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # Lightning's, about torch
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_trainer_of_lightning_removes_norms_and_resumes(tmp_path: Path) -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from normless.integrations import LightningRemoval

    class Module(pl.LightningModule):
        """Returns a dictionary, as a module may."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(
                nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 3)
            )

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> dict[str, Tensor]:
            return {"loss": F.cross_entropy(self(batch[0]), batch[1])}

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(32, 6, generator=generator), torch.randint(3, (32,), generator=generator))

    def fit(epochs: int, checkpoint: Path | None = None) -> tuple[Any, nl.Removal]:
        module, callback = Module(), LightningRemoval(data[:4][0], network="net", **OPTIONS)
        extras = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        trainer = pl.Trainer(
            max_epochs=epochs,
            accumulate_grad_batches=2,
            callbacks=[callback],
            accelerator="cpu",
            default_root_dir=tmp_path,
            **dict.fromkeys(extras, False),
        )
        trainer.fit(module, DataLoader(data, batch_size=4), ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        assert "training_step" not in vars(module)
        return module, callback.removal

    whole, removal = fit(2)
    assert [freezing.step for freezing in removal.history] == [2, 3]
    assert isinstance(whole.net[1], FreezableNorm)
    folded, report = nl.fold(removal.finish(), data[:4][0])
    assert report.counts["folded"] == 2
    assert isinstance(folded, nn.Sequential)
    fit(1)
    resumed, second = fit(2, tmp_path / "1.ckpt")
    assert second.history == removal.history
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
