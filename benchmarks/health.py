"""How often `nl.diagnose_trained` is right: networks trained here without a fault, and the same with one.

`python -m benchmarks.health [--seeds 3] [--cache FOLDER]` prints for each network without a fault its findings and
the largest value of every quantity, and for each fault whether kind and module come first. The counts are in
docs/trained.md.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.doctor.trained._limits import QUANTITIES
from normless.models import resnet_cifar, wide_resnet
from normless_lab.data import Augmentation, load_data

sys.path.insert(0, str(Path(__file__).parent))
from small_transformers import Part, SmallTransformer, SmallTransformerConfig, task_of

BATCH, BATCHES = 32, 6


def images() -> tuple[Part, Part]:
    """The embedded digits as images (1, 8, 8)."""
    data = load_data("digits")
    (train,) = data.train_batches(data.train_size, seed=0, epoch=0, augmentation=Augmentation())
    return Part(train.inputs, train.targets), Part(*next(iter(data.test_batches(data.test_size))))


def sequences(name: str) -> tuple[Part, Part]:
    """The sentences of the embedded grammar, or the digits as rows of patches."""
    task = task_of(name)
    return task.train, task.test


def plain(*, norm: bool, act: type[nn.Module], width: int = 16) -> nn.Sequential:
    """A convolutional network without skip paths."""
    layers: list[nn.Module] = []
    for before, after, stride in ((1, width, 1), (width, width, 2), (width, 2 * width, 1), (2 * width, 2 * width, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=not norm)]
        layers += [*([nn.BatchNorm2d(after)] if norm else []), act()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


def perceptron(act: type[nn.Module], width: int = 64) -> nn.Sequential:
    """Three hidden layers."""
    sizes = (64, width, width, width)
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), act())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


class Scaled(nn.Module):
    """A residual block as in ConvNeXt: a layer norm over features, two linear layers and a layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        """x + γ · f(x)."""
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Sequential:
    """A stem, three blocks with layer scale, and a classifier."""
    body = [nn.Conv2d(1, 24, 2, 2), *(Scaled(24) for _ in range(3))]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


def transformer(task: str, norm: str) -> nn.Module:
    """A small transformer on text or digits."""
    config = SmallTransformerConfig(
        task="text" if task == "text" else "digits", scheme="as_written", norm=norm, layers=3, width=32
    )
    data = task_of(task)
    embedding = nn.Embedding(data.classes, 32) if task == "text" else nn.Linear(4, 32)
    return SmallTransformer(embedding, data.classes, config)


def timm(name: str, **options: Any) -> nn.Module:
    """A small network of timm."""
    import timm as library

    made: nn.Module = library.create_model(name, num_classes=10, in_chans=1, **options)
    return made


@dataclass(frozen=True)
class Network:
    """A network to train: its data, the steps, rate and decay of AdamW, and whether the rate is constant."""

    name: str
    build: Callable[[], nn.Module]
    data: str = "images"
    steps: int = 250
    rate: float = 2e-3
    decay: float = 0.01
    constant: bool = False


NETWORKS = (
    Network("ResNet-14", lambda: resnet_cifar(14, classes=10, in_channels=1)),
    Network("ResNet-14, constant rate", lambda: resnet_cifar(14, classes=10, in_channels=1), constant=True),
    Network("ResNet-20, decay", lambda: resnet_cifar(20, classes=10, in_channels=1), decay=0.3),
    Network("WRN-10-1", lambda: wide_resnet(depth=10, width=1, classes=10, in_channels=1)),
    Network("ResNet-14, SkipInit", lambda: nl.convert(resnet_cifar(14, classes=10, in_channels=1), "skipinit")),
    Network(
        "ResNet-14, group norm",
        lambda: nl.convert(resnet_cifar(14, classes=10, in_channels=1), "group_norm(groups=4)"),
    ),
    Network("CNN, batch norm, ReLU", lambda: plain(norm=True, act=nn.ReLU)),
    Network("CNN, batch norm, ReLU6", lambda: plain(norm=True, act=nn.ReLU6)),
    Network("CNN without norms, ReLU", lambda: plain(norm=False, act=nn.ReLU)),
    Network("CNN, batch norm, tanh", lambda: plain(norm=True, act=nn.Tanh)),
    Network("MLP, ReLU", lambda: perceptron(nn.ReLU)),
    Network("MLP, tanh", lambda: perceptron(nn.Tanh)),
    Network("MLP, sigmoid", lambda: perceptron(nn.Sigmoid), rate=5e-3, steps=500),
    Network("MLP, GELU, wide", lambda: perceptron(nn.GELU, 256)),
    Network("ConvNeXt with layer scale", convnext),
    Network("MobileNetV3 small", lambda: timm("mobilenetv3_small_050"), steps=150),
    Network("GPT, pre-norm", lambda: transformer("text", "pre"), "text", 600, 4e-3),
    Network("GPT, post-norm", lambda: transformer("text", "post"), "text", 600, 3e-3),
    Network("ViT, pre-norm", lambda: transformer("digits", "pre"), "digits", 700),
)


