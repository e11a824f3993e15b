"""A loop of plain PyTorch: torchvision's ResNet-18 by SkipInit, watched while it trains.

pip install "normless[lab,zoo]"
python examples/pytorch_loop.py --epochs 5
"""

from __future__ import annotations

import argparse

import torch
from digits import digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from torchvision.models import resnet18

import normless as nl


def train(net: nn.Module, epochs: int, examples: int | None = None) -> tuple[nn.Module, list[float]]:
    """A network with norms, trained without them, and the mean training loss of every epoch."""
    train_set, test_set = digits(examples)
    loader = DataLoader(train_set, batch_size=32, shuffle=True)

    net = nl.convert(net, "skipinit", train_set[:2][0])
    groups = nl.param_groups(net, lr=0.03, weight_decay=5e-4)  # weights decay; multipliers and biases do not
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    # Most schedulers read the rates of the groups; this one takes them.
    rates = [group["lr"] for group in groups]
    scheduler = OneCycleLR(optimizer, rates, epochs=epochs, steps_per_epoch=len(loader), pct_start=0.2)
    watch = nl.watch(net)  # warns of problems, with their cause and a cure

    losses = []
    for epoch in range(epochs):
        net.train()
        total = 0.0
        for images, labels in loader:
            loss = watch.loss(F.cross_entropy(net(images), labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(labels)
        losses.append(total / len(train_set))
        net.eval()
        with torch.no_grad():
            right = sum(int((net(x).argmax(1) == y).sum()) for x, y in DataLoader(test_set, batch_size=256))
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, test accuracy {right / len(test_set):.1%}", flush=True)
    watch.close()
    print(*(watch.messages or ["nothing went wrong"]), sep="\n")
    return net, losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--examples", type=int, help="train on fewer than 1437")
    torch.manual_seed(0)
    train(resnet18(num_classes=10), **vars(parser.parse_args()))
