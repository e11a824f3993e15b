"""What a training step costs under each scheme, relative to the bare network without norms and scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.bench.baselines import HandWrittenFixup
from normless.conversion import convert
from normless.models import resnet_cifar

BARE = "none"


@dataclass(frozen=True)
class StepBench:
    """What to measure.

    Attributes:
        depth: layers of the CIFAR ResNet.
        batch_size: images per step.
        image_size: their height and width in pixels.
        rounds: how often every network takes a step; they take turns.
        schemes: what is compared with the bare network, besides the hand-written Fixup.
    """

    depth: int = 110
    batch_size: int = 128
    image_size: int = 32
    rounds: int = 10
    schemes: tuple[str, ...] = ("skipinit(alpha=1)", "fixup", "batch_norm")


def measure_step(bench: StepBench) -> pd.DataFrame:
    """Time forward, backward and SGD step of every network in turn.

    Returns:
        A row per network: name, seconds (median of one step), ratio (median over rounds of its time to the bare
        network's in the same round), lowest and highest of these ratios.
    """
    torch.manual_seed(0)
    network = resnet_cifar(bench.depth)
    images = torch.randn(bench.batch_size, 3, bench.image_size, bench.image_size)
    labels = torch.randint(10, (bench.batch_size,))
    networks: dict[str, nn.Module] = {scheme: convert(network, scheme) for scheme in (BARE, *bench.schemes)}
    networks["hand-written fixup"] = HandWrittenFixup(network)
    steps = {name: training_step(net, images, labels) for name, net in networks.items()}
    seconds = seconds_in_turns(steps, bench.rounds)
    ratios = seconds.div(seconds[BARE], axis=0)
    return pd.DataFrame(
        {
            "network": seconds.columns,
            "seconds": seconds.median().to_numpy(),
            "ratio": ratios.median().to_numpy(),
            "lowest": ratios.min().to_numpy(),
            "highest": ratios.max().to_numpy(),
        }
    )


def seconds_in_turns(actions: Mapping[str, Callable[[], None]], rounds: int) -> pd.DataFrame:
    """Time actions in turns, each once before that; a row per round and a column of seconds per action."""
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            start = perf_counter()
            action()
            times[name].append(perf_counter() - start)
    return pd.DataFrame(times)


def training_step(network: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Forward, backward and a step of SGD with momentum, of a network on one batch; on CUDA, waited for."""
    # A rate at which no network moves far: the arithmetic is the same at any.
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if images.is_cuda:
            torch.cuda.synchronize(images.device)

    return step
