"""timm's factories of networks, optimizers, schedules and Mixup, in the order of its `train.py`.

In `train.py` itself two lines are ours: `convert` after `create_model`, and `param_groups` in `create_optimizer_v2`.

    pip install "normless[lab,zoo]"
    python examples/timm_script.py --model resnet18 --scheme fixup --epochs 10
"""

from __future__ import annotations

import argparse
from typing import Any

import timm
import torch
from digits import digits
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3, accuracy
from torch import nn
from torch.utils.data import DataLoader

import normless as nl


def train(
    model: str, scheme: str, epochs: int, examples: int | None = None, **options: Any
) -> tuple[nn.Module, list[float]]:
    """The trained network and the mean training loss of every epoch; `options` are the network's."""
    torch.manual_seed(0)
    train_set, test_set = digits(examples)
    # Mixup needs an even number of images in each batch.
    loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)

    net = timm.create_model(model, num_classes=10, **options)
    net = nl.convert(net, scheme, train_set[:2][0])
    # With Mixup the Fixup paper trains scalars at a tenth of the rate; timm's schedules keep the proportion.
    groups = nl.param_groups(net, lr=1e-3, weight_decay=0.05, scalar_lr_scale=0.1)
    optimizer = create_optimizer_v2(groups, opt="adamw", lr=1e-3)
    updates = len(loader)
    scheduler, epochs = create_scheduler_v2(
        optimizer, "cosine", epochs, warmup_epochs=1, step_on_epochs=False, updates_per_epoch=updates
    )
    mixup = Mixup(mixup_alpha=0.2, label_smoothing=0.0, num_classes=10)
    criterion, ema = SoftTargetCrossEntropy(), ModelEmaV3(net, decay=0.99, use_warmup=True)

    losses = []
    for epoch in range(epochs):
        net.train()
        mean = AverageMeter()
        for step, batch in enumerate(loader, start=epoch * updates + 1):
            images, targets = mixup(*batch)
            loss = criterion(net(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(net, step=step)
            scheduler.step_update(step)
            mean.update(loss.item(), len(images))
        losses.append(mean.avg)
        top = AverageMeter()
        with torch.no_grad():
            for images, labels in DataLoader(test_set, batch_size=360):
                top.update(accuracy(ema.module.eval()(images), labels)[0].item(), len(images))
        print(f"epoch {epoch + 1}: loss {mean.avg:.4f}, test accuracy of the average {top.avg:.1f} %", flush=True)
    return net, losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a name of timm")
    parser.add_argument("--scheme", default="fixup", help="`normless list schemes` lists them")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, help="train on fewer than 1437")
    train(**vars(parser.parse_args()))