def data_of(network: Network) -> tuple[Part, Part]:
    """Training and test examples."""
    return images() if network.data == "images" else sequences(network.data)


def trained(network: Network, seed: int, cache: Path | None) -> nn.Module:
    """A network after training, from the cache if it is there; the last third of the steps at a falling rate."""
    torch.manual_seed(seed)
    net = network.build()
    file = None if cache is None else cache / f"{network.name}-{seed}.pt"
    if file is not None and file.is_file():
        net.load_state_dict(torch.load(file, weights_only=True))
        return net.eval()
    train, _ = data_of(network)
    optimizer = torch.optim.AdamW(net.parameters(), lr=network.rate, weight_decay=network.decay)
    generator = torch.Generator().manual_seed(seed)
    net.train()
    for step in range(network.steps):
        share = min(1.0, (step + 1) / 20, 3.03 * (1 - step / network.steps) if not network.constant else 1.0)
        optimizer.param_groups[0]["lr"] = network.rate * share
        rows = torch.randint(len(train.inputs), (BATCH,), generator=generator)
        loss = F.cross_entropy(net(train.inputs[rows]).flatten(0, -2), train.targets[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), file)
    return net.eval()


def calibration(network: Network) -> list[tuple[Tensor, Tensor]]:
    """Batches of test data."""
    _, test = data_of(network)
    return [
        (test.inputs[at : at + BATCH], test.targets[at : at + BATCH])
        for at in range(0, min(len(test.inputs), BATCH * BATCHES), BATCH)
    ]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over examples and positions."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Fault:
    """A network with a fault: what breaks it or its batches, and the kinds and places that are right."""

    name: str
    network: str
    breaks: Callable[[nn.Module, Batches], Batches | None]
    kinds: tuple[str, ...]
    places: tuple[str, ...]


def _set(path: str, name: str, change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Batches], None]:
    """Change a tensor of a module."""

    def breaks(net: nn.Module, _: Batches) -> None:
        tensor = getattr(net.get_submodule(path), name)
        with torch.no_grad():
            tensor.copy_(change(tensor.clone()))

    return breaks


def _first(share: float, value: float) -> Callable[[Tensor], Tensor]:
    """Set the first share of the rows to a value."""

    def change(tensor: Tensor) -> Tensor:
        tensor[: round(share * len(tensor))] = value
        return tensor

    return change


def _copied_rows(tensor: Tensor) -> Tensor:
    tensor[1] = 2 * tensor[0]
    tensor[3] = tensor[2]
    return tensor


def _inputs(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Batches], Batches]:
    return lambda _, batches: [(change(x), y) for x, y in batches]


def _reset(path: str) -> Callable[[nn.Module, Batches], None]:
    return lambda net, _: net.get_submodule(path).reset_running_stats()  # type: ignore[operator]


ACT, BLOCKS = "CNN, batch norm, ReLU", "ResNet-14"
MISFIT = ("unfitting_statistics",)


def faults() -> Iterator[Fault]:
    """The faults."""
    yield from faults_of_statistics()
    yield from faults_of_units()
    yield from faults_of_branches()


