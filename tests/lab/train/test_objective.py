"""Gradients over micro-batches, the L2 term and the training losses against plain autograd."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from normless.conversion import convert
from normless.models import wide_resnet
from normless_lab.data import Batch, load_data
from normless_lab.train import TrainConfig, train
from normless_lab.train._image_task import ImageTask
from normless_lab.train._objective import accumulate_gradients

FABRIC = Fabric(accelerator="cpu", devices=1)


def batch_of(size: int, *, soft: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(size, 1, 8, 8, generator=generator, dtype=torch.float64)
    if soft:
        return Batch(inputs, torch.rand(size, 10, generator=generator, dtype=torch.float64).softmax(1))
    return Batch(inputs, torch.randint(10, (size,), generator=generator))


def gradients(network: nn.Module, batch: Batch, micro: int | None) -> tuple[list[Tensor], float, int]:
    task = ImageTask(TrainConfig(batch_size=12, micro_batch_size=micro, label_smoothing=0.1))
    loss, accuracy = accumulate_gradients(FABRIC, FABRIC.setup(network), task, batch)
    grads = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    return grads, float(loss), round(float(accuracy) * len(batch.inputs))


@pytest.mark.parametrize("micro", [1, 5])
@pytest.mark.parametrize("soft", [False, True])
def test_micro_batches_give_the_gradient_of_the_batch(micro: int, soft: bool) -> None:
    network = convert(wide_resnet(depth=10, width=1, in_channels=1), "skipinit(alpha=1)").double()
    batch = batch_of(12, soft=soft)
    logits = network(batch.inputs)
    whole = F.cross_entropy(logits, batch.targets, label_smoothing=0.1)
    expected = torch.autograd.grad(whole, list(network.parameters()))
    accumulated, loss, correct = gradients(network, batch, micro)
    for one, other in zip(accumulated, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert loss == pytest.approx(float(whole.detach()), rel=1e-12)
    labels = batch.targets.argmax(1) if soft else batch.targets
    assert correct == sum(int(row.argmax()) == int(label) for row, label in zip(logits, labels, strict=True))


def test_an_epoch_against_a_loop_written_by_hand(tmp_path: Path) -> None:
    config = TrainConfig(
        model="normless:wide_resnet(depth=10, width=1)",
        scheme="fixup",
        batch_size=256,
        epochs=2,
        rate=0.05,
        schedule="cosine",
        warmup_epochs=1,
        weight_decay=0.01,
        decay_policy="all",
        mixup=0.5,
        device="cpu",
    )
    result = train(config, tmp_path)
    data = load_data("digits")
    task = ImageTask(config)
    network = task.build_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0, momentum=0.9, weight_decay=0.01, foreach=False)
    step = 0
    for epoch, row in enumerate(result.epochs):
        losses, with_l2, right = [], [], []
        batches = data.train_batches(256, seed=0, epoch=epoch, augmentation=task.augmentation)
        for inputs, targets in batches:
            warm = min(1.0, (step + 1) / 5)
            rate = 0.05 * warm * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * step / 10))))
            optimizer.param_groups[0]["lr"] = rate
            logits = network(inputs)
            loss = F.cross_entropy(logits, targets)
            losses.append(float(loss.detach()))
            with_l2.append(losses[-1] + 0.005 * sum(float(p.detach().square().sum()) for p in network.parameters()))
            labels = targets.argmax(1)
            right += [int(row.argmax()) == int(label) for row, label in zip(logits, labels, strict=True)]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        assert row.training_loss == pytest.approx(sum(losses) / 5, rel=1e-4)
        assert row.training_loss_with_l2 == pytest.approx(sum(with_l2) / 5, rel=1e-4)
        assert row.training_accuracy == pytest.approx(sum(right) / 1280, abs=2 / 1280)
        assert row.rate == pytest.approx(rate, rel=1e-6)
        assert row.training_loss_with_l2 > row.training_loss + 0.5
