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
from normless.models import resnet_cifar, wide_resnet
from normless_lab.data import Augmentation, load_data

HOME = Path(__file__).parent
RESULTS, PAGE = HOME / "trained_conversions.jsonl", HOME.parent / "docs" / "trained.md"
END = "<!-- end -->"
SEEDS = (0, 1, 2)
BATCH_SIZES = (1, 2, 32)
GROUPS = (1, 8, 32)
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


def trained(network: str, seed: int, build: Callable[[], nn.Module] | None = None) -> nn.Module:
    """Train on a quarter of the digits: AdamW, batches of 32, a warm-up of 20 steps and a linear fall."""
    torch.manual_seed(seed)
    net, (inputs, targets, *_) = built(network) if build is None else build(), data_of(network)
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


def with_random_statistics(net: nn.Module) -> nn.Module:
    """Give batch norms random γ and β, and the statistics of random images: a network that was not trained."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    net.train()
    with torch.no_grad():
        for _ in range(20):
            net(torch.randn(16, 3, 64, 64))
    return net.eval()


def examples() -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """Iterate over networks with batch norms, calibration images and held-out images."""
    from torchvision.models import resnet18
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    network = "ResNet-8, batch norm"
    digits, _, held, _ = data_of(network)
    torch.manual_seed(0)
    yield network, trained(network, 0), digits[:CALIBRATION], held
    for name, build in (
        ("ResNet-14, batch norm", lambda: resnet_cifar(14, classes=10, in_channels=1)),
        ("Wide-ResNet-10-2, batch norm", lambda: wide_resnet(10, 2, classes=10, in_channels=1)),
    ):
        yield name, trained(name, 0, build), digits[:CALIBRATION], held
    torch.manual_seed(0)
    noise = torch.randn(64, 3, 64, 64), torch.randn(64, 3, 64, 64)
    yield "torchvision's ResNet-18, random weights", with_random_statistics(resnet18(num_classes=10)), *noise
    pyramid = resnet_fpn_backbone(backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d)
    yield "torchvision's ResNet-18 with FPN, random weights", with_random_statistics(pyramid), *noise


@torch.no_grad()
def outputs_of(net: nn.Module, images: Tensor) -> list[Tensor]:
    """The outputs in evaluation, in order."""
    returned = net.eval()(images)
    return [*returned.values()] if isinstance(returned, dict) else [returned]


def distances() -> Iterator[dict[str, Any]]:
    """Iterate over networks and groups, with the distances of group norms' outputs on held-out images.

    Each distance is without and with statistics: ‖y' − y‖ / ‖y‖ over all outputs, with y those of batch norms.
    """
    for name, model, calibration, held in examples():
        known = outputs_of(model, held)
        for groups in GROUPS:
            scheme = f"group_norm(groups={groups})"
            nets = (nl.convert(model, scheme, calibration[:2]), nl.convert_trained(model, scheme, calibration)[0])
            row: dict[str, Any] = {"groups": groups, "network": name, "distance": [], "same": []}
            for net in nets:
                made = outputs_of(net, held)
                far, size = (sum(x.square().sum().item() for x in every) for every in (
                    [a - b for a, b in zip(made, known, strict=True)], known
                ))  # fmt: skip
                row["distance"].append((far / size) ** 0.5)
                if len(made) == 1:
                    row["same"].append((made[0].argmax(1) == known[0].argmax(1)).double().mean().item())
            yield row


def _range(values: list[float]) -> str:
    """A mean in percent, with the lowest and the highest value."""
    low, middle, high = (100 * value for value in (min(values), mean(values), max(values)))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def table_of_accuracies(network: str, step: int) -> str:
    """The accuracies of a network at the start and after some steps: means over seeds, lowest and highest."""
    own = [row for row in rows() if row["network"] == network and "method" in row]
    settings = [(size, optimizer) for size in BATCH_SIZES for optimizer in RATES]
    settings = [pair for pair in settings if any((row["size"], row["optimizer"]) == pair for row in own)]
    heads = ["norms", "at the start", *(f"{optimizer}, batch {size}" for size, optimizer in settings)]
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for method in METHODS[network]:
        of_method = [row for row in own if row["method"] == method]
        cells = [_range([row["accuracies"][0] for row in of_method])]
        for pair in settings:
            chosen = [row for row in of_method if (row["size"], row["optimizer"]) == pair]
            cells.append(_range([row["accuracies"][step] for row in chosen]))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_of_distances() -> str:
    """The distances of group norms from batch norms."""
    lines = [
        "| network | groups | distance, γ and β as they were | with statistics | same class | with statistics |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows():
        if "groups" in row:
            same = [f"{100 * share:.1f} %" for share in row["same"]] or ["–", "–"]
            cells = [row["network"], str(row["groups"]), *(f"{far:.2f}" for far in row["distance"]), *same]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write() -> None:
    """Write the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    tables = {
        "trained conversions, 1,000 steps": table_of_accuracies("ResNet-8, batch norm", 2),
        "trained conversions, 100 steps": table_of_accuracies("ResNet-8, batch norm", 1),
        "trained conversions, layer norm": table_of_accuracies("ViT, layer norm", 2),
        "group norm with statistics": table_of_distances(),
    }
    for name, table in tables.items():
        before, begin, rest = text.partition(f"<!-- {name} -->")
        after = rest.partition(END)[2]
        text = f"{before}{begin}\n{table}\n{END}{after}" if begin else text
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    """Run what is missing, and write the tables."""
    torch.set_num_threads(1)
    known = [
        {key: row[key] for key in ("network", "seed", "size", "optimizer", "method")}
        for row in rows()
        if "method" in row
    ]
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
    if not any("groups" in row for row in rows()):
        for row in distances():
            add(row)
    write()


if __name__ == "__main__":
    main()