def faults_of_statistics() -> Iterator[Fault]:
    """Values that are not finite, statistics and inputs that do not fit, γ at zero."""
    yield Fault("NaN weight", ACT, _set("3", "weight", _first(0.1, float("nan"))), ("not_finite_state",), ("3",))
    yield Fault(
        "infinite statistic", ACT, _set("4", "running_var", _first(0.1, float("inf"))), ("not_finite_state",), ("4",)
    )
    yield Fault("negative variance", ACT, _set("4", "running_var", lambda v: -v), ("negative_variance",), ("4",))
    yield Fault("never updated", BLOCKS, _reset("blocks.2.norm1"), ("fresh_statistics",), ("blocks.2.norm1",))
    for name in ("running_mean", "running_var"):
        for path in ("1", "4", "7"):
            change = (lambda v: v * 6) if name == "running_var" else (lambda v: v + v.std() * 2 + 1)
            yield Fault(f"{name} of {path}", ACT, _set(path, name, change), MISFIT, (path,))
    yield Fault("inputs × 4", ACT, _inputs(lambda x: 4 * x), ("other_preprocessing",), ("1",))
    yield Fault("inputs not centred", ACT, _inputs(lambda x: x + 1.5), ("other_preprocessing",), ("1",))
    yield Fault("inputs / 255", ACT, _inputs(lambda x: x / 255), ("other_preprocessing",), ("1",))
    yield Fault("inputs inverted", BLOCKS, _inputs(lambda x: 1 - x), ("other_preprocessing",), ())
    for share in (0.125, 0.5):
        yield Fault(f"γ = 0 in {share:.0%}", ACT, _set("4", "weight", _first(share, 0.0)), ("zero_gamma",), ("4",))
    yield Fault("γ = 1e-7 in half", ACT, _set("7", "weight", _first(0.5, 1e-7)), ("zero_gamma",), ("7",))


def faults_of_units() -> Iterator[Fault]:
    """Units that are dead, saturated or equal."""
    for share in (0.3, 0.6):
        kill = _set("2", "bias", _first(share, -1e3))
        yield Fault(f"dead units {share:.0%}", "CNN without norms, ReLU", kill, ("dead_units",), ("2", "3"))
        kill = _set("3", "bias", _first(share, -1e3))
        yield Fault(f"dead units {share:.0%}, MLP", "MLP, ReLU", kill, ("dead_units",), ("3", "4"))
        yield Fault(f"dead GELU {share:.0%}", "MLP, GELU, wide", kill, ("dead_units",), ("3", "4"))
        kill = _set("4", "bias", _first(share, -1e3))
        yield Fault(f"dead units {share:.0%} before a norm", ACT, kill, ("dead_units",), ("4", "5"))
    yield Fault(
        "saturated tanh", "MLP, tanh", _set("3", "weight", lambda w: 40 * w), ("saturated_units",), ("3", "4")
    )
    one_sided = ("saturated_units", "dead_units")
    yield Fault("saturated σ", "MLP, sigmoid", _set("3", "bias", lambda b: b + 20), one_sided, ("3", "4"))
    yield Fault("copied rows", "MLP, GELU, wide", _set("3", "weight", _copied_rows), ("equal_units",), ("3",))
    yield Fault(
        "copied filters",
        BLOCKS,
        _set("blocks.3.conv1", "weight", _copied_rows),
        ("equal_units",),
        ("blocks.3.conv1",),
    )


def faults_of_branches() -> Iterator[Fault]:
    """Norms that divide by ε, branches and layers that do nothing, activations that are massive."""
    yield Fault(
        "tiny input of a norm", "ConvNeXt with layer scale", _tiny_input, ("divides_by_epsilon",), ("2.norm",)
    )
    yield Fault("tiny variance", ACT, _tiny_variance, ("divides_by_epsilon",), ("4",))
    yield Fault("idle branch", "ViT, pre-norm", _idle, ("zero_weights", "idle_branch"), ())
    yield Fault(
        "idle branch, norms",
        BLOCKS,
        _set("blocks.4.norm2", "weight", lambda w: 1e-5 * w),
        ("idle_branch", "zero_gamma"),
        ("blocks.4", "blocks.4.norm2"),
    )
    closed = _set("2", "gamma", lambda gamma: 0 * gamma)
    yield Fault(
        "closed layer scale",
        "ConvNeXt with layer scale",
        closed,
        ("zero_gamma", "idle_branch"),
        ("2", "2:mul", "2:gamma"),
    )
    yield Fault("identity", "MLP, GELU, wide", _identity, ("identity_layer",), ("3",))
    yield Fault("massive activation", "GPT, pre-norm", _massive, ("massive_activations",), ())
    yield Fault(
        "noisy inputs",
        "ResNet-20, decay",
        _inputs(lambda x: x + 0.7 * torch.randn_like(x)),
        (*MISFIT, "other_preprocessing"),
        ("norm",),
    )


