"""What trained networks keep when their norms are converted, and what they reach when they go on training.

A ResNet with batch norms is trained on a quarter of the digits. Then its norms are left alone, frozen, folded or
converted, and it is trained on all digits, at batch sizes 1, 2 and 32, by SGD and AdamW. A transformer with layer
norms goes the same way with DyT. Run it as `python benchmarks/trained_conversions.py`; finished runs are in
trained_conversions.jsonl and are not repeated. The tables go into docs/trained.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from small_transformers import SmallTransformer, SmallTransformerConfig, task_of
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar
from normless_lab.data import Augmentation, load_data

HOME = Path(__file__).parent
RESULTS, PAGE = HOME / "trained_conversions.jsonl", HOME.parent / "docs" / "trained.md"
SEEDS = (0, 1, 2)
BATCH_SIZES = (1, 2, 32)
STEPS, EARLY = 1000, 100
TRAINING = 300
# Examples of the first training, and of calibration.
QUARTER, CALIBRATION = 359, 256

Method = Callable[[nn.Module, Tensor], nn.Module]


def kept(scheme: str) -> Method:
    """Convert with the statistics of the calibration batch."""
    return lambda model, batch: nl.convert_trained(model, scheme, batch)[0]


METHODS: dict[str, dict[str, Method]] = {
    "ResNet-8, batch norm": {
        "left alone": lambda model, batch: model,
        "frozen (`nl.freeze`)": lambda model, batch: nl.freeze(model),
        "folded (`nl.fold`)": lambda model, batch: nl.fold(model, batch)[0],
        "skipinit": kept("skipinit"),
        "group norm, γ and β as they were": lambda model, batch: nl.convert(model, "group_norm(groups=8)", batch),
        "group norm, with statistics": kept("group_norm(groups=8)"),
        "nf_resnet": kept("nf_resnet"),
        "dyt": kept("dyt"),
    },
    "ViT, layer norm": {
        "left alone": lambda model, batch: model,
        "dyt, α = 0.5": lambda model, batch: nl.convert(model, "dyt", batch),
        "dyt, fitted": kept("dyt"),
    },
}
# At batch size 32, the same for all methods, fixed before any was run. For batches of B examples SGD's rate is
# multiplied by B / 32 and AdamW's by √(B / 32).
RATES = {"SGD": 0.02, "AdamW": 1e-3}


def rate_of(optimizer: str, size: int) -> float:
    """The rate at a batch size."""
    return RATES[optimizer] * (size / 32) ** (1.0 if optimizer == "SGD" else 0.5)


def optimizer_of(name: str, net: nn.Module, rate: float) -> torch.optim.Optimizer:
    """SGD with momentum 0.9, or AdamW, without decay."""
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    if name == "SGD":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)


@cache
def data_of(network: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test digits, as images or patches, with their classes."""
    if network.startswith("ViT"):
        digits = task_of("digits")
        return (*digits.train, *digits.test)
    data = load_data("digits")
    (train,) = data.train_batches(data.train_size, seed=0, epoch=0, augmentation=Augmentation())
    test = next(iter(data.test_batches(data.test_size)))
    return train.inputs, train.targets, test.inputs, test.targets


def built(network: str) -> nn.Module:
    """The network with initial weights."""
    if network.startswith("ViT"):
        config = SmallTransformerConfig(task="digits", scheme="as_written", layers=3, width=32)
        return SmallTransformer(nn.Linear(4, 32), 10, config)
    return resnet_cifar(8, classes=10, in_channels=1)


def batches(count: int, steps: int, size: int, seed: int) -> Iterator[Tensor]:
    """Rows of random batches out of the first `count` examples, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randint(count, (size,), generator=generator)


def trained(network: str, seed: int) -> nn.Module:
    """Train on a quarter of the digits: AdamW, batches of 32, a warm-up of 20 steps and a linear fall."""
    torch.manual_seed(seed)
    net, (inputs, targets, *_) = built(network), data_of(network)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    net.train()
    for number, rows in enumerate(batches(QUARTER, TRAINING, 32, seed)):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (number + 1) / 20) * (1 - number / TRAINING)
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    return net.eval()


@torch.no_grad()
def tested(net: nn.Module, network: str) -> float:
    """The accuracy on the test digits, in evaluation."""
    net.eval()
    *_, inputs, targets = data_of(network)
    accuracy = (net(inputs).argmax(-1) == targets).double().mean().item()
    net.train()
    return accuracy


def continued(net: nn.Module, network: str, optimizer: str, size: int, seed: int) -> list[float]:
    """Train on all digits; return the accuracies at the start, after 100 and after 1,000 steps."""
    inputs, targets, *_ = data_of(network)
    rate = rate_of(optimizer, size)
    steps = optimizer_of(optimizer, net, rate)
    accuracies = [tested(net, network)]
    for number, rows in enumerate(batches(len(inputs), STEPS, size, 1000 + seed), 1):
        for group in steps.param_groups:
            group["lr"] = rate * min(1.0, 3 * (1 - number / STEPS) + 3 / STEPS)
        steps.zero_grad()
        F.cross_entropy(net(inputs[rows]), targets[rows]).backward()
        steps.step()
        if number in (EARLY, STEPS):
            accuracies.append(tested(net, network))
    return accuracies


def runs() -> Iterator[dict[str, Any]]:
    """Iterate over the settings of all runs."""
    for seed in SEEDS:
        for network, methods in METHODS.items():
            few = network.startswith("ViT")
            for size in (32,) if few else BATCH_SIZES:
                for optimizer in ("AdamW",) if few else RATES:
                    for method in methods:
                        yield {
                            "network": network, "seed": seed, "size": size, "optimizer": optimizer, "method": method,
                        }  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """Return the finished runs."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def add(row: dict[str, Any]) -> None:
    """Write a finished run."""
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Run what is missing, and write the tables."""
    torch.set_num_threads(1)
    known = [{key: row[key] for key in ("network", "seed", "size", "optimizer", "method")} for row in rows() if "method" in row]
    original: dict[tuple[str, int], nn.Module] = {}
    for settings in runs():
        if settings in known:
            continue
        start, (network, seed) = time.process_time(), (settings["network"], settings["seed"])
        if (network, seed) not in original:
            original[network, seed] = trained(network, seed)
        torch.manual_seed(seed)
        batch = data_of(network)[0][:CALIBRATION]
        net = METHODS[network][settings["method"]](deepcopy(original[network, seed]), batch)
        accuracies = continued(net, network, settings["optimizer"], settings["size"], seed)
        add(settings | {"accuracies": accuracies, "seconds": round(time.process_time() - start, 1)})


if __name__ == "__main__":
    main()
