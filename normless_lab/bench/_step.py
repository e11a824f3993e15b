"""Time and memory of a training step and time of inference under each scheme, relative to the bare network."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.affine import fuse_for_inference
from normless.conversion import convert
from normless.models import BasicBlock, resnet_cifar, wide_resnet
from normless_lab.train._execution import activation_bytes

# Seconds of one call of an action.
Timer = Callable[[Callable[[], object]], float]


def wall_seconds(action: Callable[[], object]) -> float:
    """Return the seconds of a call, by the clock."""
    start = perf_counter()
    action()
    return perf_counter() - start


def timer_of(device: torch.device, calls: int = 1) -> Timer:
    """Return a function that times an action on a device: by the clock, or on a GPU by events around some calls.

    On a GPU it returns the mean of the calls; the device is synchronized before the first and after the last.
    """
    if device.type != "cuda":
        return wall_seconds
    cuda: Any = torch.cuda

    def timed(action: Callable[[], object]) -> float:
        with torch.cuda.device(device):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(calls):
                action()
            end.record()
            end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1000 / calls

    return timed


def seconds_in_turns(
    actions: Mapping[str, Callable[[], object]], rounds: int, timer: Timer = wall_seconds
) -> pd.DataFrame:
    """Time alternating actions after one call of each; a row per round and a column of seconds per action.

    Every other round is in reverse order. Garbage is collected before each action.
    """
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds):
        for name in list(actions)[:: -1 if turn % 2 else 1]:
            gc.collect()
            times[name].append(timer(actions[name]))
    return pd.DataFrame(times)


def ratio_table(name: str, seconds: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """Return a row per action from seconds and ratios with a row per round.

    Columns: the actions under the name, seconds (median), ratio (median), lowest and highest of the ratios.
    """
    return pd.DataFrame(
        {
            name: seconds.columns,
            "seconds": seconds.median().to_numpy(),
            "ratio": ratios.median().to_numpy(),
            "lowest": ratios.min().to_numpy(),
            "highest": ratios.max().to_numpy(),
        }
    )


class BareBlock(nn.Module):
    """relu(shortcut(x) + conv2(relu(conv1(x)))), in place where possible, without norms and scalars."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2, self.shortcut = map(block.get_submodule, ("conv1", "conv2", "shortcut"))

    def forward(self, x: Tensor) -> Tensor:
        """Shapes as `BasicBlock`."""
        h: Tensor = self.conv2(self.conv1(x).relu_())
        return h.add_(self.shortcut(x)).relu_()


class BareWideBlock(BareBlock):
    """shortcut(·) + conv2(relu(conv1(relu(x)))), where a convolution as shortcut reads relu(x), and an identity x."""

    def forward(self, x: Tensor) -> Tensor:
        """Shapes as `WideBlock`."""
        projects = isinstance(self.shortcut, nn.Conv2d)
        h = x.relu_() if projects else torch.relu(x)
        skip: Tensor = self.shortcut(h if projects else x)
        branch: Tensor = self.conv2(self.conv1(h).relu_())
        return branch.add_(skip)


class Bare(nn.Module):
    """The convolutions, ReLUs and sums of a `ResNetCifar` or `WideResNet`, on copies of its weights."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        network = deepcopy(network)
        self.stem, self.pool, self.classifier = network.stem, network.pool, network.classifier
        kinds = [BareBlock if isinstance(block, BasicBlock) else BareWideBlock for block in network.blocks]
        self.blocks = nn.Sequential(*(kind(block) for kind, block in zip(kinds, network.blocks, strict=True)))
        self.is_wide = BareWideBlock in kinds

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        h: Tensor = self.stem(x)
        h = self.blocks(h if self.is_wide else h.relu_())
        logits: Tensor = self.classifier(self.pool(h.relu_() if self.is_wide else h))
        return logits


class HandWrittenFixupBlock(nn.Module):
    """Fixup's basic block as usually written: scalars are added to activations and multiply them."""

    def __init__(self, block: BasicBlock) -> None:
        super().__init__()
        self.conv1, self.conv2, self.shortcut = map(block.get_submodule, ("conv1", "conv2", "shortcut"))
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = (nn.Parameter(torch.zeros(1)) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """relu(skip(x) + scale · conv2(relu(conv1(x + bias1a) + bias1b) + bias2a) + bias2b)."""
        h = torch.relu(self.conv1(x + self.bias1a) + self.bias1b)
        h = self.conv2(h + self.bias2a) * self.scale + self.bias2b
        return torch.relu(h + self.shortcut(x))


class HandWrittenFixup(nn.Module):
    """A CIFAR ResNet with hand-written Fixup blocks; shapes as `ResNetCifar`."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        network = deepcopy(network)
        self.stem, self.pool, self.classifier = network.stem, network.pool, network.classifier
        self.blocks = nn.Sequential(
            *(HandWrittenFixupBlock(block) for block in network.blocks if isinstance(block, BasicBlock))
        )
        self.bias1, self.bias2 = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        h = self.blocks(torch.relu(self.stem(x) + self.bias1))
        logits: Tensor = self.classifier(self.pool(h) + self.bias2)
        return logits


REFERENCE = "bare"
OFFICIAL = "hand-written fixup"
ORDER = torch.channels_last


@dataclass(frozen=True)
class ImageBench:
    """A CIFAR ResNet and a batch of random images; variants alternate for `rounds` rounds.

    `image_size` is the height and width of an image in pixels.
    """

    depth: int = 110
    batch_size: int = 128
    image_size: int = 32
    rounds: int = 5

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return random images and classes."""
        images = torch.randn(self.batch_size, 3, self.image_size, self.image_size)
        return images, torch.randint(10, (self.batch_size,))


@dataclass(frozen=True)
class StepBench(ImageBench):
    """The `schemes` to compare with the bare network; a CIFAR ResNet is also compared with hand-written Fixup.

    With a `width` the network is a Wide-ResNet. `device` is the name of a torch device. Weights and images are in
    channels-last order, as in `normless train`.
    """

    batch_size: int = 64
    rounds: int = 10
    width: int = 0
    device: str = "cpu"
    schemes: tuple[str, ...] = ("none", "skipinit(alpha=1)", "fixup", "batch_norm")

    @property
    def network(self) -> str:
        """The name of the network."""
        return f"WRN-{self.depth}-{self.width}" if self.width else f"ResNet-{self.depth}"

    def networks(self) -> dict[str, nn.Module]:
        """Return the bare network, and a network with the same weights for each scheme."""
        torch.manual_seed(0)
        network = wide_resnet(self.depth, self.width) if self.width else resnet_cifar(self.depth)
        networks: dict[str, nn.Module] = {REFERENCE: Bare(network)}
        networks |= {scheme: convert(network, scheme) for scheme in self.schemes}
        if not self.width:
            networks[OFFICIAL] = HandWrittenFixup(network)
        return {name: network.to(self.device).to(memory_format=ORDER) for name, network in networks.items()}

    def placed_batch(self) -> tuple[Tensor, Tensor]:
        """Return random images and classes on the device."""
        images, labels = self.batch()
        return images.to(self.device, memory_format=ORDER), labels.to(self.device)


def measure_step(bench: StepBench) -> pd.DataFrame:
    """Time a training step of every network: a row each, see `ratio_table`; ratios are to the bare network."""
    batch = bench.placed_batch()
    steps = {name: training_step(opened(network), *batch) for name, network in bench.networks().items()}
    return _to_bare(seconds_in_turns(steps, bench.rounds, timer_of(batch[0].device)))


def opened(network: nn.Module) -> nn.Module:
    """Return the network with random weights for those that are zero, whose gradients would be denormal numbers."""
    for parameter in network.parameters():
        if parameter.dim() > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.01)
    return network