def _identity(net: nn.Module, _: Batches) -> None:
    nn.init.eye_(net.get_submodule("3").weight)  # type: ignore[arg-type]
    nn.init.zeros_(net.get_submodule("3").bias)  # type: ignore[arg-type]


def _tiny_input(net: nn.Module, _: Batches) -> None:
    for parameter in net.get_submodule("2.conv").parameters():
        parameter.data.mul_(1e-4)


def _tiny_variance(net: nn.Module, batches: Batches) -> None:
    """Weights that shrank with the running statistics, as under decay."""
    net.get_submodule("3").weight.data.mul_(1e-4)  # type: ignore[operator, union-attr]
    net.get_submodule("4").running_mean.mul_(1e-4)  # type: ignore[operator, union-attr]
    net.get_submodule("4").running_var.mul_(1e-8)  # type: ignore[operator, union-attr]


def _ends(net: nn.Module, batches: Batches) -> list[str]:
    """The last weight layers of the branches."""
    return [block.branch[-1] for block in nl.residual_map(net, batches[0][0]).blocks]


def _idle(net: nn.Module, batches: Batches) -> None:
    for parameter in net.get_submodule(_ends(net, batches)[2]).parameters():
        nn.init.zeros_(parameter)


def _massive(net: nn.Module, batches: Batches) -> None:
    net.get_submodule(_ends(net, batches)[1]).bias.data[3] = 5e3  # type: ignore[union-attr, operator]


def healthy(network: Network, seed: int, cache: Path | None) -> str:
    """Return what is found in a network without a fault, and the largest of each quantity."""
    report = nl.diagnose_trained(trained(network, seed, cache), calibration(network), loss=cross_entropy)
    ends = report.table[list(QUANTITIES)].agg(["min", "max"])
    told = ", ".join(found.kind for found in report.findings) or "healthy"
    told += "".join(f" ({found.kind})" for found in report.advice)
    wide = [f"{name} {ends[name]['max']:.2g}" for name in QUANTITIES if pd.notna(ends[name]["max"])]
    return f"{network.name} {seed}: {told} | {', '.join(wide)} | least removal {ends['removal']['min']:.2g}"


def broken(fault: Fault, network: Network, cache: Path | None) -> str:
    """Return whether the kind and place of a fault come first."""
    net, batches = deepcopy(trained(network, 0, cache)), calibration(network)
    batches = fault.breaks(net, batches) or batches
    report = nl.diagnose_trained(net, batches, loss=cross_entropy)
    ranked = [*report.findings, *report.advice]
    is_kind = bool(ranked) and ranked[0].kind in fault.kinds
    is_right = is_kind and (not fault.places or ranked[0].where[0] in fault.places)
    outcome = "right" if is_right else "wrong place" if is_kind else "wrong" if ranked else "silent"
    said = ", ".join(f"{found.kind} {found.where[:2]}" for found in ranked[:3])
    return f"{outcome:>11}  {fault.name} ({fault.network}): {said}"


def main() -> None:
    """Train, diagnose, print."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cache", type=Path, default=None, help="folder for the weights of trained networks")
    parser.add_argument("--networks", nargs="*", default=[network.name for network in NETWORKS])
    parser.add_argument("--part", choices=("healthy", "faults"), default=None)
    options = parser.parse_args()
    by_name = {network.name: network for network in NETWORKS}
    seeds = range(options.first, options.first + options.seeds)
    lines = (healthy(by_name[name], seed, options.cache) for name in options.networks for seed in seeds)
    others = (broken(fault, by_name[fault.network], options.cache) for fault in faults())
    for line in chain(lines if options.part != "faults" else (), others if options.part != "healthy" else ()):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
