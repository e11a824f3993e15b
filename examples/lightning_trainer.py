"""Lightning: a module with `configure_optimizers` in five lines, and the callback that watches it.

pip install "normless[lab,zoo]" pytorch-lightning
python examples/lightning_trainer.py --epochs 5
"""

from __future__ import annotations

import argparse
from typing import Any

import pytorch_lightning as pl
import torch
from digits import digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.models import resnet18

import normless as nl
from normless.integrations import LightningWatch


class Classifier(pl.LightningModule):
    """A network without norms."""

    def __init__(self, net: nn.Module, rate: float) -> None:
        super().__init__()
        self.net, self.rate = net, rate

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the classes."""
        return self.net(images)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss; the watch observes `self(…)`, not `self.net(…)`."""
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """The accuracy."""
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> dict[str, Any]:
        """Set the decay by the role of each parameter; the schedule keeps the groups' proportions."""
        groups = nl.param_groups(self.net, lr=self.rate, weight_decay=5e-4)
        optimizer = torch.optim.SGD(groups, momentum=0.9)
        rates, steps = [group["lr"] for group in groups], int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def train(
    net: nn.Module, epochs: int, examples: int | None = None, **options: Any
) -> tuple[Classifier, LightningWatch]:
    """A network with norms, trained without them, and what watched it; `options` are those of Lightning's Trainer."""
    train_set, test_set = digits(examples)
    net = nl.convert(net, "skipinit", train_set[:2][0])
    module, watch = Classifier(net, rate=0.03), LightningWatch()
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[watch], **options)
    trainer.fit(module, DataLoader(train_set, batch_size=32, shuffle=True), DataLoader(test_set, batch_size=360))
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})
    print(*(watch.watch.messages or ["nothing went wrong"]), sep="\n")
    return module, watch


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--examples", type=int, help="train on fewer than 1437")
    pl.seed_everything(0)
    train(resnet18(num_classes=10), **vars(parser.parse_args()), logger=False, enable_checkpointing=False)