def measure_inference(bench: StepBench) -> pd.DataFrame:
    """Time a forward pass in eval mode of every network, as it is and fused; see `measure_step`."""
    images, _ = bench.placed_batch()
    networks = bench.networks()
    for scheme in bench.schemes:
        network = networks[scheme].eval()
        networks[f"{scheme}, fused"] = fuse_for_inference(network, images, allow_partial=True)
    passes = {name: _inference(network.eval(), images) for name, network in networks.items()}
    return _to_bare(seconds_in_turns(passes, bench.rounds, timer_of(images.device)))


def measure_memory(bench: StepBench) -> pd.DataFrame:
    """Measure the MiB that every network keeps for its backward pass: a row each, with the ratio to the bare network.

    On the CPU these are the tensors that autograd saves, see `activation_bytes`; on CUDA the peak of the memory that
    torch allocates in a step.
    """
    images, labels = bench.placed_batch()
    count = partial(_peak_on_cuda, labels=labels) if images.is_cuda else activation_bytes
    kept = pd.Series({name: count(network, images) / 2**20 for name, network in bench.networks().items()})
    ratios = (kept / kept[REFERENCE]).to_numpy()
    return pd.DataFrame({"network": kept.index, "mebibytes": kept.to_numpy(), "ratio": ratios})


def training_step(network: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """Return a function that executes a step of SGD with momentum on a batch; it does not wait for a GPU."""
    step, _ = step_on_batches(network)
    return partial(step, (images, labels))


def step_on_batches(
    network: nn.Module, autocast: torch.dtype | None = None
) -> tuple[Callable[[Sequence[Tensor]], Tensor], torch.optim.Optimizer]:
    """Return a function that executes a step on images and labels and returns the loss (nats), and the optimizer.

    With `autocast` the forward pass computes in that format. On CUDA the optimizer is fused.
    """
    parameters = [*network.parameters()]
    device = parameters[0].device.type
    # The learning rate does not change the arithmetic; a small one keeps every network near its start.
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, fused=device == "cuda")

    def step(batch: Sequence[Tensor]) -> Tensor:
        images, labels = batch
        optimizer.zero_grad()
        mixed: AbstractContextManager[object] = (
            nullcontext() if autocast is None else torch.autocast(device, autocast)
        )
        with mixed:
            loss = F.cross_entropy(network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step, optimizer


def _inference(network: nn.Module, images: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def run() -> None:
        network(images)

    return run


def _peak_on_cuda(network: nn.Module, images: Tensor, labels: Tensor) -> int:
    step = training_step(network, images, labels)
    step()
    before = torch.cuda.memory_allocated(images.device)
    torch.cuda.reset_peak_memory_stats(images.device)
    step()
    return torch.cuda.max_memory_allocated(images.device) - before


def _to_bare(seconds: pd.DataFrame) -> pd.DataFrame:
    table = ratio_table("network", seconds, seconds.div(seconds[REFERENCE], axis=0))
    # Other work on the machine disturbs the fastest step least.
    return table.assign(of_fastest=(seconds.min() / seconds[REFERENCE].min()).to_numpy())
