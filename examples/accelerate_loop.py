"""accelerate: batches of 32 in parts of 4, which are too small for batch norm, on any devices.

pip install "normless[lab,zoo]" accelerate
accelerate launch examples/accelerate_loop.py --epochs 5      # or python examples/…
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from digits import digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader
from torchvision.models import resnet18

import normless as nl


def train(net: nn.Module, epochs: int, examples: int | None = None) -> tuple[nn.Module, list[float]]:
    """A network with norms, trained without them, and the mean training loss of every epoch."""
    accelerator = Accelerator(gradient_accumulation_steps=8)
    train_set, test_set = digits(examples)
    net = nl.convert(net, "skipinit", train_set[:2][0])
    optimizer = torch.optim.SGD(nl.param_groups(net, lr=0.03, weight_decay=5e-4), momentum=0.9)
    loader = DataLoader(train_set, batch_size=4, shuffle=True, drop_last=True)
    # accelerate steps the schedule once for each process in each step of the optimizer.
    scheduler = CosineAnnealingLR(optimizer, epochs * -(-len(loader) // 8))
    net, optimizer, scheduler, loader, test = accelerator.prepare(
        net, optimizer, scheduler, loader, DataLoader(test_set, batch_size=60)
    )
    watch = nl.watch(net)  # what `prepare` returned; it looks inside DistributedDataParallel

    losses = []
    for epoch in range(epochs):
        net.train()
        seen = []
        for images, labels in loader:
            with accelerator.accumulate(net):
                loss = watch.loss(F.cross_entropy(net(images), labels))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen.append(loss.detach())
        losses.append(float(accelerator.reduce(torch.stack(seen).mean(), "mean")))
        net.eval()
        with torch.no_grad():
            right = [accelerator.gather_for_metrics(net(images).argmax(1) == labels) for images, labels in test]
        share = torch.cat(right).float().mean()
        accelerator.print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, test accuracy {share:.1%}", flush=True)
    watch.close()
    accelerator.print(*(watch.messages or ["nothing went wrong"]), sep="\n")
    return accelerator.unwrap_model(net), losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--examples", type=int, help="train on fewer than 1437")
    set_seed(0)
    train(resnet18(num_classes=10), **vars(parser.parse_args()))
